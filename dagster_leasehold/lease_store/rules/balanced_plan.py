"""Planning by count: every node gets floor or ceil of the average, with the fewest moves.

Pure, as all of planning is. The order among nodes that are equal to the rule is `tie_break`.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping

from dagster_leasehold.lease_store.group_rows import Group
from dagster_leasehold.lease_store.identifiers import NodeName
from dagster_leasehold.lease_store.rules import assignment_plan as plans
from dagster_leasehold.lease_store.rules.assignment_plan import rank_key
from dagster_leasehold.lease_store.rules.states import ShardState
from dagster_leasehold.lease_store.shard_rows import ShardLease

_Owned = tuple[NodeName, ShardLease]


def tie_break(node: NodeName) -> tuple[object, ...]:
    """Return the place of a node among those that are equal to the rule: the least comes first.

    The first of them gets the larger share and the next free shard. It must be a function of the
    node alone, so that all processes of a group plan alike.
    """
    return rank_key(node)


def balanced_quotas(
    held: Mapping[NodeName, int], shards: int, cap: int | None = None
) -> dict[NodeName, int]:
    """Return the share of each node: floor or ceil of the average number, at most `cap`.

    The larger shares go to nodes that hold more than the smaller one: each of them may then keep
    one shard more, which is what makes the number of moves smallest. Among equals `tie_break`
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
    order = sorted(held, key=lambda node: (held[node] <= base, tie_break(node)))
    return {node: base + (place < extra) for place, node in enumerate(order)}


def moves_lower_bound(held: Mapping[NodeName, int], shards: int, cap: int | None = None) -> int:
    """Count the fewest changes of owner that lead to shares of floor or ceil, by what can stay.

    A node keeps at most `floor` of its shards, and one more if it is among the few with a share
    of `ceil`; every shard that is not kept has to change its owner.
    """
    if not held:
        return 0
    assignable = shards if cap is None else min(shards, cap * len(held))
    base, extra = divmod(assignable, len(held))
    staying = sum(min(count, base) for count in held.values())
    staying += min(extra, sum(count > base for count in held.values()))
    return assignable - staying


def plan_balanced(group: Group, holdings: plans.Holdings) -> plans.Plan:
    """Give every taker floor or ceil of the average, with the fewest moves."""
    shards = sum(map(len, holdings.own.values())) + len(holdings.free) + len(holdings.homeless)
    held = {node: len(leases) for node, leases in holdings.own.items()}
    quotas = balanced_quotas(held, shards, group.node_cap)
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
    return plans.Plan(
        generation=group.generation,
        actions=tuple(moves.actions),
        unassigned=tuple(moves.unassigned),
        counts=tuple(sorted(moves.counts.items(), key=lambda item: rank_key(item[0]))),
        moves=moves.moves,
        moves_minimum=moves_lower_bound(held, shards, group.node_cap) + len(returning),
        summary=_summary(shards, quotas),
        proof=proof,
    )


def _surplus(
    holdings: plans.Holdings, quotas: Mapping[NodeName, int]
) -> tuple[list[_Owned], list[_Owned]]:
    """Sort what nodes have beyond their quotas: what can stay with its holder, what has to leave.

    A shard on its way to a node can still stay where it is, at no cost at all, if its holder has
    room; any other inbound shard would first have to go back, so it is the last choice.
    """
    room = {node: quotas[node] - len(leases) for node, leases in holdings.own.items()}
    returning = {lease.shard for lease in holdings.returning}
    staying: list[_Owned] = []
    leaving: list[_Owned] = []
    for node, leases in holdings.own.items():
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
        self.actions: list[plans.Action] = []
        self.unassigned: list[plans.Unassigned] = []
        self.moves = 0
        self._room = [
            (held[node], tie_break(node), node) for node in held if held[node] < quotas[node]
        ]
        heapq.heapify(self._room)

    def give_back(self, lease: ShardLease) -> None:
        """End a transfer to a node that takes no runs where it began."""
        holder, following = lease.consumer_owner, lease.lease_owner
        if holder is not None and following is not None:
            reason = f"{following} takes no runs"
            self.actions.append(
                plans.CancelTransfer(lease.shard, holder, following, lease.lease_id, reason)
            )
            self.moves += 1

    def place(self, lease: ShardLease, owner: NodeName | None, *, given_back: bool = False) -> None:
        """Give a shard to the node with room that has fewest; report it where none has room.

        `owner` is the node that has it now, or None; `given_back` means that the shard is going
        back to `owner` already, so that its next move has to wait for the next round.
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
            heapq.heappush(self._room, (self.counts[taker], tie_break(taker), taker))
        action = None if given_back else self._action(lease, owner, taker, share)
        if action is not None:
            self.actions.append(action)

    def _action(
        self, lease: ShardLease, owner: NodeName | None, taker: NodeName, share: str
    ) -> plans.Action | None:
        """Return the move that can be made now; None if the store has to settle something first."""
        if lease.state is ShardState.NOT_ALLOC:
            return plans.Claim(lease.shard, taker, lease.lease_id, f"it is free, and {share}")
        if owner is None:
            return None  # A dead node's: free once the node has been evicted.
        quota = self.quotas.get(owner)
        why = f"{owner} takes no runs" if quota is None else f"{owner} has more than its {quota}"
        if lease.state is ShardState.ALREADY_ALLOC:
            return plans.BeginTransfer(lease.shard, owner, taker, lease.lease_id, f"{why}; {share}")
        holder = lease.consumer_owner
        if holder is not None and holder in self.counts:
            # Where `taker` is a third node, the shard goes on to it in the next round.
            return plans.CancelTransfer(
                lease.shard, holder, owner, lease.lease_id, f"{why}; {share}"
            )
        return None  # From one node without runs to another: it moves on when it has arrived.

    def _return_to(self, lease: ShardLease, owner: NodeName | None) -> NodeName | None:
        """Return the holder of a shard in transfer, if it has room to keep it."""
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
        self.unassigned.append(plans.Unassigned(lease.shard, reason))


def _summary(shards: int, quotas: Mapping[NodeName, int]) -> str:
    low, high = min(quotas.values()), max(quotas.values())
    share = f"{low}" if low == high else f"{low} or {high}"
    nodes = f"{len(quotas)} live nodes" if len(quotas) > 1 else "one live node"
    return f"{shards} shards can be consumed by {nodes}, {share} each"


def _proof(
    holdings: plans.Holdings,
    held: Mapping[NodeName, int],
    quotas: Mapping[NodeName, int],
    moves: _Moves,
) -> tuple[str, ...]:
    """Explain the moves: each shard that is counted has a reason of its own to move."""
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
