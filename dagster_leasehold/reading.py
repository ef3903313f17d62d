"""Side door for programs that read committed output, and for assets downstream of a stream.

They go through the stream's published table: `committed_dataset` gives it as an Arrow dataset,
`read_committed` as a Spark DataFrame, `committed_paths` as a list of files. `Choice` says what else
can be asked of them. `window_paths` lists the files of hours of event time, `shard_partitions` are
the partitions of a stream's asset, for assets that share them, and `declared_stream` gives a stream
with all its settings by its name.
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
from dagster_leasehold.lease_store.errors import LogCorrupt, UnknownGroup
from dagster_leasehold.lease_store.identifiers import GroupKey, ShardId
from dagster_leasehold.orchestration.declared_streams import declared_stream

__all__ = [
    "CatalogSettings",
    "Choice",
    "EventSpan",
    "GroupKey",
    "LogCorrupt",
    "OutputUnreadable",
    "ShardId",
    "TableUnavailable",
    "UnknownGroup",
    "committed_dataset",
    "committed_paths",
    "declared_stream",
    "open_store",
    "read_committed",
    "shard_partitions",
    "window_paths",
]
