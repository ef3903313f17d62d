"""The shards of a stream, its age and its retention."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Self

from dagster_leasehold.lease_store.errors import UnknownShard, shown
from dagster_leasehold.lease_store.identifiers import ShardId
from dagster_leasehold.lease_store.shard_rows import ShardListing
from dagster_leasehold.shard_sources.kinesis.cursors import created_s
from dagster_leasehold.shard_sources.kinesis.service import KinesisService, service_time
from dagster_leasehold.shard_sources.kinesis.user_records import HashRange
from dagster_leasehold.shard_sources.positions import was_removed

SUMMARY_AGE_MAX_S = 300.0
SHARDS_PER_CALL = 1_000
_LAST_HASH = (1 << 128) - 1
_NUMBERED = re.compile(r"shardId-([0-9]{12})", re.ASCII)


@dataclass(frozen=True, slots=True)
class KinesisShard:
    """A shard as the service lists it; `created_s` is None if its numbers do not contain it."""

    shard: ShardId
    parents: tuple[ShardId, ...]
    hashes: HashRange
    closed: bool
    created_s: int | None

    @classmethod
    def from_answer(cls, entry: Mapping[str, Any]) -> Self:
        """Return the shard of a ListShards entry."""
        names = (entry.get("ParentShardId"), entry.get("AdjacentParentShardId"))
        hashes, numbers = entry["HashKeyRange"], entry["SequenceNumberRange"]
        return cls(
            shard=ShardId(entry["ShardId"]),
            parents=tuple(ShardId(name) for name in names if name),
            hashes=HashRange(int(hashes["StartingHashKey"]), int(hashes["EndingHashKey"])),
            closed="EndingSequenceNumber" in numbers,
            created_s=created_s(int(numbers["StartingSequenceNumber"])),
        )

    def listing(self, listed: Collection[ShardId]) -> ShardListing:
        """Return the shard as every source lists it, with hashes `[begin, end)` in hexadecimal.

        `listed` has all shards of the stream; a parent that it lacks was removed.
        """
        end = self.hashes.last + 1 if self.hashes.last < _LAST_HASH else _LAST_HASH
        return ShardListing(
            shard=self.shard,
            parents=self.parents,
            hash_begin=f"{self.hashes.first:032x}",
            hash_end=f"{end:032x}",
            read_only=self.closed,
            gone_parents=tuple(parent for parent in self.parents if parent not in listed),
        )


@dataclass(frozen=True, slots=True)
class _Summary:
    retention_s: float
    created: datetime
    moment: datetime | None


class Shards:
    """The shards of a stream; facts that do not change are cached."""

    def __init__(
        self, service: KinesisService, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._service = service
        self._clock = clock
        self._lock = threading.Lock()
        self._hashes: dict[ShardId, HashRange] = {}
        self._summary: tuple[float, _Summary] | None = None

    def all(self) -> dict[ShardId, KinesisShard]:
        """Return all shards that the service lists, in order of creation."""
        shards: dict[ShardId, KinesisShard] = {}
        arguments: dict[str, object] = {}
        while True:
            answer = self._service.call("list_shards", MaxResults=SHARDS_PER_CALL, **arguments)
            for entry in answer["Shards"]:
                shard = KinesisShard.from_answer(entry)
                shards[shard.shard] = shard
                self._hashes[shard.shard] = shard.hashes
            token = answer.get("NextToken")
            if not token:
                return dict(sorted(shards.items()))
            arguments = {"NextToken": token}

    def hashes(self, shard: ShardId) -> HashRange | None:
        """Return the hashes of a shard; None if it was removed."""
        if shard not in self._hashes:
            self.all()
        return self._hashes.get(shard)

    def retention_s(self) -> float:
        """Return the stream's retention period, in seconds."""
        return self._stream().retention_s

    def untrimmed(self, shard: KinesisShard) -> bool:
        """Return True if no record of a shard is old enough to be removed."""
        summary = self._stream()
        if summary.moment is None:
            return False
        youngest = max(summary.created.timestamp(), shard.created_s or 0)
        age_s = summary.moment.timestamp() + SUMMARY_AGE_MAX_S - youngest
        return age_s < summary.retention_s

    def _stream(self) -> _Summary:
        with self._lock:
            if self._summary is None or self._clock() - self._summary[0] > SUMMARY_AGE_MAX_S:
                answer = self._service.call("describe_stream_summary")
                stream = answer["StreamDescriptionSummary"]
                summary = _Summary(
                    retention_s=stream["RetentionPeriodHours"] * 3600.0,
                    created=stream["StreamCreationTimestamp"],
                    moment=service_time(answer),
                )
                self._summary = (self._clock(), summary)
            return self._summary[1]


def removed(shard: ShardId, listed: Mapping[ShardId, object]) -> bool:
    """Return True if a shard was removed; raise UnknownShard if it never existed."""
    if shard in listed:
        return False
    match = _NUMBERED.fullmatch(shard)
    numbers = (int(m[1]) for name in listed if (m := _NUMBERED.fullmatch(name)))
    if match is None or not was_removed(int(match[1]), numbers):
        raise UnknownShard(f"The stream never had a shard {shown(shard)}.")
    return True
