"""The fewest moves: the least number of changes of owner between two settled states of a group."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from dagster_leasehold.lease_store.group_rows import Snapshot
from dagster_leasehold.lease_store.identifiers import NodeName, ShardId
from dagster_leasehold.lease_store.rules.planning import plan
from dagster_leasehold.lease_store.rules.states import ShardState
from dagster_leasehold.lease_store.shard_rows import ShardLease


class FewestMoves:
    """Follows a group from one settled state to the next, and adds up what each way needs at least.

    What happens between two settled states is one change, however many members and shards it
    concerns: a group that was still busy with the first of two changes is not asked to have
    finished it. So no group can do with fewer moves than the total; one that moves nothing in vain
    and settles after every change needs just as many.

    Attributes:
        total: the sum so far.
    """

    def __init__(self) -> None:
        self.total = 0
        self._owners: dict[ShardId, NodeName] = {}
        self._moves = 0

    def settled(self, snapshot: Snapshot, live: Collection[NodeName], moves: int) -> str:
        """Add what the way from the last settled state to this one needs at least.

        Args:
            snapshot: the group, in which no move is left to make.
            live: its members that live.
            moves: how many changes of owner there have been in all.

        Returns:
            A sentence where the group made fewer moves than are needed, else nothing.
        """
        needed, made = self._needed(snapshot, live), moves - self._moves
        self.total += needed
        self.restart(snapshot, moves)
        if made >= needed:
            return ""
        return f"a change of members or shards took {made} moves, and needs at least {needed}"

    def restart(self, snapshot: Snapshot, moves: int) -> None:
        """Go on from this state, settled or not, without asking how it was reached."""
        self._moves = moves
        self._owners = {
            lease.shard: lease.consumer_owner
            for lease in snapshot.shards
            if lease.state.held and lease.consumer_owner is not None
        }

    def _needed(self, snapshot: Snapshot, live: Collection[NodeName]) -> int:
        rows = tuple(self._as_before(lease, live) for lease in snapshot.shards)
        if snapshot.group.weighted:
            # By load no count is proven but for the shards whose owner is gone.
            held = {lease.shard for lease in snapshot.shards if lease.state.held}
            return sum(row.state is ShardState.NOT_ALLOC and row.shard in held for row in rows)
        return plan(replace(snapshot, shards=rows), live=live).moves_minimum

    def _as_before(self, lease: ShardLease, live: Collection[NodeName]) -> ShardLease:
        """The shard as it is now, but with the owner that it had in the last settled state."""
        if not lease.state.consumable:
            return lease
        owner = self._owners.get(lease.shard)
        owner = owner if owner in live else None
        state = ShardState.ALREADY_ALLOC if owner else ShardState.NOT_ALLOC
        return replace(lease, state=state, lease_owner=owner, consumer_owner=owner)
