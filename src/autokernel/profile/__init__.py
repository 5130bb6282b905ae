"""Where the time goes: per region inside the real model, per source line, against the device's ceilings.

ceilings.py       measure_ceilings(device) -> Ceilings: bandwidth over sizes, matrix rate per dtype; cached
ceilings_cuda.py  the same on a GPU; bounds.py: what no kernel can be faster than
measure.py        profile(workload, capture, ceilings, coverage) -> Profile
timed.py          a captured graph with a clock around each region
measure_cuda.py   profile on a GPU: kernels by the region that launched them, and the gaps between them
marked.py         a captured graph with a mark around each region; recorders.py: what ran between marks
trace.py          kernels attributed to marks: pure arithmetic over events
rows.py           the records: regions by recoverable time, source lines
chrome.py         write_trace: a few calls as a Chrome trace, regions by name
runs.py           averages that add up
state.py          running a user's model without leaving a trace
"""
