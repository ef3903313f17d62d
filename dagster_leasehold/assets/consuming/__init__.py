"""Consumption of shards: ownership, starting cursors, the batch loop, and Spark jobs.

The assets and jobs of a stream and the simulation's consumer call it, and `rewriting` uses its
sweeps. Its output, in the files of `output`, becomes visible only with a commit in the lease store.
"""
