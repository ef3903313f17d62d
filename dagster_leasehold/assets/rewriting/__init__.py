"""Replaces committed output: replay, compaction, and the vacuum that removes replaced files.

The jobs of a stream and commands call it. It runs beside live consumption, and holds a claim on the
output of a shard instead of its lease.
"""
