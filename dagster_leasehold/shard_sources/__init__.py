"""Sources of sharded logs: the list of shards, and exact reads of their records.

`source` is the contract, `registry` finds a source by its name, and there is a folder for each
source: `local_log`, `kafka`, `kinesis`, `loghub`. All of them share `positions` (cursors, times as
people write them, shards that are gone), `retrying` and `decompression`. `lag` asks for many shards
at once, and `record_feed` gives a source to clients that work without Spark.

The assets, the sensors and the command line call a source through its contract alone; only what
is about one service (loading the local log, checkpoints of LogHub's groups) names its folder. A
source knows neither Dagster nor how its records are consumed.
"""
