"""Converts a reader's records to the record schema, in portions of limited size.

Spark's tasks call it, in `range_tasks` and `frame_tasks`.
"""

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
    """Return a batch in exactly the record schema.

    Spark checks only the first batch of a task. A later batch with another schema would cause an
    internal error of Spark. Event times outside the years 1 to 9999 move into the attributes, as
    text.
    """
    import pyarrow as pa

    schema = record_schema()
    if batch.schema.equals(schema):
        return [readable(batch)]
    table = pa.Table.from_batches([batch]).select(schema.names)
    return [readable(part) for part in table.cast(schema).to_batches()]


def portions(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
    """Yield records in order, in tables of limited size.

    The transform is called once per table, so the size limits its memory.
    """
    import pyarrow as pa

    parts: list[pa.RecordBatch] = []
    records = size = 0
    for batch in batches:
        for part in exact(batch):
            parts.append(part)
            records, size = records + part.num_rows, size + part.nbytes
        if records >= PORTION_RECORDS or size >= PORTION_BYTES:
            yield pa.Table.from_batches(parts)
            parts, records, size = [], 0, 0
    if parts:
        yield pa.Table.from_batches(parts)


def add(statistics: RangeStatistics, rows: pa.RecordBatch | pa.Table) -> RangeStatistics:
    """Return the statistics with these rows added."""
    first, last = event_times(rows)
    mistimed = mistimed_cursors(rows)
    mistimed_at = mistimed[0] if mistimed else ""
    own = RangeStatistics(rows.num_rows, _payload(rows), first, last, len(mistimed), mistimed_at)
    return statistics.plus(own)


def _payload(rows: pa.RecordBatch | pa.Table) -> int:
    """Return the size of keys and values in bytes, without reading them."""
    columns = [rows.column(name) for name in ("key", "value")]
    chunks = [chunk for column in columns for chunk in getattr(column, "chunks", [column])]
    return sum(chunk.total_values_length for chunk in chunks)
