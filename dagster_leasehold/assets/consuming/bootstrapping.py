"""Bootstrap cursors: pinned shards begin at the cursors in their node's settings.

`opening` applies them. A cursor takes effect once: the shard's row stores the last applied cursor,
so a later run or a restarted code server with the same settings continues from the checkpoint.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from dagster_leasehold.lease_store.group_rows import AssignmentMode, Pulse
from dagster_leasehold.lease_store.identifiers import GroupKey, NodeName, ShardId
from dagster_leasehold.lease_store.rules.starting_point import Bootstrap
from dagster_leasehold.lease_store.shard_rows import Tenure
from dagster_leasehold.lease_store.store import LeaseStore
from dagster_leasehold.shard_sources.positions import clamped
from dagster_leasehold.shard_sources.source import ShardSource


def bootstrap_cursors(pulse: Pulse, node: NodeName) -> dict[ShardId, str]:
    """Return the cursor of each shard that a node pins with a bootstrap cursor."""
    if pulse.group.assignment is not AssignmentMode.PINNED:
        return {}
    row = next((row for row in pulse.nodes if row.name == node), None)
    pinned = (row.pinned if row is not None else None) or {}
    return {shard: cursor for shard, cursor in pinned.items() if cursor is not None}


@dataclass(slots=True)
class Bootstrapping:
    """Applies the bootstrap cursors of one node's pinned shards, for one run."""

    store: LeaseStore
    source: ShardSource
    cursors: Mapping[ShardId, str] = field(default_factory=dict[ShardId, str])
    _applied: dict[ShardId, str | None] | None = None
    _starts: dict[ShardId, Bootstrap] = field(default_factory=dict[ShardId, Bootstrap])

    def apply(self, key: GroupKey, shard: ShardId, node: NodeName, run: str) -> None:
        """Set the shard's checkpoint to its bootstrap cursor, unless it was applied before.

        Raises:
            CursorInvalid: the text is not a cursor of the shard. Nothing was changed.
            CheckpointRefused: the cursor is inside a committed batch. Nothing was changed.
        """
        cursor = self.cursors.get(shard)
        if cursor is None:
            return
        if self._applied is None:
            rows = self.store.snapshot(key).shards
            self._applied = {row.shard: row.bootstrap for row in rows}
        if self._applied.get(shard) != cursor:
            # An invalid cursor raises here, before anything changes.
            begin = Bootstrap(cursor, clamped(self.source, shard, cursor))
            self.store.bootstrap(key, shard, node, cursor, run=run, start=begin.start)
            self._starts[shard] = begin

    def beginning(self, tenure: Tenure, check_point: str | None) -> str | None:
        """Return the cursor where an open shard continues; record a gap at its bootstrap cursor.

        The gap is recorded whenever the checkpoint still equals the bootstrap cursor, because an
        earlier run may have died between `apply` and this call.
        """
        cursor = self.cursors.get(tenure.shard)
        begin = self._starts.pop(tenure.shard, None)
        if begin is None and cursor is not None and cursor == check_point:
            begin = Bootstrap(cursor, clamped(self.source, tenure.shard, cursor))
        if begin is None or check_point != begin.start:
            return check_point
        if begin.gap:
            self.store.record_gap(tenure, start=begin.start, end=begin.readable, reason=begin.gap)
        return begin.readable
