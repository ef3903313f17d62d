"""Planning: from a snapshot to the smallest set of moves that gives every node its share.

Pure: no clock, no I/O, no randomness. Whoever plans from the same snapshot computes the same
plan, so that each process carries out the moves that concern the nodes it serves and needs to
ask nobody. A plan that was made from a stale snapshot does no harm: every move names the
`lease_id` that it was planned from, and fails where that has moved on.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterable, Mapping, Sequence

from dagster_leasehold.lease_store.group_rows import AssignmentMode, Node, Snapshot
from dagster_leasehold.lease_store.identifiers import NodeName
from dagster_leasehold.lease_store.rules.assignment_modes import (
    modulo_applies,
    plan_modulo,
    plan_pinned,
)
from dagster_leasehold.lease_store.rules.assignment_plan import (
    Action,
    BeginTransfer,
    CancelTransfer,
    Claim,
    Plan,
    Unassigned,
    rank_key,
)
from dagster_leasehold.lease_store.rules.holdings import Holdings, holdings_of
from dagster_leasehold.lease_store.rules.states import ShardState, may_start
from dagster_leasehold.lease_store.rules.weighted_plan import plan_weighted, weighed
from dagster_leasehold.lease_store.shard_rows import ShardLease

_Owned = tuple[NodeName, ShardLease]


def plan(snapshot: Snapshot, *, live: Collection[NodeName]) -> Plan:
    """The moves that this group needs now, by its assignment mode.

    `live` names the nodes that the caller does not judge dead. A dead node's shards are planned
    for as if they were free already; their claims follow once the node has been evicted.
    """
    group = snapshot.group
    if group.paused:
        return Plan(group.generation, summary=f"{group.key} is paused: nothing changes its owner")
    takers = eligible_nodes(snapshot.nodes, live)
    if group.assignment is AssignmentMode.PINNED:
        return plan_pinned(snapshot, takers=takers, live=live)
    if group.assignment is AssignmentMode.MODULO and modulo_applies(snapshot.nodes):
        return plan_modulo(snapshot, takers=takers, live=live)
    return _plan_balanced(snapshot, takers=takers, live=live)


def eligible_nodes(nodes: Iterable[Node], live: Collection[NodeName]) -> tuple[NodeName, ...]:
    """The live members that take runs, by name."""
    names = (node.name for node in nodes if node.member and node.accepts_runs and node.name in live)
    return tuple(sorted(names, key=rank_key))


def orphans(snapshot: Snapshot) -> list[str]:
    """Shards that only `free_orphans` can reach, each with its reason, in order of their names.

    A shard held by, or on its way to, a node that is no member; a shard in transfer that no run
    has open; a waiting shard whose parents are all finished. They are left by changes that the
    store did not see as one transaction.
    """
    members = {node.name for node in snapshot.nodes if node.member}
    known: dict[str, ShardState] = {lease.shard: lease.state for lease in snapshot.shards}
    found: list[str] = []
    for lease in sorted(snapshot.shards, key=lambda lease: rank_key(lease.shard)):
        if lease.state is ShardState.WAIT and may_start(
            ordered=snapshot.group.ordered,
            parents=lease.parents,
            known=known,
            gone=lease.gone_parents,
        ):
            found.append(f"{lease.shard} waits for parents that are finished")
        elif lease.state.held:
            gone = {lease.lease_owner, lease.consumer_owner} - members
            if gone:
                found.append(f"{lease.shard} belongs to {min(map(str, gone))}, no member any more")
            elif lease.state is ShardState.TRANSFER and not lease.consumer_run:
                found.append(f"{lease.shard} is in transfer, but no run has it open")
    return found


def balanced_quotas(
    held: Mapping[NodeName, int], shards: int, cap: int | None = None
) -> dict[NodeName, int]:
    """How many shards each node shall have: floor or ceil of the average, at most `cap`.

    The larger shares go to nodes that hold more than the smaller one: each of them may then keep
    one shard more, which is what makes the number of moves smallest. Among equals the name
    decides, and nothing that changes while a plan is carried out:

    1. Three empty nodes share 8 shards: 3, 3, 2 by name. The last of them plans first and
       claims its 2.
    2. Were the larger shares to follow the counts, it would now be the fullest, and claim a third
       that the plan of the others does not give it.
    """
    if not held:
        return {}
    assignable = shards if cap is None else min(shards, cap * len(held))
    base, extra = divmod(assignable, len(held))
    order = sorted(held, key=lambda node: (held[node] <= base, rank_key(node)))
    return {node: base + (place < extra) for place, node in enumerate(order)}


def moves_lower_bound(held: Mapping[NodeName, int], shards: int, cap: int | None = None) -> int:
    """The fewest changes of owner that lead to shares of floor or ceil, by counting what can stay.

    A node keeps at most `floor` of its shards, and one more if it is among the few with a share
    of `ceil`; every shard that is not kept has to change its owner.
    """
    if not held:
        return 0
    assignable = shards if cap is None else min(shards, cap * len(held))
    base, extra = divmod(assignable, len(held))
    kept = sum(min(count, base) for count in held.values())
    kept += min(extra, sum(count > base for count in held.values()))
    return assignable - kept


def _plan_balanced(
    snapshot: Snapshot, *, takers: Sequence[NodeName], live: Collection[NodeName]
) -> Plan:
    """Floor or ceil of the average for every taker, with the fewest moves.

    `wait` and `over` shards do not count, nor do those that the source does not let anyone
    subscribe to: they stay with whom they are. Where shards weigh differently, their load is
    levelled instead; equal weights are the same as none.
    """
    group = snapshot.group
    counted = [lease for lease in snapshot.shards if lease.state.consumable and lease.subscribable]
    if not takers:
        return Plan(
            group.generation,
            unassigned=tuple(
                Unassigned(lease.shard, "no live node takes runs")
                for lease in sorted(counted, key=lambda lease: rank_key(lease.shard))
            ),
            summary=f"{len(counted)} shards can be consumed, but no live node takes runs",
        )
    holdings = holdings_of(counted, takers, live)
    weights = weighed(snapshot, counted)
    if len(set(weights.values())) > 1:
        return plan_weighted(group, holdings, weights)
    held = {node: len(leases) for node, leases in holdings.kept.items()}
    quotas = balanced_quotas(held, len(counted), group.node_cap)
    staying, leaving = _surplus(holdings, quotas)
    moves = _Moves(held, quotas)
    for lease in holdings.returning:
        moves.give_back(lease)
    # First, so that nothing else takes the room that makes their move cost nothing:
    for node, lease in staying:
        moves.place(lease, node)
    for lease in holdings.free:
        moves.place(lease, None)
    for lease in holdings.homeless:
        moves.place(lease, lease.lease_owner)
    returning = {lease.shard for lease in holdings.returning}
    for node, lease in leaving:
        moves.place(lease, node, given_back=lease.shard in returning)
    proof = _proof(holdings, held, quotas, moves)
    return Plan(
        generation=group.generation,
        actions=tuple(moves.actions),
        unassigned=tuple(moves.unassigned),
        counts=tuple(sorted(moves.counts.items(), key=lambda item: rank_key(item[0]))),
        moves=moves.moves,
        moves_minimum=moves_lower_bound(held, len(counted), group.node_cap) + len(returning),
        summary=_summary(len(counted), quotas),
        proof=proof,
    )


def _surplus(
    holdings: Holdings, quotas: Mapping[NodeName, int]
) -> tuple[list[_Owned], list[_Owned]]:
    """What nodes have beyond their quotas: what can stay with its holder, and what has to leave.

    A shard on its way to a node can still stay where it is, at no cost at all, if its holder has
    room; any other inbound shard would first have to go back, so it is the last choice.
    """
    room = {node: quotas[node] - len(leases) for node, leases in holdings.kept.items()}
    returning = {lease.shard for lease in holdings.returning}
    staying: list[_Owned] = []
    leaving: list[_Owned] = []
    for node, leases in holdings.kept.items():
        excess = len(leases) - quotas[node]
        if excess <= 0:
            continue
        cheap: list[ShardLease] = []
        usual: list[ShardLease] = []
        costly: list[ShardLease] = []
        for lease in reversed(leases):
            holder = lease.consumer_owner
            if lease.state is not ShardState.TRANSFER:
                usual.append(lease)
            elif holder is not None and lease.shard not in returning and room.get(holder, 0) > 0:
                if len(cheap) < excess:
                    room[holder] -= 1
                    cheap.append(lease)
            else:
                costly.append(lease)
        staying += [(node, lease) for lease in cheap]
        leaving += [(node, lease) for lease in (usual + costly)[: excess - len(cheap)]]
    return staying, leaving


class _Moves:
    """The moves of one plan while it is made: fills the nodes that have room, emptiest first."""

    def __init__(self, held: Mapping[NodeName, int], quotas: Mapping[NodeName, int]) -> None:
        self.counts = dict(held)
        self.quotas = quotas
        self.actions: list[Action] = []
        self.unassigned: list[Unassigned] = []
        self.moves = 0
        self._room = [
            (held[node], rank_key(node), node) for node in held if held[node] < quotas[node]
        ]
        heapq.heapify(self._room)

    def give_back(self, lease: ShardLease) -> None:
        """A transfer to a node that takes no runs ends where it began."""
        holder, following = lease.consumer_owner, lease.lease_owner
        if holder is not None and following is not None:
            reason = f"{following} takes no runs"
            self.actions.append(
                CancelTransfer(lease.shard, holder, following, lease.lease_id, reason)
            )
            self.moves += 1

    def place(self, lease: ShardLease, owner: NodeName | None, *, given_back: bool = False) -> None:
        """Give a shard to the node with room that has fewest; report it where none has room.

        `owner` is who has it now, None where nobody does; `given_back` says that the shard is
        going back to `owner` already, so that its next move has to wait for the next round.
        """
        taker = self._return_to(lease, owner)
        if taker is None:
            taker = self._emptiest()
        if taker is None:
            self._leave(lease, owner)
            return
        if owner is not None and owner in self.counts:
            self.counts[owner] -= 1
        self.counts[taker] += 1
        self.moves += 1
        share = f"{taker} has {self.counts[taker]} of its {self.quotas[taker]} with it"
        if self.counts[taker] < self.quotas[taker]:
            heapq.heappush(self._room, (self.counts[taker], rank_key(taker), taker))
        action = None if given_back else self._action(lease, owner, taker, share)
        if action is not None:
            self.actions.append(action)

    def _action(
        self, lease: ShardLease, owner: NodeName | None, taker: NodeName, share: str
    ) -> Action | None:
        """The move that can be made now; None where the store has to settle something first."""
        if lease.state is ShardState.NOT_ALLOC:
            return Claim(lease.shard, taker, lease.lease_id, f"it is free, and {share}")
        if owner is None:
            return None  # A dead node's: free once the node has been evicted.
        quota = self.quotas.get(owner)
        why = f"{owner} takes no runs" if quota is None else f"{owner} has more than its {quota}"
        if lease.state is ShardState.ALREADY_ALLOC:
            return BeginTransfer(lease.shard, owner, taker, lease.lease_id, f"{why}; {share}")
        holder = lease.consumer_owner
        if holder is not None and holder in self.counts:
            # Where `taker` is a third node, the shard goes on to it in the next round.
            return CancelTransfer(lease.shard, holder, owner, lease.lease_id, f"{why}; {share}")
        return None  # From one node without runs to another: it moves on when it has arrived.

    def _return_to(self, lease: ShardLease, owner: NodeName | None) -> NodeName | None:
        """The holder of a shard in transfer, if it has room to keep it."""
        holder = lease.consumer_owner
        if holder is None or holder == owner:
            return None
        if self.counts.get(holder, 0) >= self.quotas.get(holder, 0):
            return None
        self._room = [entry for entry in self._room if entry[2] != holder]
        heapq.heapify(self._room)
        return holder

    def _emptiest(self) -> NodeName | None:
        return heapq.heappop(self._room)[2] if self._room else None

    def _leave(self, lease: ShardLease, owner: NodeName | None) -> None:
        if owner is None:
            reason = "every live node has as many shards as it may"
        elif owner in self.counts:
            reason = f"{owner} has more than it may, but no other node has room"
        else:
            reason = f"{owner} takes no runs, but no other node has room"
        self.unassigned.append(Unassigned(lease.shard, reason))


def _summary(shards: int, quotas: Mapping[NodeName, int]) -> str:
    low, high = min(quotas.values()), max(quotas.values())
    share = f"{low}" if low == high else f"{low} or {high}"
    nodes = f"{len(quotas)} live nodes" if len(quotas) > 1 else "one live node"
    return f"{shards} shards can be consumed by {nodes}, {share} each"


def _proof(
    holdings: Holdings,
    held: Mapping[NodeName, int],
    quotas: Mapping[NodeName, int],
    moves: _Moves,
) -> tuple[str, ...]:
    """Why every one of the moves is needed: each shard counted has a reason of its own to move."""
    lines: list[str] = []
    for node in sorted(held, key=rank_key):
        if held[node] > quotas[node] and moves.counts[node] < held[node]:
            lines.append(
                f"{node} holds {held[node]} and its share is {quotas[node]}: "
                f"{held[node] - moves.counts[node]} must leave it"
            )
    if holdings.free:
        lines.append(f"{len(holdings.free)} are nobody's: each needs its claim")
    if holdings.homeless:
        lines.append(f"{len(holdings.homeless)} are held by nodes that take no runs: each must go")
    if holdings.returning:
        lines.append(f"{len(holdings.returning)} are promised to nodes that take no runs")
    lines.append("the larger shares are where most can stay, so that no fewer can move")
    return tuple(lines)
