"""Processes that keep others running: agents, code servers, Dagster's own, a private database.

Called by the commands `node` and `dev`. Nothing in here decides who owns a shard.
"""
