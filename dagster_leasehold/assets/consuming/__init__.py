"""Consumption of shards: ownership, starting cursors, the batch loop, and Spark jobs.

The assets and jobs of a stream and the simulation's consumer call it, and `rewriting` uses its
sweeps. Its output becomes visible only through the lease store's commit. `output` defines the
files.
"""
