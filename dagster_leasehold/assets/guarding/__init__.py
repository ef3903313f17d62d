"""Waiting under guard: a call that makes no progress is given up, and its jobs are interrupted.

Called by everything that uses Spark: `consuming`, `rewriting` and `windows`. It knows Spark and
sources, and nothing about output.
"""
