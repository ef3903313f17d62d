"""Rounds, moves and take-overs: the speed and the cost with which a group follows its changes.

A count of moves means little without the fewest possible moves, so these are added up.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection

from dagster_leasehold.lease_store.group_rows import Snapshot
from dagster_leasehold.lease_store.identifiers import NodeName, ShardId
from dagster_leasehold.lease_store.rebalancing import TickReport, planning_snapshot
from dagster_leasehold.lease_store.rules.planning import fewest_moves, plan
from dagster_leasehold.lease_store.rules.states import ShardState
from dagster_leasehold.lease_store.shard_rows import Progress, ShardLease
from tests.simulation.protocol.stage import Stage


class FewestMoves:
    """Follows a group from one settled state to the next, and adds up the fewest possible moves.

    All events between two settled states are one change, however many members and shards they
    concern: a group that was still busy with the first of two events need not have finished it. So
    no group can need fewer moves than the total, and a group that settles after every event without
    a useless move needs exactly as many.

    Attributes:
        total: the sum so far.
    """

    def __init__(self) -> None:
        self.total = 0
        self._owners: dict[ShardId, NodeName] = {}
        self._moves = 0

    def settled(self, snapshot: Snapshot, live: Collection[NodeName], moves: int) -> str:
        """Add the fewest possible moves from the last settled state to this one.

        Args:
            snapshot: the group, without remaining moves.
            live: its live members.
            moves: the number of changes of owner so far.

        Returns:
            A sentence if the group made fewer moves than are needed, otherwise an empty one.
        """
        needed = fewest_moves(snapshot, live=live, owners=self._owners)
        made = moves - self._moves
        self.total += needed
        self.restart(snapshot, moves)
        if made >= needed:
            return ""
        return f"a change of members or shards took {made} moves, and needs at least {needed}"

    def restart(self, snapshot: Snapshot, moves: int) -> None:
        """Continue from this state, settled or not, without asking how it was reached."""
        self._moves = moves
        self._owners = {
            lease.shard: lease.consumer_owner
            for lease in snapshot.shards
            if lease.state.held and lease.consumer_owner is not None
        }


class Measures:
    """The figures of one seed.

    Attributes:
        moves: changes of owner, first claims included.
        fewest: the fewest moves that the group can have needed.
        takeovers: virtual seconds from a node's failure until each of its shards had a new owner.
        compares: True once the planners' pictures of the group have to be true.
    """

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self.moves = 0
        self.fewest = FewestMoves()
        self.takeovers: list[float] = []
        self._lost_at: dict[ShardId, float] = {}
        self._rounds: Counter[NodeName] = Counter()
        self._settled_at = -1
        self.compares = False
        self._untrue: dict[NodeName, set[object]] = {}

    @property
    def rounds(self) -> int:
        """Planning rounds that some code server needed after the last change."""
        return max(self._rounds.values(), default=0)

    def restart_rounds(self) -> None:
        """Count planning rounds from here on: something has changed."""
        self._rounds.clear()

    def ticked(self, host: NodeName, report: TickReport) -> None:
        """Add a tick's planning rounds, and take note of a group that has settled."""
        self._rounds[host] += report.rounds
        if self.compares:
            self._compare(host, report)
        if report.generation == self._settled_at or report.plan.actions:
            return
        self._settled(report.generation, report.live)

    def _compare(self, host: NodeName, report: TickReport) -> None:
        """I19: a planner's memory of the group equals the store, at most one tick later."""
        store, key = self._stage.store, self._stage.key
        untrue = {_ownership(row) for row in report.snapshot.shards}
        untrue -= {_ownership(row) for row in store.snapshot(key).shards}
        untrue |= {_tenure(row) for row in report.progress.values()}
        untrue -= {_tenure(row) for row in store.progress(key, report.owned).values()}
        if lasting := untrue & self._untrue.get(host, set()):
            self._stage.violated(
                f"I19: {host} plans from rows that are gone: {min(map(str, lasting))}"
            )
        self._untrue[host] = untrue

    def _settled(self, generation: int, live: Collection[NodeName]) -> None:
        """Record that a group settled, unless it changed since the tick read it.

        A fail-over can lose commits: the same generation then comes again, with other transfers.
        """
        snapshot = planning_snapshot(self._stage.store, self._stage.key)
        buried = all(node.name in live for node in snapshot.nodes if node.member)
        if snapshot.group.generation != generation or not buried:
            return
        if any(lease.state is ShardState.TRANSFER for lease in snapshot.shards):
            return
        if plan(snapshot, live=live).actions:
            return
        self._settled_at = generation
        missing = self.fewest.settled(snapshot, live, self.moves)
        if missing:
            self._stage.violated(f"moves: {missing}")

    def restored(self) -> None:
        """Start again after the store lost its last commits: owners changed without moves."""
        self._settled_at = -1
        self.fewest.restart(self._stage.store.snapshot(self._stage.key), self.moves)
        self.restart_rounds()

    def moved(self, shard: ShardId) -> None:
        """Count a change of owner, and measure how long the shard was without one."""
        self.moves += 1
        lost_at = self._lost_at.pop(shard, None)
        if lost_at is not None:
            self.takeovers.append(self._stage.now - lost_at)

    def lost(self, nodes: Collection[NodeName]) -> None:
        """Have the shards of nodes that have just failed wait for a new owner from now on."""
        for lease in self._stage.store.snapshot(self._stage.key).shards:
            if lease.consumer_owner in nodes and lease.state.held:
                self._lost_at.setdefault(lease.shard, self._stage.now)
        self.restart_rounds()

    def returned(self, nodes: Collection[NodeName]) -> None:
        """Do not count shards that returned nodes still own as lost."""
        for lease in self._stage.store.snapshot(self._stage.key).shards:
            if lease.consumer_owner in nodes:
                self._lost_at.pop(lease.shard, None)
        self.restart_rounds()


def _ownership(row: ShardLease) -> object:
    return row.shard, row.state, row.lease_owner, row.consumer_owner, row.lease_id


def _tenure(row: Progress) -> object:
    return row.shard, row.consumer_epoch, row.consumer_run
