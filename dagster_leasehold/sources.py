"""Side door for authors of sources: the contract of a source, and what its answers are made of.

A source implements `ShardSource` and is described by a `SourceKind`, which a package names under
the entry point group `leasehold.sources`. It lists its shards as `ShardListing`s, says in
`ShardBounds` what they hold, fixes where a batch ends as a `PlannedRange`, and reads a `ReadRange`
as Arrow batches of `record_schema()`.
"""

from dagster_leasehold.lease_store.errors import (
    CursorExpired,
    CursorInvalid,
    LogCorrupt,
    SourceError,
    SourceRefused,
    SourceThrottled,
    SourceUnavailable,
    UnknownShard,
)
from dagster_leasehold.lease_store.identifiers import ShardId, StreamName
from dagster_leasehold.lease_store.shard_rows import ShardListing
from dagster_leasehold.shard_sources.local_log import Record
from dagster_leasehold.shard_sources.positions import divide_offsets, parse_offset
from dagster_leasehold.shard_sources.registry import SourceKind, StreamPlace
from dagster_leasehold.shard_sources.retrying import ask
from dagster_leasehold.shard_sources.source import (
    BoundedFromCursors,
    DivisibleRanges,
    Limits,
    PlannedRange,
    Position,
    ProgressMirror,
    ReadRange,
    ShardBounds,
    ShardReader,
    ShardSource,
    TimedRecords,
    record_schema,
)

__all__ = [
    "BoundedFromCursors",
    "CursorExpired",
    "CursorInvalid",
    "DivisibleRanges",
    "Limits",
    "LogCorrupt",
    "PlannedRange",
    "Position",
    "ProgressMirror",
    "ReadRange",
    "Record",
    "ShardBounds",
    "ShardId",
    "ShardListing",
    "ShardReader",
    "ShardSource",
    "SourceError",
    "SourceKind",
    "SourceRefused",
    "SourceThrottled",
    "SourceUnavailable",
    "StreamName",
    "StreamPlace",
    "TimedRecords",
    "UnknownShard",
    "ask",
    "divide_offsets",
    "parse_offset",
    "record_schema",
]
