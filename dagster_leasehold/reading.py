"""Side door for programs that read committed output, and for assets downstream of a stream.

What the ledger names is committed; `committed_dataset` gives it as an Arrow dataset,
`read_committed` as a Spark DataFrame, `committed_paths` as a list of files, and `window_paths` does
so for hours of event time. `shard_partitions` are the partitions of a stream's asset, for assets
that share them.
"""

from dagster_leasehold.assets.errors import OutputUnreadable
from dagster_leasehold.assets.output.committed_dataset import committed_dataset
from dagster_leasehold.assets.output.committed_output import committed_paths, read_committed
from dagster_leasehold.assets.output.committed_parts import EventSpan
from dagster_leasehold.assets.partitions import shard_partitions
from dagster_leasehold.assets.windows.window_run import window_paths
from dagster_leasehold.lease_store import open_store
from dagster_leasehold.lease_store.errors import LogCorrupt, UnknownGroup
from dagster_leasehold.lease_store.identifiers import GroupKey, ShardId

__all__ = [
    "EventSpan",
    "GroupKey",
    "LogCorrupt",
    "OutputUnreadable",
    "ShardId",
    "UnknownGroup",
    "committed_dataset",
    "committed_paths",
    "open_store",
    "read_committed",
    "shard_partitions",
    "window_paths",
]
