"""Where the time goes: per region inside the real model, per source line, against the device's ceilings.

ceilings.py  measure_ceilings(device) -> Ceilings: bandwidth over sizes, matrix rate per dtype; cached
measure.py   profile(workload, capture, ceilings, coverage) -> Profile
timed.py     a captured graph with a clock around each region
rows.py      the records: regions by recoverable time, source lines
state.py     running a user's model without leaving a trace
"""
