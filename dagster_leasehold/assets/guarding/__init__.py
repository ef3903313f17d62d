"""Waiting under guard: a call has to make progress, or its jobs are interrupted.

Called by all that works on Spark: `consuming`, `rewriting` and `windows`. It knows Spark and
sources, and nothing of output.
"""
