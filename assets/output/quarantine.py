"""Records in quarantine, which could not be parsed, as the ledger names them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from dagster_leasehold.assets.output.attempts import unreadable
from dagster_leasehold.assets.output.committed_output import CommittedFile, each_committed_file
from dagster_leasehold.lease_store.identifiers import GroupKey, ShardId
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
    output_root: Path,
    shard: ShardId | None = None,
    *,
    since: datetime | None = None,
) -> Iterator[QuarantinedRecord]:
    """Yield records in quarantine, shard by shard, each shard's in order.

    With `since`, those whose event time is not before it; one without an event time is included.

    Raises:
        LogCorrupt: a file that the ledger names is missing or damaged.
    """
    for committed in each_committed_file(store, key, output_root, shard, quarantine=True):
        last = committed.batch.statistics.last_event_time
        if since is not None and last is not None and last < since:
            continue
        for record in _records(committed):
            if since is None or record.event_time is None or record.event_time >= since:
                yield record


def _records(committed: CommittedFile) -> Iterator[QuarantinedRecord]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(committed.path) as file:
            for batch in file.iter_batches(batch_size=ROWS_PER_READ):
                yield from (_record(committed, row) for row in batch.to_pylist())
    except (OSError, pa.ArrowInvalid) as error:
        raise unreadable(committed.path, error, committed.batch.batch_id) from error


def _record(committed: CommittedFile, row: dict[str, Any]) -> QuarantinedRecord:
    return QuarantinedRecord(
        shard=committed.shard,
        batch_id=committed.batch.batch_id,
        cursor=row["cursor"],
        event_time=row["event_time"],
        key=row["key"],
        value=row["value"],
        error=row["error"],
    )


def quarantined_count(store: Ledger, key: GroupKey, shard: ShardId | None = None) -> int:
    """Return the number of records of committed batches in quarantine."""
    return sum(batch.statistics.quarantined for batch in store.each_batch(key, shard))
