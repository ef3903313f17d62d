"""Records as they come from a reader: in exactly the promised columns, counted, in portions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from dagster_leasehold.assets.output.output_file import event_times
from dagster_leasehold.assets.output.worker_results import RangeStatistics
from dagster_leasehold.shard_sources.event_times import mistimed_cursors, readable
from dagster_leasehold.shard_sources.source import record_schema

if TYPE_CHECKING:
    import pyarrow as pa

PORTION_RECORDS = 65_536
PORTION_BYTES = 16 * 1024 * 1024


def exact(batch: pa.RecordBatch) -> list[pa.RecordBatch]:
    """Return a batch with exactly the columns, types and times that were promised.

    Spark checks the first batch of a task alone; a later one of another form would fail deep
    inside its reader.
    """
    import pyarrow as pa

    schema = record_schema()
    if batch.schema.equals(schema):
        return [readable(batch)]
    table = pa.Table.from_batches([batch]).select(schema.names)
    return [readable(part) for part in table.cast(schema).to_batches()]


def portions(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
    """Yield records in order, in tables of some ten thousand records or some megabytes.

    A transform is called once for each; memory is bounded by them.
    """
    import pyarrow as pa

    waiting: list[pa.RecordBatch] = []
    records = size = 0
    for batch in batches:
        for part in exact(batch):
            waiting.append(part)
            records, size = records + part.num_rows, size + part.nbytes
        if records >= PORTION_RECORDS or size >= PORTION_BYTES:
            yield pa.Table.from_batches(waiting)
            waiting, records, size = [], 0, 0
    if waiting:
        yield pa.Table.from_batches(waiting)


def add(seen: RangeStatistics, rows: pa.RecordBatch | pa.Table) -> RangeStatistics:
    """Return statistics that include some more records."""
    first, last = event_times(rows)
    mistimed = mistimed_cursors(rows)
    at = mistimed[0] if mistimed else ""
    own = RangeStatistics(rows.num_rows, _payload(rows), first, last, len(mistimed), at)
    return seen.plus(own)


def _payload(rows: pa.RecordBatch | pa.Table) -> int:
    """Return the bytes of keys and values, from the ends of their offsets."""
    columns = [rows.column(name) for name in ("key", "value")]
    chunks = [chunk for column in columns for chunk in getattr(column, "chunks", [column])]
    return sum(chunk.total_values_length for chunk in chunks)
