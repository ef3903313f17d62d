"""The watchdog of a run: it abandons a call without progress, and interrupts its Spark jobs.

`consuming`, `rewriting` and `windows` use it for their work on Spark. It depends on Spark and
sources, not on output.
"""
