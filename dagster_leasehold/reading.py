"""Side door for programs that read committed output, and for assets downstream of a stream.

They go through the stream's published table. `declared_stream` finds a stream by its name; its
`table()` is PyIceberg's, its `dataset()` an Arrow dataset of exactly the committed records, and its
`frame(spark)` a Spark DataFrame of them. `ReadOptions` lists the other options of both.
`window_paths` lists the files of hours of event time, with the store that `open_store` opens, and
`shard_partitions` are the partitions of a stream's asset, for assets that share them.
"""

from dagster_leasehold.assets.errors import OutputUnreadable, TableUnavailable
from dagster_leasehold.assets.output.committed_output import ReadOptions
from dagster_leasehold.assets.output.table.reading import EventSpan
from dagster_leasehold.assets.output.table.snapshot_contents import SnapshotContents
from dagster_leasehold.assets.output.table.whereabouts import RecordPlace
from dagster_leasehold.assets.partitions import shard_partitions
from dagster_leasehold.assets.windows.window_run import window_paths
from dagster_leasehold.lease_store import open_store
from dagster_leasehold.lease_store.errors import LogCorrupt, UnknownGroup, UnknownStream
from dagster_leasehold.lease_store.identifiers import ShardId
from dagster_leasehold.orchestration.deployed_stream import DeployedStream, declared_stream

__all__ = [
    "DeployedStream",
    "EventSpan",
    "LogCorrupt",
    "OutputUnreadable",
    "ReadOptions",
    "RecordPlace",
    "ShardId",
    "SnapshotContents",
    "TableUnavailable",
    "UnknownGroup",
    "UnknownStream",
    "declared_stream",
    "open_store",
    "shard_partitions",
    "window_paths",
]
