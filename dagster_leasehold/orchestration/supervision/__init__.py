"""Processes that keep others running: agents, code servers, and Dagster's own.

The commands `node` and `dev` use it. The rules in `lease_store` decide who owns a shard.
"""
