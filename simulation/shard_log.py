"""A sharded log as numbers: shards with lineage, and how many records each has."""

from __future__ import annotations

from dataclasses import dataclass

from dagster_leasehold.lease_store.identifiers import ShardId
from dagster_leasehold.lease_store.shard_rows import ShardListing


@dataclass(slots=True)
class LogShard:
    """One shard: its records are the numbers from 0 to `end`."""

    shard: ShardId
    parents: tuple[ShardId, ...] = ()
    end: int = 0
    read_only: bool = False


class ShardLog:
    """A log that grows, splits and merges; `version` rises with every change of the shard list."""

    def __init__(self, shards: int) -> None:
        self.shards: dict[ShardId, LogShard] = {}
        self.version = 0
        for _ in range(shards):
            self._add(())

    def _add(self, parents: tuple[ShardId, ...]) -> LogShard:
        shard = ShardId(str(len(self.shards)))
        self.shards[shard] = LogShard(shard, parents)
        self.version += 1
        return self.shards[shard]

    def open_shards(self) -> list[LogShard]:
        """Return the shards that still take records, in order of creation."""
        return [shard for shard in self.shards.values() if not shard.read_only]

    def listing(self) -> list[ShardListing]:
        """Return the shard list as a source would give it."""
        return [
            ShardListing(shard.shard, shard.parents, read_only=shard.read_only)
            for shard in self.shards.values()
        ]

    def append(self, shard: LogShard, records: int) -> None:
        """Add records at the end of an open shard."""
        assert not shard.read_only
        shard.end += records

    def split(self, shard: LogShard) -> tuple[LogShard, LogShard]:
        """Close a shard; two children continue it."""
        shard.read_only = True
        return self._add((shard.shard,)), self._add((shard.shard,))

    def merge(self, left: LogShard, right: LogShard) -> LogShard:
        """Close two shards; one child continues them."""
        left.read_only = right.read_only = True
        return self._add((left.shard, right.shard))
