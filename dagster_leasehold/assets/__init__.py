"""A stream in Dagster: its declaration, its assets, the Spark jobs behind them, committed output.

Four floors, each of them importing only lower ones:

* below all, `places`: the disks and object stores that hold output;
* the declaration: `errors`, `commit_hook`, `arrow_transform`, `pace` (rules for when a batch is
  due), `shard_stream` (how a user declares a stream), `partitions` (what it is called in Dagster),
  `deployment` (what it runs on), `run_process`;
* the work, in folders: `spark`, then `output`, then `consuming` and `windows`, then `rewriting`;
* the assets: every other module here turns a declaration into assets, checks and jobs of Dagster.

Called by `sensors` and `orchestration`; users meet it through `dagster_leasehold` alone.
"""
