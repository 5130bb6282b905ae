"""Where the time goes: per region inside the real model, per source line, against the device's ceilings."""
