"""Rules for when a compaction stops: consumption has priority, and the time of a run is limited."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from dagster_leasehold.assets.shard_stream import ShardStream
from dagster_leasehold.lease_store.group_rows import Snapshot
from dagster_leasehold.lease_store.identifiers import NodeName, ShardId
from dagster_leasehold.lease_store.rules.states import ShardState
from dagster_leasehold.lease_store.shard_rows import ShardLease
from dagster_leasehold.shard_sources.lag import lags_of

REVIEW_S = 10.0
"""The interval between reads of leases and lags, in seconds."""
RUN_BUDGET_S = 120.0
"""The time after which a run stops and postpones the rest to the next run, in seconds."""


def finished(snapshot: Snapshot) -> frozenset[ShardId]:
    """Return the finished shards."""
    return frozenset(row.shard for row in snapshot.shards if row.state is ShardState.OVER)


def compacting_nodes(snapshot: Snapshot) -> dict[ShardId, NodeName]:
    """Return the node that compacts each shard: its holder or, for a finished shard, any member."""
    members = sorted(node.name for node in snapshot.nodes if node.member and node.accepts_runs)
    over = sorted(finished(snapshot))
    unheld = {shard: members[index % len(members)] for index, shard in enumerate(over) if members}
    holders = {
        row.shard: row.consumer_owner
        for row in snapshot.shards
        if row.consumer_owner is not None and row.state is not ShardState.OVER
    }
    return holders | unheld


def behind(stream: ShardStream, rows: Iterable[ShardLease]) -> Mapping[ShardId, bool]:
    """Return True for each shard with more unread records than one batch can have.

    If the lag is unknown, the result is False, so the shard is compacted.
    """
    lags = lags_of(stream.source, rows).records
    return {shard: (lag or 0) > stream.limits.records_max for shard, lag in lags.items()}


@dataclass(slots=True)
class Yielding:
    """Determines before each portion of a compaction whether to continue."""

    stream: ShardStream
    node: NodeName
    shards: frozenset[ShardId]
    snapshot: Callable[[], Snapshot]
    leaving: Callable[[], bool]
    clock: Callable[[], float]
    _began_s: float = field(init=False)
    _reviewed_s: float = float("-inf")
    _reasons: dict[ShardId, str] = field(default_factory=dict[ShardId, str])

    def __post_init__(self) -> None:
        self._began_s = self.clock()

    def stopped(self, shard: ShardId) -> str:
        """Return the reason to postpone a shard, as a clause; empty to continue."""
        if self.leaving():
            return f"node {self.node} is leaving"
        now_s = self.clock()
        if now_s - self._began_s > RUN_BUDGET_S:
            return f"this run has worked for {RUN_BUDGET_S:.0f} s"
        if now_s - self._reviewed_s >= REVIEW_S:
            self._reasons = self._review()
            self._reviewed_s = now_s
        return self._reasons.get(shard, "")

    def _review(self) -> dict[ShardId, str]:
        snapshot = self.snapshot()
        owners = compacting_nodes(snapshot)
        rows = [
            row
            for row in snapshot.shards
            if row.shard in self.shards and owners.get(row.shard) == self.node
        ]
        reasons = dict.fromkeys(
            self.shards - {row.shard for row in rows}, f"node {self.node} no longer holds it"
        )
        lagging = behind(self.stream, rows)
        return reasons | {s: "its consumption lags" for s, lags in lagging.items() if lags}
