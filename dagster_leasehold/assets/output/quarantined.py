"""Records in quarantine, in files that the ledger names and the table does not contain."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime

from dagster_leasehold.assets.output.attempts import reading
from dagster_leasehold.assets.places.address import Output, output_place
from dagster_leasehold.assets.places.place import OutputPlace
from dagster_leasehold.lease_store.identifiers import GroupKey, ShardId
from dagster_leasehold.lease_store.ledger_rows import Batch
from dagster_leasehold.lease_store.roles.ledger import Ledger

ROWS_PER_READ = 256
_COLUMNS = ["cursor", "event_time", "key", "value", "error"]


@dataclass(frozen=True, slots=True)
class QuarantinedRecord:
    """A record that could not be parsed, with its raw bytes and the reason."""

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
    """Yield records in quarantine, shard by shard, each shard in order.

    With `since`, yield only records from that event time on, or without an event time.
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
    with reading(path, batch.batch_id), path.parquet() as file:
        for rows in file.iter_batches(batch_size=ROWS_PER_READ):
            for row in rows.select(_COLUMNS).to_pylist():
                yield QuarantinedRecord(batch.shard, batch.batch_id, **row)


def quarantined_count(store: Ledger, key: GroupKey, shard: ShardId | None = None) -> int:
    """Return the number of records of committed batches in quarantine."""
    return sum(batch.statistics.quarantined for batch in store.each_batch(key, shard))
