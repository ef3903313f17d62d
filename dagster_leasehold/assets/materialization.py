"""News of committed batches: one materialization per run and shard, and the service's dashboards.

The rows come from the outbox, where each commit left one. A run delivers its own, and the outbox
sensor reports for runs that died before they could; both go through the same grouping, so that a
reader of the asset sees each batch once.

A source's service can show how far a stream is committed. Nothing reads that back: the lease store
alone knows the checkpoints. The service hears of them after a commit and before its report is
flagged as delivered, so that every commit is followed by at least one word to the service.
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
MIRROR_LOOKS_MAX = 10
"""Every further look has found a commit of another process since the one before."""


@dataclass(frozen=True, slots=True)
class CommittedRange:
    """The batches of one shard that one run committed, in order, none missing between them."""

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
        """Return the sum of a statistic; a batch that could not count counts nothing."""
        return sum(int(event.payload.get(field) or 0) for event in self.events)

    def event_times(self) -> tuple[datetime, datetime] | None:
        """Return the smallest and the largest event time read, or None if none was seen."""
        first = _times(self.events, "first_event_time")
        last = _times(self.events, "last_event_time")
        if not first or not last:
            return None
        return min(first), max(last)


def _times(events: Iterable[OutboxEvent], field: str) -> list[datetime]:
    texts = (event.payload.get(field) for event in events)
    return [stored_time(text) for text in texts if text]


def committed_ranges(events: Sequence[OutboxEvent]) -> list[CommittedRange]:
    """Return outbox rows grouped by run and shard, in order of their first commit."""
    groups: dict[tuple[str, ShardId], list[OutboxEvent]] = {}
    for event in sorted(events, key=lambda event: event.sequence):
        if event.kind == MATERIALIZATION_KIND:
            groups.setdefault((event.run, event.shard), []).append(event)
    return [CommittedRange(shard, run, tuple(rows)) for (run, shard), rows in groups.items()]


def range_metadata(committed: CommittedRange) -> dict[str, Any]:
    """Return the metadata of a shard's committed range, with numbers that Dagster can plot."""
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
    """Return the event for a range whose run could not deliver it itself."""
    return dg.AssetMaterialization(
        asset_key=asset_key(stream),
        partition=committed.shard,
        description="Delivered from the outbox: the run that committed it ended before it could.",
        metadata=range_metadata(committed) | {RUN_KEY: dg.MetadataValue.dagster_run(committed.run)},
    )


def mirror_progress(store: Groups, stream: ShardStream, shards: Iterable[ShardId]) -> str:
    """Send the checkpoints of these shards to the source's service, if the source does that.

    It receives the stored checkpoints, not the commits' own: a dead run's commits are
    reported after newer ones, and progress would go back. They are read again afterwards: another
    process might have committed and sent a newer one in between, and then this one sends it last.

    Returns:
        The error, which stops nothing; empty when there was none.
    """
    source, own_shards = stream.source, set(shards)
    if not own_shards or not isinstance(source, ProgressMirror) or not source.mirrors:
        return ""
    sent: dict[ShardId, str] = {}
    try:
        for _ in range(MIRROR_LOOKS_MAX):
            leases = store.snapshot(stream.key).shards
            stored = {
                lease.shard: lease.check_point for lease in leases if lease.shard in own_shards
            }
            news = {
                shard: checkpoint
                for shard, checkpoint in stored.items()
                if checkpoint is not None and sent.get(shard) != checkpoint
            }
            if not news:
                break
            source.mirror(news)
            sent |= news
    except LeaseholdError as error:
        return str(error)
    return ""
