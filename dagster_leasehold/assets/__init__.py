"""A stream in Dagster: its declaration, its assets, their Spark jobs and the committed output.

Four layers; each imports only the layers before it:

1. File systems: `places`, the disks and object stores that hold output.
2. Declaration: `errors`, `commit_hook`, `arrow_transform`, `pace` (when a batch is due),
   `shard_stream` (the declaration of a stream), `partitions` (its names in Dagster), `deployment`
   (the store, nodes and folders that it runs with) and `run_process`.
3. Work, in folders: `spark` and `output`, then `arrow_parsing` and `decoding` (of records), then
   `consuming` and `windows`, then `rewriting`.
4. Assets: every other module here turns a declaration into Dagster assets, checks and jobs.

`sensors` and `orchestration` call this package. Users import from `dagster_leasehold` only.
"""
