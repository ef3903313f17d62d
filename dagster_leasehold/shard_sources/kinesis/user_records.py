"""A shard's records as producers sent them, and as Arrow batches."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from dagster_leasehold.lease_store.identifiers import ShardId
from dagster_leasehold.shard_sources.kinesis.aggregation import Part, unpack
from dagster_leasehold.shard_sources.kinesis.cursors import Place, at
from dagster_leasehold.shard_sources.kinesis.paging import StoredRecord
from dagster_leasehold.shard_sources.record_columns import RecordColumns

if TYPE_CHECKING:
    import pyarrow as pa

ROWS_PER_BATCH = 2_000


@dataclass(frozen=True, slots=True)
class HashRange:
    """The hashes of a shard, both ends included."""

    first: int
    last: int

    def holds(self, hash_key: int) -> bool:
        """Return True if a record with this hash belongs to the shard."""
        return self.first <= hash_key <= self.last


@dataclass(frozen=True, slots=True)
class UserRecord:
    """A record as its producer sent it, its place in the shard, and the place after it."""

    place: Place
    following: Place
    arrived: datetime
    part: Part
    aggregated: bool = False
    encryption: str = ""

    @property
    def size(self) -> int:
        """Bytes of key and value."""
        return len(self.part.partition_key.encode()) + len(self.part.data)

    def attributes(self) -> dict[str, str]:
        """Return all else that the record carries beside key, value and time."""
        own = {"partition_key": self.part.partition_key, "sequence_number": str(self.place.number)}
        if self.aggregated:
            own["sub_sequence_number"] = str(self.place.part)
        if self.part.explicit_hash_key is not None:
            own["explicit_hash_key"] = self.part.explicit_hash_key
        if self.encryption and self.encryption != "NONE":
            own["encryption_type"] = self.encryption
        return {**self.part.tags, **own}


def user_records(stored: StoredRecord, hashes: HashRange | None) -> list[UserRecord]:
    """The records in one that the service stores; one that was not packed stands for itself.

    A packed record whose hash the shard does not have is left out: it was packed before a split or
    merge, and its producer was told so and sends it again to where it belongs.
    """
    parts = unpack(stored.data)
    if parts is None:
        own = Part(stored.partition_key, stored.data)
        place, following = at(stored.number), stored.following
        return [UserRecord(place, following, stored.arrived, own, encryption=stored.encryption)]
    last = len(parts) - 1
    return [
        UserRecord(
            place=at(stored.number, index),
            following=stored.following if index == last else at(stored.number, index + 1),
            arrived=stored.arrived,
            part=part,
            aggregated=True,
            encryption=stored.encryption,
        )
        for index, part in enumerate(parts)
        if hashes is None or hashes.holds(part.hash_key)
    ]


def batch_of(shard: str, records: Sequence[UserRecord]) -> pa.RecordBatch:
    """Records as one batch of `record_schema()`."""
    columns = RecordColumns(ShardId(shard))
    columns.cursors += [str(record.place) for record in records]
    columns.times += [record.arrived for record in records]
    columns.keys += [record.part.partition_key.encode() for record in records]
    columns.add_values([record.part.data for record in records])
    for record in records:
        columns.add_attributes(record.attributes())
    return columns.batch()


def batches_of(shard: str, records: Iterable[UserRecord]) -> Iterator[pa.RecordBatch]:
    """Records in batches of a size that Spark's workers like."""
    held: list[UserRecord] = []
    size = 0
    for record in records:
        held.append(record)
        size += record.size
        if len(held) >= ROWS_PER_BATCH or size >= 8 * 1024 * 1024:
            yield batch_of(shard, held)
            held, size = [], 0
    if held:
        yield batch_of(shard, held)
