"""Replacing committed output: replay, compaction, and the vacuum that removes replaced files.

Called by the jobs of a stream and by commands. It runs beside live consumption, and holds a claim
on the output of a shard instead of its lease.
"""
