"""The interface of a source: the shards of a log, their bounds, and exact reads."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from functools import cache
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from dagster_leasehold.lease_store.identifiers import ShardId
from dagster_leasehold.lease_store.shard_rows import ShardListing

if TYPE_CHECKING:
    import pyarrow as pa


class Position(StrEnum):
    """A position in a shard without a cursor.

    Examples:
        >>> Position("begin") is Position.BEGIN
        True
    """

    BEGIN = "begin"
    END = "end"


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of one batch of one shard.

    Attributes:
        records_max: the most records.
        bytes_max: the most bytes of keys and values.

    Examples:
        >>> Limits(records_max=50_000).bytes_max
        268435456
    """

    records_max: int = 1_000_000
    bytes_max: int = 256 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class ShardBounds:
    """The range of cursors that a shard holds now.

    Attributes:
        begin: the cursor of the oldest record that the shard still has.
        end: the cursor after the newest record that can be read.
        finished: True if the shard is read-only and `end` is final.
        origin: the cursor of the first record that the shard ever had; None if unknown.
        removed: True if retention has removed the shard as a whole.

    Examples:
        >>> ShardBounds(begin="0", end="1000", finished=False).removed
        False
    """

    begin: str
    end: str
    finished: bool
    origin: str | None = None
    removed: bool = False


@dataclass(frozen=True, slots=True)
class PlannedRange:
    """The planned end of a batch.

    Attributes:
        end: the cursor after the last record, or the start of an empty batch.
        records: the number of records; an upper bound where cursors have holes.
        last: True if a read-only shard ends here.

    Examples:
        >>> PlannedRange("1000", records=1_000, last=False).end
        '1000'
    """

    end: str
    records: int
    last: bool


@dataclass(frozen=True, slots=True)
class ReadRange:
    """The records `[start, end)` of one shard; picklable, because it travels to Spark.

    Examples:
        >>> ReadRange(ShardId("0"), "0", "1000", records=1_000).end
        '1000'
    """

    shard: ShardId
    start: str
    end: str
    records: int = 0


class ShardReader(Protocol):
    """The part of a source that runs inside Spark's Python workers."""

    def read(self, range_: ReadRange) -> Iterator[pa.RecordBatch]:
        """Yield the records of a range in order, in batches of `record_schema()`.

        Reading a range again yields the same records.

        Raises:
            CursorExpired: retention has removed the start of the range.
            LogCorrupt: the stored bytes are damaged.
            SourceUnavailable: the service does not answer.
            SourceThrottled: the service throttles, and retries did not help.
            SourceRefused: the service refuses the credentials.
            UnknownShard, LogNotFound: the shard or the log does not exist.
        """
        ...


class ShardSource(ShardReader, Protocol):
    """A sharded log.

    Each method retries transient errors, can raise the errors of `read`, and never skips a record
    silently.
    """

    def list_shards(self) -> list[ShardListing]:
        """Return all shards that the log still lists, in order of creation.

        `gone_parents` are the parents that retention has removed as a whole. An ordered group does
        not wait for one that it never had.
        """
        ...

    def bounds(self, shards: Sequence[ShardId]) -> dict[ShardId, ShardBounds]:
        """Return the bounds of shards, in as few requests as the service allows."""
        ...

    def cursor_at(self, shard: ShardId, position: Position | datetime) -> str:
        """Return the cursor of the first record at or after a position."""
        ...

    def plan(self, shard: ShardId, start: str, limits: Limits) -> PlannedRange:
        """Return the end of the batch from `start`; it has at least one record if there is one.

        The plan is recorded before the batch is read. A source can read records to find the end.

        Raises:
            CursorExpired: retention has removed `start`.
            CursorInvalid: `start` is not a cursor of the shard.
        """
        ...

    def lag(self, shard: ShardId, cursor: str, bounds: ShardBounds) -> int | None:
        """Return the number of records from a cursor to the end; None if it is unknown."""
        ...

    def spark_options(self) -> Mapping[str, str]:
        """Return the options of the reader in a Spark worker.

        Spark shows them in query plans, so they contain no secret.
        """
        ...


@runtime_checkable
class ProgressMirror(Protocol):
    """A source that copies checkpoints to its service."""

    @property
    def mirrors(self) -> bool:
        """True if checkpoints are copied."""
        ...

    def mirror(self, checkpoints: Mapping[ShardId, str]) -> None:
        """Copy checkpoints to the service; a retry after a SourceError is safe."""
        ...


@runtime_checkable
class BoundedFromCursors(Protocol):
    """A source whose service does not report where a shard ends.

    Finding the end takes many reads; checking for a record after a cursor takes one.
    """

    def bounds_after(self, cursors: Mapping[ShardId, str]) -> dict[ShardId, ShardBounds]:
        """Return the bounds for readers at these cursors.

        `end` is the reader's cursor if no record follows, otherwise any later cursor. `begin` is
        the reader's cursor, or a later one if that has expired.
        """
        ...


@runtime_checkable
class TimedRecords(Protocol):
    """A source that can return the time of an unread record."""

    def times_at(self, cursors: Mapping[ShardId, str]) -> dict[ShardId, datetime]:
        """Return the time of the first record at or after each cursor, in few requests.

        It is when the service received the record, or the writer's time if only that is stored.
        Shards without such a record, or with an unknown time, are omitted.
        """
        ...


@runtime_checkable
class DivisibleRanges(Protocol):
    """A source whose ranges can be read in parallel parts.

    Its cursors are decimal numbers that grow from record to record.
    """

    def divide(self, range_: ReadRange, parts: int) -> list[ReadRange]:
        """Divide a range into consecutive parts of about equal size, each with its length.

        A range of few cursors has fewer parts.
        """
        ...


@runtime_checkable
class IdentifiedLog(Protocol):
    """A source whose cursors point to other records after its log was recreated.

    A source whose cursors contain the time does not need this, because they never repeat.
    """

    def log_identity(self) -> str | None:
        """Return an id that changes when a log is deleted and recreated; None if unknown."""
        ...


def identity_of_log(source: ShardSource) -> str | None:
    """Return the id of a source's log; None if unknown."""
    return source.log_identity() if isinstance(source, IdentifiedLog) else None


def bounds_for(
    source: ShardSource, cursors: Mapping[ShardId, str | None]
) -> dict[ShardId, ShardBounds]:
    """Return the bounds of shards with these readers' cursors, None for a reader not started."""
    if not isinstance(source, BoundedFromCursors):
        return source.bounds(list(cursors))
    started = {shard: cursor for shard, cursor in cursors.items() if cursor is not None}
    return {
        **source.bounds([shard for shard in cursors if shard not in started]),
        **source.bounds_after(started),
    }


def times_for(source: ShardSource, cursors: Mapping[ShardId, str]) -> dict[ShardId, datetime]:
    """Return the times of the records at these cursors, if the source has them."""
    return source.times_at(cursors) if cursors and isinstance(source, TimedRecords) else {}


@cache
def record_schema() -> pa.Schema:
    """Return the columns of every source's records.

    `shard_id` string, `cursor` string, `event_time` timestamp[us, UTC], `key` binary, `value`
    binary, `attributes` map<string, string>.

    Examples:
        >>> record_schema().names
        ['shard_id', 'cursor', 'event_time', 'key', 'value', 'attributes']
    """
    import pyarrow as pa

    return pa.schema(
        [
            pa.field("shard_id", pa.string()),
            pa.field("cursor", pa.string()),
            pa.field("event_time", pa.timestamp("us", tz="UTC")),
            pa.field("key", pa.binary()),
            pa.field("value", pa.binary()),
            pa.field("attributes", pa.map_(pa.string(), pa.string())),
        ]
    )
