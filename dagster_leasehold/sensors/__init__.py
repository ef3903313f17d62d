"""The sensors. A tick does the steps of each stream; a step decides, acts and reports.

Called by `orchestration`, which builds definitions of them, and by the agents of nodes. The module
of a step has the function that returns it; pure choices, rounds and memories stand beside it.
"""

EVERY_LOOP_S = 1
"""The interval of sensors that tick whenever the daemon looks, which is every 5 s.

Asked for 5 s, the daemon skips a look that comes a moment early, and ticks every 10 s.
"""
EVERY_THIRD_LOOP_S = 11
"""The interval of steps that clean up after others or ask the source: every 15 s likewise."""
