"""Side door for programs that read committed output, and for assets downstream of a stream.

They go through the stream's published table. `declared_stream` finds a stream by its name; its
`table()` is PyIceberg's, and its `dataset()` an Arrow dataset of exactly the committed records.
With a store of one's own, `committed_dataset` gives the same dataset, `read_committed` a Spark
DataFrame, `committed_paths` a list of files; `Choice` says what else can be asked of them.
`window_paths` lists the files of hours of event time, and `shard_partitions` are the partitions of
a stream's asset, for assets that share them.
"""

from dagster_leasehold.assets.errors import OutputUnreadable, TableUnavailable
from dagster_leasehold.assets.output.committed_output import (
    Choice,
    committed_dataset,
    committed_paths,
    read_committed,
)
from dagster_leasehold.assets.output.table.reading import EventSpan
from dagster_leasehold.assets.partitions import shard_partitions
from dagster_leasehold.assets.table_settings import CatalogSettings
from dagster_leasehold.assets.windows.window_run import window_paths
from dagster_leasehold.lease_store import open_store
from dagster_leasehold.lease_store.errors import LogCorrupt, UnknownGroup, UnknownStream
from dagster_leasehold.lease_store.identifiers import GroupKey, ShardId
from dagster_leasehold.orchestration.deployed_stream import DeployedStream, declared_stream

__all__ = [
    "CatalogSettings",
    "Choice",
    "DeployedStream",
    "EventSpan",
    "GroupKey",
    "LogCorrupt",
    "OutputUnreadable",
    "ShardId",
    "TableUnavailable",
    "UnknownGroup",
    "UnknownStream",
    "committed_dataset",
    "committed_paths",
    "declared_stream",
    "open_store",
    "read_committed",
    "shard_partitions",
    "window_paths",
]
