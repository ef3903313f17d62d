"""Sources of sharded logs: the list of shards, and exact reads of their records.

`source` is the interface, `registry` finds a source by its name, and each source has a folder:
`local_log`, `kafka`, `kinesis`, `loghub`. They share `positions` (cursors, times, removed shards),
`record_columns` (Arrow batches) and `retrying`. `lag` measures many shards at once, and
`record_feed` serves clients that work without Spark.

The assets, the sensors and the command line use the interface alone. Only commands for one service,
such as loading the local log or reading the checkpoints of a Kafka group, import its folder.
Sources import nothing of Dagster.
"""
