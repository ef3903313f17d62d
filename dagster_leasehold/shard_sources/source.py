"""The contract of a source of a sharded log: its shards, their bounds, and exact reads."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from functools import cache
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from dagster_leasehold.lease_store.identifiers import ShardId
from dagster_leasehold.lease_store.shard_rows import ShardListing

if TYPE_CHECKING:
    import pyarrow as pa

_JOINED_RECORDS = 8192
_JOINED_BYTES = 4 * 1024 * 1024


class Position(StrEnum):
    """A place in a shard that needs no cursor.

    Examples:
        >>> Position("begin") is Position.BEGIN
        True
    """

    BEGIN = "begin"
    END = "end"


@dataclass(frozen=True, slots=True)
class Limits:
    """The largest size of one batch of one shard.

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
    """The cursors between which a shard holds records now.

    Attributes:
        begin: the cursor of the first record that retention has kept.
        end: the cursor after the last record that can be read.
        finished: the shard is read-only, so that `end` no longer moves.
        origin: the cursor of the first record that the shard ever had, where the source knows it.
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
    """The end of a batch that starts at a given cursor, within limits.

    Attributes:
        end: the cursor after the last record of the batch; equal to the start when there is none.
        records: the number of records in it; where the service numbers records with holes, the
            most that it can hold.
        last: a read-only shard ends here.

    Examples:
        >>> PlannedRange("1000", records=1_000, last=False).end
        '1000'
    """

    end: str
    records: int
    last: bool


@dataclass(frozen=True, slots=True)
class ReadRange:
    """The records `[start, end)` of one shard; plain and picklable, it travels to Spark.

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
        """The records of a range, in order, in batches of `record_schema()`.

        Reading the same range again yields the same records.

        Raises:
            CursorExpired: retention has removed the start of the range.
            LogCorrupt: the stored bytes are damaged.
            SourceUnavailable: the service does not answer.
            SourceThrottled: it asks for patience, and asking again did not help.
            SourceRefused: it does not accept the credentials.
            UnknownShard, LogNotFound: there is no such shard, or no such log.
        """
        ...


class ShardSource(ShardReader, Protocol):
    """A sharded log.

    Every call can raise what `read` raises, and asks the service again by itself where that can
    help. None of them leaves a record out without an error.
    """

    def list_shards(self) -> list[ShardListing]:
        """All shards that the log still knows, in order of creation.

        An ordered group waits for every parent that a listing names. So one that retention has
        removed as a whole is named among `gone_parents`, too.
        """
        ...

    def bounds(self, shards: Sequence[ShardId]) -> dict[ShardId, ShardBounds]:
        """The bounds of these shards, in as few calls as the service allows."""
        ...

    def cursor_at(self, shard: ShardId, position: Position | datetime) -> str:
        """The cursor of the first record at or after a position."""
        ...

    def plan(self, shard: ShardId, start: str, limits: Limits) -> PlannedRange:
        """Fix the end of a batch that starts at `start`: at least one record, if there is any.

        This comes before anything is recorded or read. A source whose service cannot
        say where a number of bytes or records ends looks for itself, by reading.

        Raises:
            CursorExpired: retention has removed `start`.
            CursorInvalid: `start` is not a cursor of the shard.
        """
        ...

    def lag(self, shard: ShardId, cursor: str, bounds: ShardBounds) -> int | None:
        """Records between a cursor and the end; None where the service cannot tell."""
        ...

    def spark_options(self) -> Mapping[str, str]:
        """Return the options of the reader in a Spark worker.

        Spark shows them in query plans, so that none of them can be a secret.
        """
        ...


@runtime_checkable
class ProgressMirror(Protocol):
    """The part of a source whose service can be told how far its records are committed."""

    @property
    def mirrors(self) -> bool:
        """True if the service is to be told."""
        ...

    def mirror(self, checkpoints: Mapping[ShardId, str]) -> None:
        """Tell the service the checkpoints of these shards.

        Raises:
            SourceError: it could not be told; telling it again later is safe.
        """
        ...


@runtime_checkable
class BoundedFromCursors(Protocol):
    """The part of a source whose service does not tell where a shard ends.

    To find the end of a shard it has to be read; whether anything follows a cursor is one look.
    """

    def bounds_after(self, cursors: Mapping[ShardId, str]) -> dict[ShardId, ShardBounds]:
        """Bounds as far as readers at these cursors need them.

        `end` is the reader's own cursor where nothing follows it now, and otherwise some later
        cursor: not the last. `begin` is the reader's cursor, or later where it has expired.
        """
        ...


@runtime_checkable
class TimedRecords(Protocol):
    """The part of a source that can tell how old an unread record is."""

    def times_at(self, cursors: Mapping[ShardId, str]) -> dict[ShardId, datetime]:
        """The time of the first record at or after each cursor, in as few calls as possible.

        It is the time when the service took the record; where it keeps only the writer's, that.
        A shard is left out where there is no such record, or where its time is unknown.
        """
        ...


@runtime_checkable
class DivisibleRanges(Protocol):
    """The part of a source whose ranges can be read in parts, side by side.

    Its cursors are decimal numbers that grow from record to record.
    """

    def divide(self, range_: ReadRange, parts: int) -> list[ReadRange]:
        """Cut a range into parts of about the same size, in order, each with its length.

        Each begins where the one before ends, and read one after the other they yield what the
        range yields. There are fewer where it has fewer cursors than parts.
        """
        ...


@runtime_checkable
class IdentifiedLog(Protocol):
    """The part of a source whose cursors mean other records once the log was recreated.

    A log whose cursors never come again, because they hold the time, needs none of it.
    """

    def log_identity(self) -> str | None:
        """Return what differs in a log that was deleted and recreated under its old name.

        None where the service does not tell.
        """
        ...


def identity_of_log(source: ShardSource) -> str | None:
    """Return the identity of a source's log; None if unknown."""
    return source.log_identity() if isinstance(source, IdentifiedLog) else None


def bounds_for(
    source: ShardSource, cursors: Mapping[ShardId, str | None]
) -> dict[ShardId, ShardBounds]:
    """The bounds of shards whose readers stand at these cursors, or have not begun (None)."""
    if not isinstance(source, BoundedFromCursors):
        return source.bounds(list(cursors))
    begun = {shard: cursor for shard, cursor in cursors.items() if cursor is not None}
    fresh = [shard for shard, cursor in cursors.items() if cursor is None]
    return {**source.bounds(fresh), **source.bounds_after(begun)}


def times_for(source: ShardSource, cursors: Mapping[ShardId, str]) -> dict[ShardId, datetime]:
    """The times of the records at these cursors; none where the source cannot tell."""
    return source.times_at(cursors) if cursors and isinstance(source, TimedRecords) else {}


@cache
def record_schema() -> pa.Schema:
    """The columns that every source yields.

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


def no_attributes(count: int) -> pa.Array:
    """Return the column `attributes` of records that have none, without an object per record."""
    import pyarrow as pa

    no_text = pa.array([], pa.string())
    starts = pa.repeat(pa.scalar(0, pa.int32()), count + 1)
    return pa.MapArray.from_arrays(starts, no_text, no_text)


def joined(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Put small batches together, in order, to some thousand records or a few megabytes each."""
    pending: list[pa.RecordBatch] = []
    records = size = 0
    for batch in batches:
        pending.append(batch)
        records, size = records + batch.num_rows, size + batch.nbytes
        if records >= _JOINED_RECORDS or size >= _JOINED_BYTES:
            yield from _one_batch(pending)
            pending, records, size = [], 0, 0
    if pending:
        yield from _one_batch(pending)


def _one_batch(batches: Sequence[pa.RecordBatch]) -> list[pa.RecordBatch]:
    """Return the same records in one batch, or in a few where one could not hold them."""
    import pyarrow as pa

    return pa.Table.from_batches(batches).combine_chunks().to_batches()
