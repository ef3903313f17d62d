"""Replacing committed output: replay, compaction, and the vacuum that removes replaced files.

Called by the jobs of a stream and by commands. All of it works beside live consumption, under a
claim on the shard's output instead of its lease.
"""
