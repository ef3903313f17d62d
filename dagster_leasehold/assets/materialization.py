"""Reports of committed batches: materializations for Dagster, progress for the source's service.

Each commit writes one outbox row. A run reports its own rows. The outbox sensor reports the rows of
runs that died before their report. Both group the rows by run and shard, so that Dagster gets each
batch once.

The service of a source, such as Kafka, can show a stream's checkpoints. They are sent after a
commit and before its outbox rows are flagged as delivered, so at least once per commit. Leasehold
never reads them back: a shard always continues at the checkpoint in the lease store.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import dagster as dg

from dagster_leasehold.assets.partitions import asset_key
from dagster_leasehold.assets.shard_stream import ShardStream
from dagster_leasehold.lease_store.errors import LeaseholdError
from dagster_leasehold.lease_store.identifiers import ShardId
from dagster_leasehold.lease_store.journal_rows import OutboxEvent
from dagster_leasehold.lease_store.roles.groups import Groups
from dagster_leasehold.lease_store.times import stored_time
from dagster_leasehold.shard_sources.source import ProgressMirror

MATERIALIZATION_KIND = "materialization"
RUN_KEY = "consumed_by"
MIRROR_ROUNDS_MAX = 10
"""The most rounds of `mirror_progress`. A second one is needed only if another process commits
during the first."""


@dataclass(frozen=True, slots=True)
class CommittedRange:
    """The batches of one shard that one run committed, in the order of their commits."""

    shard: ShardId
    run: str
    events: tuple[OutboxEvent, ...]

    @property
    def start(self) -> str:
        """The cursor where the first batch starts."""
        return str(self.events[0].payload["start"])

    @property
    def end(self) -> str:
        """The cursor where the last batch ends."""
        return str(self.events[-1].payload["end"])

    @property
    def contiguous(self) -> bool:
        """True if each batch starts where the one before it ends."""
        pairs = zip(self.events, self.events[1:], strict=False)
        return all(before.payload["end"] == after.payload["start"] for before, after in pairs)

    def total(self, field: str) -> int:
        """Return the sum of a statistic; a batch without it counts as 0."""
        return sum(int(event.payload.get(field) or 0) for event in self.events)

    def event_times(self) -> tuple[datetime, datetime] | None:
        """Return the smallest and the largest event time read, or None without event times."""
        first = _times(self.events, "first_event_time")
        last = _times(self.events, "last_event_time")
        if not first or not last:
            return None
        return min(first), max(last)


def _times(events: Iterable[OutboxEvent], field: str) -> list[datetime]:
    texts = (event.payload.get(field) for event in events)
    return [stored_time(text) for text in texts if text]


def committed_ranges(events: Sequence[OutboxEvent]) -> list[CommittedRange]:
    """Group outbox rows by run and shard, in the order of their first commits."""
    groups: dict[tuple[str, ShardId], list[OutboxEvent]] = {}
    for event in sorted(events, key=lambda event: event.sequence):
        if event.kind == MATERIALIZATION_KIND:
            groups.setdefault((event.run, event.shard), []).append(event)
    return [CommittedRange(shard, run, tuple(rows)) for (run, shard), rows in groups.items()]


def range_metadata(committed: CommittedRange) -> dict[str, Any]:
    """Return a committed range as metadata, with counts as numbers so that Dagster plots them."""
    metadata: dict[str, Any] = {
        "records": committed.total("records"),
        "written": committed.total("written"),
        "bytes": committed.total("bytes"),
        "batches": len(committed.events),
        "quarantined": committed.total("quarantined"),
        "mistimed": committed.total("mistimed"),
        "start_cursor": committed.start,
        "end_cursor": committed.end,
        "first_batch": committed.events[0].batch_id,
        "last_batch": committed.events[-1].batch_id,
        "node": str(committed.events[-1].payload.get("holder", "")),
        "epoch": int(committed.events[-1].payload.get("epoch") or 0),
    }
    times = committed.event_times()
    if times is not None:
        metadata["first_event_time"] = dg.MetadataValue.timestamp(times[0])
        metadata["last_event_time"] = dg.MetadataValue.timestamp(times[1])
    return metadata


def materialization_of(stream: ShardStream, committed: CommittedRange) -> dg.AssetMaterialization:
    """Return the materialization of a range whose run ended before it could report it."""
    return dg.AssetMaterialization(
        asset_key=asset_key(stream),
        partition=committed.shard,
        description="Reported from the outbox: the run that committed it ended before its report.",
        metadata=range_metadata(committed) | {RUN_KEY: dg.MetadataValue.dagster_run(committed.run)},
    )


def mirror_progress(store: Groups, stream: ShardStream, shards: Iterable[ShardId]) -> str:
    """Send the stored checkpoints of these shards to the source's service, if it mirrors them.

    The checkpoints are read from the store, not from the outbox: a dead run's commits are reported
    after newer ones, so the service would move back. They are read again after sending:

    1. This process reads checkpoint 5; another one commits 6 and sends it.
    2. This process sends 5, and the service shows 5.
    3. This process reads again, finds 6, and sends it.

    Returns:
        The error message for the caller to show, or an empty text.
    """
    source, own_shards = stream.source, set(shards)
    if not own_shards or not isinstance(source, ProgressMirror) or not source.mirrors:
        return ""
    sent: dict[ShardId, str] = {}
    try:
        for _ in range(MIRROR_ROUNDS_MAX):
            leases = store.snapshot(stream.key).shards
            stored = {
                lease.shard: lease.check_point for lease in leases if lease.shard in own_shards
            }
            changed = {
                shard: checkpoint
                for shard, checkpoint in stored.items()
                if checkpoint is not None and sent.get(shard) != checkpoint
            }
            if not changed:
                break
            source.mirror(changed)
            sent |= changed
    except LeaseholdError as error:
        return str(error)
    return ""
