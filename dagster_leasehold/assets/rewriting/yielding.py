"""The reasons for a compaction to stop: consumption comes first, and the run's time is limited."""

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
"""The time after which leases and lags are read again, in seconds."""
RUN_BUDGET_S = 120.0
"""The time after which a run leaves the rest to the next one, in seconds."""


def finished(snapshot: Snapshot) -> frozenset[ShardId]:
    """Return the shards that are over."""
    return frozenset(row.shard for row in snapshot.shards if row.state is ShardState.OVER)


def keepers(snapshot: Snapshot) -> dict[ShardId, NodeName]:
    """Return the node that compacts each shard: its holder, and for one that is over, any node.

    No node holds a shard that is over, so such shards are dealt out to the members in order.
    """
    members = sorted(node.name for node in snapshot.nodes if node.member and node.accepts_runs)
    over = sorted(finished(snapshot))
    dealt = {shard: members[place % len(members)] for place, shard in enumerate(over) if members}
    held = {
        row.shard: row.consumer_owner
        for row in snapshot.shards
        if row.consumer_owner is not None and row.state is not ShardState.OVER
    }
    return held | dealt


def behind(stream: ShardStream, rows: Iterable[ShardLease]) -> Mapping[ShardId, bool]:
    """Return True for each shard with more unread records than a batch takes at most.

    A source that cannot tell, or does not answer, keeps no shard from being compacted.
    """
    lags = lags_of(stream.source, rows).records
    return {shard: (lag or 0) > stream.limits.records_max for shard, lag in lags.items()}


@dataclass(slots=True)
class Yielding:
    """The review of a compaction on a node, asked before each portion of its work.

    Attributes:
        stream: of the shards.
        node: that compacts.
        shards: that are compacted.
        snapshot: reads the group.
        leaving: returns True once the node leaves.
        clock: monotonic seconds.
    """

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
        """Return the reason why a shard is left for later, as a clause; empty to continue.

        Raises:
            StoreError: the lease store does not answer.
        """
        if self.leaving():
            return f"node {self.node} leaves"
        now_s = self.clock()
        if now_s - self._began_s > RUN_BUDGET_S:
            return f"this run has worked for {RUN_BUDGET_S:.0f} s"
        if now_s - self._reviewed_s >= REVIEW_S:
            self._reasons = self._review()
            self._reviewed_s = now_s
        return self._reasons.get(shard, "")

    def _review(self) -> dict[ShardId, str]:
        snapshot = self.snapshot()
        owners = keepers(snapshot)
        held = [
            row
            for row in snapshot.shards
            if row.shard in self.shards and owners.get(row.shard) == self.node
        ]
        reasons = dict.fromkeys(
            self.shards - {row.shard for row in held}, f"node {self.node} no longer holds it"
        )
        late = behind(self.stream, held)
        reasons |= {shard: "its consumption lags" for shard in late if late[shard]}
        return reasons
