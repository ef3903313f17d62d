"""Consuming shards: who may, from where, the batch loop, and the Spark job behind each sweep.

Called by the assets and jobs of a stream, and by the simulation's consumer; `rewriting` takes its
sweeps. What it writes becomes visible through the lease store's commit alone; `output` says what
the files look like.
"""
