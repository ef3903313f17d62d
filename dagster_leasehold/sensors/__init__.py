"""The sensors. Each tick runs the steps of every stream; a step decides, acts and reports.

`orchestration` builds Dagster definitions from them, and node agents call parts of them. A module
named after a step contains the function that builds this step.
"""

EVERY_LOOP_S = 1
"""The interval of sensors that tick in each of the daemon's loops, which start every 5 s.

With an interval of 5 s, the daemon skips a loop that starts a moment early, and the sensor ticks
every 10 s.
"""
EVERY_THIRD_LOOP_S = 11
"""The interval of steps that clean up or list shards: they run in every third loop (15 s)."""
