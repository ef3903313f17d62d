"""Records in quarantine, in files that the ledger names: they are in no table."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from dagster_leasehold.assets.output.attempts import unreadable
from dagster_leasehold.assets.places.address import Output, output_place
from dagster_leasehold.assets.places.place import OutputPlace
from dagster_leasehold.lease_store.identifiers import GroupKey, ShardId
from dagster_leasehold.lease_store.ledger_rows import Batch
from dagster_leasehold.lease_store.roles.ledger import Ledger

ROWS_PER_READ = 256


@dataclass(frozen=True, slots=True)
class QuarantinedRecord:
    """A record that could not be parsed, as it came.

    Attributes:
        batch_id: the batch that holds it.
        value: its raw bytes; None where the source has none.
        error: why it could not be parsed.
    """

    shard: ShardId
    batch_id: str
    cursor: str
    event_time: datetime | None
    key: bytes | None
    value: bytes | None
    error: str


def quarantined_records(
    store: Ledger,
    key: GroupKey,
    output_root: Output,
    shard: ShardId | None = None,
    *,
    since: datetime | None = None,
) -> Iterator[QuarantinedRecord]:
    """Yield records in quarantine, shard by shard, each shard's in order.

    With `since`, the records whose event time is not before it; one without an event time is
    included.

    Raises:
        LogCorrupt: a file that the ledger names is missing or damaged.
    """
    folder = output_place(output_root)
    for batch in store.each_batch(key, shard):
        last = batch.statistics.last_event_time
        if since is not None and last is not None and last < since:
            continue
        for file in batch.files:
            for record in _records(batch, folder / file.path) if file.quarantine else ():
                if since is None or record.event_time is None or record.event_time >= since:
                    yield record


def _records(batch: Batch, path: OutputPlace) -> Iterator[QuarantinedRecord]:
    import pyarrow as pa

    try:
        with path.parquet() as file:
            for rows in file.iter_batches(batch_size=ROWS_PER_READ):
                yield from (_record(batch, row) for row in rows.to_pylist())
    except (OSError, pa.ArrowInvalid) as error:
        raise unreadable(path, error, batch.batch_id) from error


def _record(batch: Batch, row: dict[str, Any]) -> QuarantinedRecord:
    return QuarantinedRecord(
        shard=batch.shard,
        batch_id=batch.batch_id,
        cursor=row["cursor"],
        event_time=row["event_time"],
        key=row["key"],
        value=row["value"],
        error=row["error"],
    )


def quarantined_count(store: Ledger, key: GroupKey, shard: ShardId | None = None) -> int:
    """Return the number of records of committed batches in quarantine."""
    return sum(batch.statistics.quarantined for batch in store.each_batch(key, shard))
