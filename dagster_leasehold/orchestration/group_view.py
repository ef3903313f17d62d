"""The nodes and shards of a consumer group, for display.

`leasehold status` shows one reading, and `leasehold top` a series of readings. The ages come from
the clock of the database or the caller, and the protocol does not use them.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum

from dagster_leasehold.assets.obstacles import last_error, live_nodes, obstacle
from dagster_leasehold.lease_store.group_rows import Node, Snapshot
from dagster_leasehold.lease_store.identifiers import GroupKey, NodeName, ShardId
from dagster_leasehold.lease_store.rules.assignment_plan import rank_key
from dagster_leasehold.lease_store.rules.progress import duration
from dagster_leasehold.lease_store.rules.states import ShardState
from dagster_leasehold.lease_store.shard_rows import ShardLease
from dagster_leasehold.lease_store.store import LeaseStore
from dagster_leasehold.lease_store.times import utc_now
from dagster_leasehold.shard_sources.lag import Lags, UnreadTimes, lags_of
from dagster_leasehold.shard_sources.source import ShardSource

RATE_WINDOW_S = 60.0
"""The time over which rates are averaged, so that single commits do not make them jump."""


class Liveness(StrEnum):
    """The liveness of a node, for display.

    `alive`: its last heartbeat is within the group's timeout. `silent`: it is older, and no node
    has evicted the node yet. `left`: the node left the group or was evicted.
    """

    ALIVE = "alive"
    SILENT = "silent"
    LEFT = "left"


@dataclass(frozen=True, slots=True)
class NodeRow:
    """A node of a group.

    Attributes:
        last_beat_s: seconds since its last heartbeat; None after it left.
        member: True until it leaves or is evicted.
        accepts_runs: False while it transfers its shards to other nodes.
        lease_id: the number of its heartbeats.
    """

    node: NodeName
    liveness: Liveness
    last_beat_s: float | None
    member: bool
    accepts_runs: bool
    lease_id: int
    shards: int
    release: str


@dataclass(frozen=True, slots=True)
class ShardRow:
    """A shard of a group.

    Attributes:
        consumer_owner: the holder; None if the shard is unassigned.
        next_owner: the node that it is transferred to; None outside a transfer.
        check_point: the cursor where its committed output ends.
        lag: the number of unread records; None if unknown.
        lag_seconds: the age of the oldest unread record; None if unknown.
        rate: committed records per second; None after a single reading.
        caught_up_s: seconds until all records are read, at the current rate; None while the lag
            does not decrease.
        run: the run that has it open; empty without one.
        obstacle: why it makes no progress, as a sentence; empty if it does.
        last_error: the last error of a run since the shard's last commit; empty without one.
        last_error_s: the age of that error in seconds; None if unknown.
    """

    shard: ShardId
    state: ShardState
    consumer_owner: NodeName | None
    next_owner: NodeName | None
    check_point: str | None
    lag: int | None
    lag_seconds: float | None
    rate: float | None
    caught_up_s: float | None
    epoch: int
    run: str
    parents: tuple[ShardId, ...]
    obstacle: str = ""
    last_error: str = ""
    last_error_s: float | None = None


@dataclass(frozen=True, slots=True)
class GroupView:
    """A group at one moment.

    Attributes:
        nodes: the nodes, by name.
        shards: the shards, by rank.
        trouble: a sentence if the source did not answer; empty otherwise.
    """

    snapshot: Snapshot
    nodes: tuple[NodeRow, ...]
    shards: tuple[ShardRow, ...]
    trouble: str = ""

    def death(self) -> str | None:
        """Return a sentence if no node of the group is alive; None if one is."""
        if self.alive:
            return None
        ages = [row.last_beat_s for row in self.nodes if row.last_beat_s is not None]
        last = f"last heartbeat {duration(min(ages))} ago" if ages else "no members"
        return (
            f"No node of {self.snapshot.group.key} is alive ({last}), so nothing is consumed. "
            "Start the deployment's daemon and agents."
        )

    @property
    def alive(self) -> int:
        """The number of nodes that are alive."""
        return sum(row.liveness is Liveness.ALIVE for row in self.nodes)

    @property
    def lag_trouble(self) -> str:
        """A sentence if the lag is unknown; empty otherwise."""
        return f"The lag is unknown: {self.trouble}" if self.trouble else ""

    def obstacles(self) -> list[str]:
        """Return a sentence for each shard without progress; empty if no node is alive."""
        return [] if self.death() else [row.obstacle for row in self.shards if row.obstacle]


@dataclass(frozen=True, slots=True)
class _Point:
    at_s: float
    records: Mapping[ShardId, int]
    lags: Mapping[ShardId, int | None]


@dataclass(slots=True)
class GroupReader:
    """Reads a group repeatedly, and computes rates from earlier readings.

    Attributes:
        now: the wall clock, for the age of unread records.
    """

    store: LeaseStore
    key: GroupKey
    source: ShardSource
    clock: Callable[[], float] = time.monotonic
    now: Callable[[], datetime] = utc_now
    _unread: UnreadTimes | None = None
    _points: deque[_Point] = field(default_factory=deque[_Point])

    def read(self) -> GroupView:
        """Read the group now."""
        snapshot = self.store.snapshot(self.key)
        ages = self.store.beat_ages(self.key)
        lags = lags_of(self.source, snapshot.shards)
        self._unread = self._unread or UnreadTimes(self.clock)
        seconds = lags.seconds(self._unread.of(self.source, lags.behind), self.now())
        records = {total.shard: total.records for total in self.store.totals(self.key)}
        self._points.append(_Point(self.clock(), records, lags.records))
        while self._points[-1].at_s - self._points[0].at_s > RATE_WINDOW_S:
            self._points.popleft()
        leases = sorted(snapshot.shards, key=lambda lease: rank_key(lease.shard))
        alive = live_nodes(snapshot, ages)
        shards = tuple(self._shard_row(lease, lags, seconds, alive) for lease in leases)
        return GroupView(snapshot, node_rows(snapshot, ages), shards, lags.trouble)

    def _shard_row(
        self,
        lease: ShardLease,
        lags: Lags,
        seconds: Mapping[ShardId, float],
        alive: Mapping[NodeName, bool],
    ) -> ShardRow:
        shard, lag = lease.shard, lags.records.get(lease.shard)
        in_transfer = lease.lease_owner != lease.consumer_owner
        failed_at = None if lease.suspicion is None else lease.suspicion.error_at
        stall = obstacle(
            self.key,
            lease,
            nodes=alive,
            unread=lags.unread(shard),
            source_error=lags.error_of(shard),
        )
        return ShardRow(
            shard,
            lease.state,
            lease.consumer_owner,
            lease.lease_owner if in_transfer else None,
            lease.check_point,
            lag,
            seconds.get(shard),
            self._rate(shard),
            self._caught_up_s(shard, lag),
            lease.consumer_epoch,
            lease.consumer_run,
            lease.parents,
            "" if stall is None else stall.sentence,
            last_error(lease),
            None if failed_at is None else max(0.0, (self.now() - failed_at).total_seconds()),
        )

    def _rate(self, shard: ShardId) -> float | None:
        first, last = self._points[0], self._points[-1]
        if last.at_s == first.at_s:
            return None
        records = last.records.get(shard, 0) - first.records.get(shard, 0)
        return records / (last.at_s - first.at_s)

    def _caught_up_s(self, shard: ShardId, lag: int | None) -> float | None:
        lag_before = self._points[0].lags.get(shard)
        elapsed_s = self._points[-1].at_s - self._points[0].at_s
        if lag is None or lag_before is None or lag >= lag_before or elapsed_s <= 0:
            return 0.0 if lag == 0 else None
        return lag * elapsed_s / (lag_before - lag)


def node_rows(snapshot: Snapshot, beat_ages: Mapping[NodeName, float]) -> tuple[NodeRow, ...]:
    """Return the nodes of a group.

    Args:
        beat_ages: seconds since each member's last heartbeat.
    """
    counts = Counter(lease.consumer_owner for lease in snapshot.shards)
    alive = live_nodes(snapshot, beat_ages)

    def liveness(node: Node) -> Liveness:
        if not node.member:
            return Liveness.LEFT
        return Liveness.ALIVE if node.name in alive else Liveness.SILENT

    return tuple(
        NodeRow(
            node.name,
            liveness(node),
            beat_ages.get(node.name) if node.member else None,
            node.member,
            node.accepts_runs,
            node.lease_id,
            counts[node.name],
            node.release_version,
        )
        for node in snapshot.nodes
    )


def tree(rows: Iterable[ShardRow]) -> list[tuple[int, ShardRow]]:
    """Return the tree of splits and merges as a list of shards with their depths.

    A shard is below the first of its parents in `rows`; without one, its depth is 0.
    """
    by_shard = {row.shard: row for row in rows}
    children: dict[ShardId | None, list[ShardRow]] = {}
    for row in by_shard.values():
        parent = next((each for each in row.parents if each in by_shard), None)
        children.setdefault(parent, []).append(row)
    result: list[tuple[int, ShardRow]] = []
    stack = [(0, row) for row in reversed(children.get(None, []))]
    while stack:
        depth, row = stack.pop()
        result.append((depth, row))
        stack += [(depth + 1, child) for child in reversed(children.pop(row.shard, []))]
    return result


def total(values: Iterable[float | None]) -> float | None:
    """Return the sum of the values; None if one is None."""
    parts: Sequence[float | None] = list(values)
    return None if None in parts else sum(part or 0 for part in parts)
