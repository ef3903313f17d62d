"""The fewest moves: what an all-knowing planner would have needed, change by change."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from lease_store.identifiers import NodeName, ShardId
from lease_store.planning import plan
from lease_store.records import Group, Node, ShardLease, Snapshot
from lease_store.states import ShardState


class FewestMoves:
    """Follows a group through its changes, each settled at once with the proven minimum."""

    def __init__(self, group: Group) -> None:
        self._group = group
        self._owners: dict[ShardId, NodeName] = {}
        self._seen: object = None
        self.total = 0

    def settled(self, snapshot: Snapshot) -> None:
        """The real group has settled: of several equally good ways, this is the one it went."""
        self._owners = {
            lease.shard: lease.lease_owner
            for lease in snapshot.shards
            if lease.state.held and lease.lease_owner is not None
        }

    def change(self, nodes: Iterable[Node], shards: Iterable[ShardLease]) -> None:
        """Settle, and add the fewest moves that this takes, if members or shards changed.

        `nodes` are those that live in truth; `shards` count by their state alone.
        """
        members = tuple(replace(node, lease_id=0) for node in nodes)
        countable = tuple(
            sorted((lease.shard, lease.subscribable) for lease in shards if lease.state.consumable)
        )
        if (seen := (members, countable)) == self._seen:
            return
        self._seen = seen
        names = {node.name for node in members}
        rows: list[ShardLease] = []
        for shard, subscribable in countable:
            owner = self._owners.get(shard)
            owner = owner if owner in names else None
            state = ShardState.ALREADY_ALLOC if owner else ShardState.NOT_ALLOC
            rows.append(
                ShardLease(
                    shard, state, lease_owner=owner, consumer_owner=owner, subscribable=subscribable
                )
            )
        decided = plan(Snapshot(self._group, members, tuple(rows)), live=names)
        self.total += decided.moves_minimum
        owners = {row.shard: row.lease_owner for row in rows}
        owners |= {action.shard: action.gains for action in decided.actions}
        self._owners = {shard: owner for shard, owner in owners.items() if owner is not None}
