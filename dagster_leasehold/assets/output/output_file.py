"""One Parquet file of rows, written in row groups of a bounded size.

The files of a commit must be durable before the commit. `sync` makes the content of a file
durable; the caller then syncs its folder, which makes the name durable.
"""

from __future__ import annotations

import contextlib
from collections.abc import Generator
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any

from dagster_leasehold.assets.arrow_transform import ERROR_COLUMN, QUARANTINE_COLUMNS, SHARD_COLUMN
from dagster_leasehold.assets.errors import TransformError
from dagster_leasehold.assets.output.readable_values import unreadable
from dagster_leasehold.assets.output.table.columns import (
    Column,
    columns_of,
    in_stored_types,
    of_route,
    stored_schema,
)
from dagster_leasehold.assets.output.table.partition_values import Partition
from dagster_leasehold.assets.output.worker_results import WrittenFile, earliest, latest
from dagster_leasehold.assets.places.place import OutputPlace
from dagster_leasehold.lease_store.errors import one_line, shown
from dagster_leasehold.lease_store.identifiers import ShardId
from dagster_leasehold.shard_sources.event_times import outside_calendar, without
from dagster_leasehold.shard_sources.source import record_schema

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq

RECORD_DDL = (
    "shard_id string, cursor string, event_time timestamp, key binary, value binary, "
    "attributes map<string, string>"
)
"""The columns of `shard_sources.source.record_schema` in Spark."""
TIME_COLUMN, CURSOR_COLUMN = "event_time", "cursor"
COMPRESSION = "zstd"
SYNCS_AT_ONCE = 8
"""The most files that are made durable at once. A file system needs hardly more time for them than
for one file, and an object store receives uploads in parallel."""
ROW_GROUP_BYTES = 32 * 1024 * 1024
_REPEATED = (SHARD_COLUMN, TIME_COLUMN, "attributes.key_value.key", "attributes.key_value.value")
"""The columns with repeated values. For others, Parquet would build a dictionary and drop it."""


class OutputFile:
    """A file of one shard, and the rows of its next row group.

    Args:
        place: the file, whose name is unique.
        quarantine: True for records that could not be parsed.
        partition: the values of the partition, if the rows are divided.
        route: the route of the rows; empty for none.
        columns: all columns of the rows of a route, also those that the file lacks.

    Raises:
        FileExistsError: the file exists.
        TransformError: a table cannot have one of the columns.
    """

    def __init__(
        self,
        shard: ShardId,
        place: OutputPlace,
        schema: pa.Schema,
        *,
        quarantine: bool,
        partition: Partition = (),
        route: str = "",
        columns: tuple[Column, ...] = (),
    ) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        self.buffered_bytes = 0
        self._shard = shard
        self._name = place.name
        self._schema, self._columns = (schema, ()) if quarantine else _stored(schema)
        self._quarantine = quarantine
        self._partition = partition
        self.given = schema
        if route:
            self._columns = of_route(columns, route, {*schema.names})
        self._records = 0
        self._buffered: list[pa.RecordBatch] = []
        self._first: datetime | None = None
        self._last: datetime | None = None
        self._untimed = self._mistimed = 0
        self._mistimed_at = ""
        self._file = place.create()
        repeated = [*_REPEATED] if schema.equals(record_schema()) else True
        try:
            self._writer = pq.ParquetWriter(
                self._file.sink,
                self._schema,
                compression=COMPRESSION,
                use_dictionary=repeated,  # pyright: ignore[reportArgumentType]
            )
        except pa.ArrowException as error:
            self._file.abandon()
            raise self._not_parquet(error) from error

    def add(self, rows: pa.RecordBatch) -> None:
        """Append rows, and write full row groups.

        Raises:
            TransformError: a value does not fit the type of its column in a table.
        """
        rows = self._in_calendar(rows)
        if not self._quarantine:
            rows = in_stored_types(rows, self._schema)
        self._buffered.append(rows)
        self._records += rows.num_rows
        self._untimed += untimed(rows)
        self.buffered_bytes += rows.nbytes
        if self.buffered_bytes >= ROW_GROUP_BYTES:
            self.flush()

    def _in_calendar(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Replace event times outside the years 1 to 9999 with null."""
        at = rows.schema.get_field_index(TIME_COLUMN)
        times = rows.column(at) if at >= 0 else None
        outside = None if times is None else outside_calendar(times)
        if outside is None:
            return rows
        if not self._mistimed_at and CURSOR_COLUMN in rows.schema.names:
            self._mistimed_at = str(rows.column(CURSOR_COLUMN).filter(outside)[0].as_py())
        self._mistimed += outside.true_count
        return rows.set_column(at, rows.schema.field(at), without(times, outside))

    def flush(self) -> None:
        """Write the rows in memory as one row group."""
        import pyarrow as pa

        if not self._buffered:
            return
        rows = pa.Table.from_batches(self._buffered, self._schema)
        self._buffered, self.buffered_bytes = [], 0
        first, last = event_times(rows)
        self._first, self._last = earliest(self._first, first), latest(self._last, last)
        try:
            self._writer.write_table(rows)
        except pa.ArrowException as error:
            raise self._not_parquet(error) from error

    def finish(self) -> WrittenFile:
        """Complete the file, which `sync` makes durable."""
        self.flush()
        self._writer.close()
        return WrittenFile(
            self._shard,
            self._name,
            self._records,
            self._file.written(),
            self._quarantine,
            self._first,
            self._last,
            self._untimed,
            self._columns,
            self._mistimed,
            self._mistimed_at,
            partition=dict(self._partition),
        )

    def sync(self) -> None:
        """Make the content of a complete file durable, and close it."""
        self._file.sync()

    def _not_parquet(self, error: Exception) -> TransformError:
        return TransformError(
            f"The output of shard {self._shard} cannot be written as Parquet "
            f"({one_line(str(error))}): return columns of other types."
        )

    def abandon(self) -> None:
        """Close and delete the unfinished file."""
        # It is also deleted if it cannot be closed, for example because the disk is full.
        with contextlib.suppress(Exception):
            self._writer.close()
        self._file.abandon()


def in_stored_columns(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Return rows in the types with which a file stores them.

    Raises:
        TransformError: no table can have one of the columns, or a value.
    """
    return in_stored_types(rows, _stored(rows.schema)[0])


def stored_columns(schema: pa.Schema) -> tuple[Column, ...]:
    """Return the columns with which a file stores rows of this schema."""
    return _stored(schema)[1]


@lru_cache(maxsize=64)
def _stored(schema: pa.Schema) -> tuple[pa.Schema, tuple[Column, ...]]:
    stored = stored_schema(schema)
    return stored, tuple(columns_of(stored))


@cache
def sync_pool() -> Executor:
    """Return the threads of this process that make files durable.

    They are kept, because starting them takes longer than a small task.
    """
    return ThreadPoolExecutor(SYNCS_AT_ONCE, thread_name_prefix="sync")


@dataclass
class NewParquet:
    """A new Parquet file, and its size once it is complete."""

    writer: pq.ParquetWriter
    bytes: int = 0


@contextlib.contextmanager
def new_parquet(place: OutputPlace, schema: pa.Schema) -> Generator[NewParquet]:
    """Write a new Parquet file, which is durable after the block and deleted after an error."""
    import pyarrow.parquet as pq

    file = place.create()
    try:
        with pq.ParquetWriter(file.sink, schema, compression=COMPRESSION) as writer:
            new = NewParquet(writer)
            yield new
        new.bytes = file.written()
        file.sync()
    except BaseException:
        file.abandon()
        raise


def quarantined_and_good(rows: pa.RecordBatch) -> tuple[pa.RecordBatch | None, pa.RecordBatch]:
    """Return the rows with an error (None for none), and the rows without an error.

    A value that some table reader cannot read is also an error. Rows with an error have the columns
    of quarantine.

    Raises:
        TransformError: a row has such a value, and lacks a column that quarantine needs.
    """
    import pyarrow.compute

    # Its functions are defined at run time, which a type checker cannot see.
    pc: Any = pyarrow.compute

    rows = _with_unreadable(rows)
    if ERROR_COLUMN not in rows.schema.names:
        return None, rows
    errors = rows.column(ERROR_COLUMN)
    good = rows.drop_columns([ERROR_COLUMN])
    if errors.null_count == len(errors):
        return None, good
    failed = pc.is_valid(errors)
    bad = _with_moments(rows.filter(failed).select(list(QUARANTINE_COLUMNS)))
    return bad.rename_columns([*QUARANTINE_COLUMNS[:-1], "error"]), good.filter(pc.invert(failed))


def _with_moments(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Return rows with event times in the type of records, or null if that is impossible."""
    import pyarrow as pa

    at, kind = rows.schema.get_field_index(TIME_COLUMN), record_schema().field(TIME_COLUMN).type
    times = rows.column(at)
    if times.type.equals(kind):
        return rows
    if not pa.types.is_timestamp(times.type):
        return rows.set_column(at, TIME_COLUMN, pa.nulls(rows.num_rows, kind))
    outside = outside_calendar(times)
    times = times if outside is None else without(times, outside)
    return rows.set_column(at, TIME_COLUMN, times.cast(kind, safe=False))


def _with_unreadable(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Add an error to each row with a value that some reader cannot read."""
    import pyarrow as pa
    import pyarrow.compute

    pc: Any = pyarrow.compute

    for field, column in zip(rows.schema, rows.columns, strict=True):
        # An event time is stored as null instead.
        own_time = field.name == TIME_COLUMN and pa.types.is_timestamp(field.type)
        bad = None if own_time else unreadable(column)
        if bad is None:
            continue
        reason = (
            f"Column {shown(field.name)} holds a time outside the years 1 to 9999, or a map with "
            "the same key twice"
        )
        missing = [name for name in QUARANTINE_COLUMNS[:-1] if name not in rows.schema.names]
        if missing:
            raise TransformError(
                f"{reason}, which some readers of the table cannot read: return other values, or "
                f"keep {', '.join(missing)}, so that the record can go to quarantine."
            )
        error = pc.if_else(bad, pa.scalar(reason), pa.scalar(None, pa.string()))
        at = rows.schema.get_field_index(ERROR_COLUMN)
        if at < 0:
            rows = rows.append_column(ERROR_COLUMN, error)
        else:
            rows = rows.set_column(at, ERROR_COLUMN, pc.coalesce(rows.column(at), error))
    return rows


def untimed(rows: pa.RecordBatch | pa.Table) -> int:
    """Return the number of rows without an event time."""
    at = rows.schema.get_field_index(TIME_COLUMN)
    return rows.column(at).null_count if at >= 0 else rows.num_rows


def event_times(rows: pa.RecordBatch | pa.Table) -> tuple[datetime | None, datetime | None]:
    """Return the smallest and largest event time of rows; None without times with a zone."""
    import pyarrow as pa
    import pyarrow.compute

    pc: Any = pyarrow.compute

    at = rows.schema.get_field_index(TIME_COLUMN)
    if at < 0 or not (pa.types.is_timestamp(kind := rows.schema.field(at).type) and kind.tz):
        return None, None
    bounds = pc.min_max(rows.column(at))
    exact = pa.timestamp("us", tz="UTC")
    first, last = (bounds[side].cast(exact, safe=False).as_py() for side in ("min", "max"))
    return first, last
