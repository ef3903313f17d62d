"""The sensors. Each tick runs the steps of every stream.

`orchestration` builds Dagster definitions from them, and node agents call parts of them. The module
`<step>` has the function that builds that step.
"""

EVERY_LOOP_S = 1
"""The interval of sensors that tick in each loop of the daemon, which starts a loop every 5 s.

With an interval of 5 s, a loop that starts slightly early would skip the sensor, which would then
tick every 10 s.
"""
EVERY_THIRD_LOOP_S = 11
"""The interval of steps that clean up or list shards, in seconds: every third loop (15 s)."""
