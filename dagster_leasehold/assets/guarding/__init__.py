"""Waiting under guard: what a run awaits has to make progress, and what it leaves is interrupted.

Called by all that works on Spark: `consuming`, `rewriting` and `windows`. It knows Spark and
sources, and nothing of what is made of them.
"""
