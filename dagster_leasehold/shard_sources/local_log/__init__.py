"""A sharded log in a folder: append, split, merge, retention, and exact reads as Arrow batches.

`registry` and the commands that write to such a log import this package.
"""

from dagster_leasehold.shard_sources.local_log.format import Record
from dagster_leasehold.shard_sources.local_log.log import LocalLog
from dagster_leasehold.shard_sources.local_log.reading import LocalLogReader

__all__ = ["LocalLog", "LocalLogReader", "Record"]
