"""The type of a stream's `on_commit` hook, and the committed batch that the hook receives.

`sensors.on_commit` calls the hook.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from dagster_leasehold.assets.places.place import OutputPlace
from dagster_leasehold.lease_store.identifiers import GroupKey, ShardId
from dagster_leasehold.lease_store.journal_rows import OutboxEvent
from dagster_leasehold.lease_store.times import stored_time


@dataclass(frozen=True, slots=True)
class CommittedBatch:
    """A committed batch: its range `[start, end)`, its counts and its output files.

    Attributes:
        key: the consumer group within the stream.
        batch_id: `<shard>.<number>`, unique within the group and the same in each delivery.
        records: the number of records read, or None if the transform stopped the reader early.
        bytes: the size of the keys and values read, or None in the same case.
        written: the number of records in the output.
        quarantined: the number of records that could not be parsed.
        first_event_time: the smallest event time read, or None.
        last_event_time: the largest event time read, or None.
        finished: True for the last batch of a read-only shard.
        files: the Parquet files of the batch when it was committed, as paths, or as URIs on an
            object store. A replay or compaction can replace them later; vacuum then removes them.
        attempt: 1 for the first delivery, plus 1 for each failed one.

    Examples:
        >>> def announce(batch: CommittedBatch) -> None:
        ...     print(f"{batch.batch_id}: {batch.written} rows of shard {batch.shard}")
    """

    key: GroupKey
    shard: ShardId
    batch_id: str
    start: str
    end: str
    records: int | None
    bytes: int | None
    written: int
    quarantined: int
    first_event_time: datetime | None
    last_event_time: datetime | None
    finished: bool
    files: tuple[Path | str, ...]
    attempt: int

    @classmethod
    def of(cls, event: OutboxEvent, key: GroupKey, output_folder: OutputPlace) -> CommittedBatch:
        """Return the batch that an outbox event describes."""
        payload = event.payload
        return cls(
            key=key,
            shard=event.shard,
            batch_id=event.batch_id,
            start=payload["start"],
            end=payload["end"],
            records=payload["records"],
            bytes=payload["bytes"],
            written=payload["written"],
            quarantined=payload["quarantined"],
            first_event_time=_time(payload["first_event_time"]),
            last_event_time=_time(payload["last_event_time"]),
            finished=payload["finished"],
            files=tuple((output_folder / path).address for path in payload["files"]),
            attempt=event.attempts + 1,
        )


def _time(text: str | None) -> datetime | None:
    return stored_time(text) if text else None


OnCommit = Callable[[CommittedBatch], None]
