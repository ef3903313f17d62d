"""A sharded log in a folder: append, split, merge, retention, and exact reads as Arrow batches."""

from dagster_leasehold.shard_sources.local_log.format import RECORD_BYTES_MAX, Record
from dagster_leasehold.shard_sources.local_log.lines import Spread
from dagster_leasehold.shard_sources.local_log.log import LocalLog
from dagster_leasehold.shard_sources.local_log.source import LocalLogReader
from dagster_leasehold.shard_sources.local_log.writing import AppendedRange, ShardWriter

__all__ = [
    "RECORD_BYTES_MAX",
    "AppendedRange",
    "LocalLog",
    "LocalLogReader",
    "Record",
    "ShardWriter",
    "Spread",
]
