"""Supervision of processes: node agents, code servers, Dagster's daemon and webserver, Spark.

The commands use it, mainly `node` and `dev`. `lease_store`, not this package, decides who owns a
shard.
"""
