"""The sensors of a stream: each tick reads, decides, and explains itself in one line.

Called by `orchestration`, which builds definitions of them, and by the agents of nodes. A sensor's
module has its builder; pure choices, rounds and memories stand beside it.
"""

EVERY_LOOP_S = 1
"""The interval of sensors that tick whenever the daemon looks, which is every 5 s.

Asked for 5 s, the daemon skips a look that comes a moment early, and ticks every 10 s.
"""
EVERY_THIRD_LOOP_S = 11
"""The interval of sensors that clean up after others or ask the source, and tick every 15 s
likewise: a tick without work costs a tenth of a second of processor time, Dagster's part mostly."""
