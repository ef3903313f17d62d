"""Plans the fewest moves of shards that give every node of a group its share.

`Rebalancer` calls `plan` with a snapshot. The rules are pure (no clock, no I/O, no randomness), so
all processes compute the same plan from the same snapshot, and each carries out the moves of its
own nodes. A plan from a stale snapshot does no harm: every move names the `lease_id` from the
snapshot, and fails if the shard's row has changed.

By count, every node gets floor or ceil of the average, with the fewest moves. By load, every node
gets about the same records per second. Unassigned shards, heaviest first, go to the node with the
least load. Then held shards move from the heaviest nodes to the lightest, one at a time, until both
are within a twentieth of the mean or no move helps. A small change of a weight must not cause
moves. So these moves are made only in one of four cases:

* together they reduce the highest load by more than a tenth;
* they increase the lowest load by more than a tenth of the mean;
* a node carries more than the mean and one heaviest shard;
* they relieve a node with several shards, one of which outweighs the mean.

Moves depend on loads and weights only, so after a plan is carried out, the next plan is empty.

The weight of a shard is its records per second in the ledger, rounded so that it seldom changes.
Commit times in the ledger are compared only with each other, and only determine load.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import frexp, ldexp

from dagster_leasehold.lease_store.group_rows import AssignmentMode, Group, Node, Snapshot
from dagster_leasehold.lease_store.identifiers import NodeName, ShardId
from dagster_leasehold.lease_store.ledger_rows import Throughput
from dagster_leasehold.lease_store.rules import assignment_plan
from dagster_leasehold.lease_store.rules import assignment_plan as plans
from dagster_leasehold.lease_store.rules.assignment_plan import rank_key
from dagster_leasehold.lease_store.rules.lineage import unlisted_parents, why_waiting
from dagster_leasehold.lease_store.rules.states import ShardState, may_start
from dagster_leasehold.lease_store.shard_rows import ShardLease

_Owned = tuple[NodeName, ShardLease]

RELIEF_MIN = 0.1
"""Held shards move only if the highest or lowest load improves by at least this part."""
LEVEL = 0.05
"""Loads that differ from the mean by at most this part of it count as level."""

SPAN_MIN_S = 1.0
WEIGHT_MIN = 1.0
WEIGHT_RATIO_MAX = 64.0
MANTISSA_STEPS = 8
CAPPED = "every live node has as many shards as the node cap"
UNASSIGNED = "it is unassigned"

_Entry = tuple[bool, object, ShardId]


def tie_break(node: NodeName) -> tuple[object, ...]:
    """Return the sort key for nodes that are otherwise equal.

    The first node gets the larger share and the next free shard. The key depends on the node alone,
    so that all processes of a group compute the same plan.
    """
    return rank_key(node)


def balanced_quotas(
    counts: Mapping[NodeName, int], shards: int, cap: int | None = None
) -> dict[NodeName, int]:
    """Return the share of each node: floor or ceil of the average number, at most `cap`.

    The larger shares go to nodes that hold more than the smaller share, so that each keeps one
    shard more; that minimizes the moves. Among equal nodes `tie_break` decides, not the number of
    shards that a node holds, because that changes while a plan is carried out:

    1. Three empty nodes share 8 shards: 3, 3, 2 by name. The last node plans first, and claims 2.
    2. If larger shares went to the fullest nodes, the last node would now claim a third shard,
       which is another node's in their plans.
    """
    if not counts:
        return {}
    assignable = shards if cap is None else min(shards, cap * len(counts))
    base, extra = divmod(assignable, len(counts))
    order = sorted(counts, key=lambda node: (counts[node] <= base, tie_break(node)))
    return {node: base + (place < extra) for place, node in enumerate(order)}


def moves_lower_bound(counts: Mapping[NodeName, int], shards: int, cap: int | None = None) -> int:
    """Count the fewest changes of owner that lead to shares of floor or ceil.

    A node keeps at most `floor` of its shards, or `ceil` if its share is `ceil`. Every other shard
    has to change its owner.
    """
    if not counts:
        return 0
    assignable = shards if cap is None else min(shards, cap * len(counts))
    base, extra = divmod(assignable, len(counts))
    staying = sum(min(count, base) for count in counts.values())
    staying += min(extra, sum(count > base for count in counts.values()))
    return assignable - staying


def plan_balanced(group: Group, holdings: plans.Holdings) -> plans.Plan:
    """Plan floor or ceil of the average for each node that takes runs, with the fewest moves."""
    shards = sum(map(len, holdings.own.values())) + len(holdings.free) + len(holdings.outgoing)
    counts = {node: len(leases) for node, leases in holdings.own.items()}
    quotas = balanced_quotas(counts, shards, group.node_cap)
    staying, leaving = _surplus(holdings, quotas)
    moves = _Moves(counts, quotas)
    for lease in holdings.returning:
        moves.give_back(lease)
    # These moves cost nothing if their holders have room, so they come first.
    for node, lease in staying:
        moves.place(lease, node)
    for lease in holdings.free:
        moves.place(lease, None)
    for lease in holdings.outgoing:
        moves.place(lease, lease.lease_owner)
    returning = {lease.shard for lease in holdings.returning}
    for node, lease in leaving:
        moves.place(lease, node, given_back=lease.shard in returning)
    proof = _proof(holdings, counts, quotas, moves)
    return plans.Plan(
        generation=group.generation,
        actions=tuple(moves.actions),
        unassigned=tuple(moves.unassigned),
        counts=tuple(sorted(moves.counts.items(), key=lambda item: rank_key(item[0]))),
        moves=moves.moves,
        moves_minimum=moves_lower_bound(counts, shards, group.node_cap) + len(returning),
        summary=_summary(shards, quotas),
        proof=proof,
    )


def _surplus(
    holdings: plans.Holdings, quotas: Mapping[NodeName, int]
) -> tuple[list[_Owned], list[_Owned]]:
    """Return the shards beyond the nodes' quotas that stay with their holders, and the others.

    If a shard is in transfer to a full node and its holder has room, cancelling the transfer costs
    nothing. Any other shard in transfer would first have to return, so it is selected last.
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
    """The moves of one plan; it fills nodes that have room, emptiest first."""

    def __init__(self, counts: Mapping[NodeName, int], quotas: Mapping[NodeName, int]) -> None:
        self.counts = dict(counts)
        self.quotas = quotas
        self.actions: list[plans.Action] = []
        self.unassigned: list[plans.Unassigned] = []
        self.moves = 0
        self._room = [
            (counts[node], tie_break(node), node) for node in counts if counts[node] < quotas[node]
        ]
        heapq.heapify(self._room)

    def give_back(self, lease: ShardLease) -> None:
        """Cancel a transfer to a node that takes no runs."""
        holder, following = lease.consumer_owner, lease.lease_owner
        if holder is not None and following is not None:
            reason = f"{following} takes no runs"
            action = plans.next_action(lease, following, holder, reason)
            self.actions += [action] if action else []
            self.moves += 1

    def place(self, lease: ShardLease, owner: NodeName | None, *, given_back: bool = False) -> None:
        """Assign a shard to the emptiest node with room, or report it as unassigned.

        `owner` is the shard's present owner, or None. With `given_back`, the shard is already
        returning to `owner`, so its next move waits for the next round.
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
        share = f"{taker} then has {self.counts[taker]} of {self.quotas[taker]} shards"
        if self.counts[taker] < self.quotas[taker]:
            heapq.heappush(self._room, (self.counts[taker], tie_break(taker), taker))
        action = None if given_back else self._action(lease, owner, taker, share)
        if action is not None:
            self.actions.append(action)

    def _action(
        self, lease: ShardLease, owner: NodeName | None, taker: NodeName, share: str
    ) -> plans.Action | None:
        """Return the move that is possible now; None if it must wait for a later round."""
        if lease.state is ShardState.TRANSFER and lease.consumer_owner not in self.counts:
            return None  # In transfer between two nodes that take no runs: it moves afterwards.
        quota = self.quotas.get(owner) if owner else None
        why = f"{owner} takes no runs"
        if quota is not None:
            why = f"{owner} has more than its share of {quota}"
        why = UNASSIGNED if lease.state is ShardState.NOT_ALLOC else why
        return plans.next_action(lease, owner, taker, f"{why}; {share}")

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
            reason = CAPPED
        elif owner in self.counts:
            reason = f"{owner} has more shards than the node cap, but no other node has room"
        else:
            reason = f"{owner} takes no runs, but no other node has room"
        self.unassigned.append(plans.Unassigned(lease.shard, reason))


def _summary(shards: int, quotas: Mapping[NodeName, int]) -> str:
    low, high = min(quotas.values()), max(quotas.values())
    share = f"{low}" if low == high else f"{low} or {high}"
    nodes = _counted(len(quotas), "live node")
    return f"{_counted(shards, 'consumable shard')} on {nodes}, {share} each"


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _proof(
    holdings: plans.Holdings,
    counts: Mapping[NodeName, int],
    quotas: Mapping[NodeName, int],
    moves: _Moves,
) -> tuple[str, ...]:
    lines: list[str] = []
    for node in sorted(counts, key=rank_key):
        if counts[node] > quotas[node] and moves.counts[node] < counts[node]:
            lines.append(
                f"{node} has {counts[node]} shards and a share of {quotas[node]}, so "
                f"{counts[node] - moves.counts[node]} must move"
            )
    if holdings.free:
        lines.append(f"{_counted(len(holdings.free), 'unassigned shard')} must be claimed")
    if holdings.outgoing:
        lines.append(
            f"{_counted(len(holdings.outgoing), 'shard')} of nodes that take no runs must move"
        )
    if holdings.returning:
        lines.append(
            f"{_counted(len(holdings.returning), 'transfer')} to nodes that take no runs must end"
        )
    lines.append("larger shares go to nodes with more shards, so that the fewest shards move")
    return tuple(lines)


def learned_weights(throughputs: Iterable[Throughput]) -> dict[ShardId, float]:
    """Return the records per second of each shard, rounded to three binary digits.

    A shard's interval ends at the newest commit of the whole group, so an idle shard gets lighter
    while others continue. A shard with a single batch has no rate yet. The least weight is one
    record per second, or a 64th of the heaviest if that is more, because idle shards also cost
    work.
    """
    rows = [row for row in throughputs if row.batches > 1]
    if not rows:
        return {}
    newest = max(row.last_at for row in rows)
    rates: dict[ShardId, float] = {}
    for row in rows:
        # The oldest batch only marks the start of the interval, which excludes its records.
        records = row.records * (row.batches - 1) / row.batches
        rates[row.shard] = records / max((newest - row.first_at).total_seconds(), SPAN_MIN_S)
    floor = max(WEIGHT_MIN, max(map(quantised, rates.values())) / WEIGHT_RATIO_MAX)
    return {shard: max(floor, quantised(rate)) for shard, rate in rates.items()}


def quantised(rate: float) -> float:
    """Round to three binary digits, so that sums are exact in any order."""
    mantissa, exponent = frexp(rate)
    return ldexp(round(mantissa * MANTISSA_STEPS) / MANTISSA_STEPS, exponent)


def weighed(snapshot: Snapshot, shards: Iterable[ShardLease]) -> dict[ShardId, float]:
    """Return the weight of each shard; empty if the group balances by count or has no weights.

    A shard without a weight, such as a new one, gets the median of the others.
    """
    if not snapshot.group.weighted:
        return {}
    names = [lease.shard for lease in shards]
    learned = sorted(snapshot.weights[shard] for shard in names if shard in snapshot.weights)
    if not learned:
        return {}
    middle = learned[len(learned) // 2]
    return {shard: snapshot.weights.get(shard, middle) for shard in names}


@dataclass(slots=True)
class _Share:
    """The share of one node; `shelves` has its movable shards by weight, unassigned first."""

    node: NodeName
    load: float = 0.0
    count: int = 0
    shelves: dict[float, list[_Entry]] = field(default_factory=dict[float, list[_Entry]])

    def put(self, weight: float, entry: _Entry) -> None:
        self.load += weight
        self.count += 1
        heapq.heappush(self.shelves.setdefault(weight, []), entry)

    def take(self, weight: float) -> _Entry:
        self.load -= weight
        self.count -= 1
        entry = heapq.heappop(self.shelves[weight])
        if not self.shelves[weight]:
            del self.shelves[weight]
        return entry

    def remove(self, weight: float, entry: _Entry) -> None:
        self.load -= weight
        self.count -= 1
        shelf = self.shelves[weight]
        shelf.remove(entry)
        heapq.heapify(shelf)
        if not shelf:
            del self.shelves[weight]

    def rank(self) -> tuple[float, int, object]:
        return self.load, self.count, tie_break(self.node)


class _Levelling:
    """The shares of all nodes while a plan is made."""

    def __init__(self, holdings: plans.Holdings, weights: Mapping[ShardId, float], cap: int | None):
        self._weights = weights
        self._cap = cap
        self.shares = {node: _Share(node) for node in holdings.own}
        self.targets: dict[ShardId, NodeName | None] = {}
        self._mean = sum(weights.values()) / len(self.shares)
        self._heaviest = max(weights.values())
        for node, leases in holdings.own.items():
            for lease in leases:
                self.targets[lease.shard] = node
                if lease.state is ShardState.TRANSFER:
                    # A shard in transfer cannot move again before it has arrived.
                    self.shares[node].load += weights[lease.shard]
                    self.shares[node].count += 1
                else:
                    self.shares[node].put(weights[lease.shard], _entry(lease.shard, owned=True))

    def place(self, leases: Iterable[ShardLease]) -> None:
        """Assign shards without an owner to the nodes with the least load, heaviest first."""
        heaviest_first = sorted(
            leases, key=lambda lease: (-self._weights[lease.shard], rank_key(lease.shard))
        )
        for lease in heaviest_first:
            taker = self._lightest()
            self.targets[lease.shard] = taker.node if taker else None
            if taker:
                taker.put(self._weights[lease.shard], _entry(lease.shard, owned=False))

    def shed(self) -> None:
        """Move shards, lightest first, away from nodes that have more than the cap."""
        for share in sorted(self.shares.values(), key=_Share.rank, reverse=True):
            while self._cap is not None and share.count > self._cap and share.shelves:
                taker = self._lightest()
                if taker is None:
                    return
                self._move(share, taker, min(share.shelves))

    def level(self) -> None:
        """Move shards from the heaviest nodes to the lightest, and undo that if it helps little."""
        before, crowded = self._extremes(), self._crowded()
        moved: list[tuple[_Share, _Share, float, _Entry]] = []
        # A giver only gets lighter, and the lightest load only increases. So a giver without a
        # useful move has none later, unless it receives a shard.
        stuck: set[NodeName] = set()
        while (pair := self._pair(stuck)) is not None:
            giver, taker = pair
            weight = _best(giver, taker)
            if weight is None:
                stuck.add(giver.node)
                continue
            stuck.discard(taker.node)
            moved.append((giver, taker, weight, self._move(giver, taker, weight)))
        relieved = any(share.load < load for share, load in crowded)
        if not relieved and not self._worth_it(before, self._extremes()):
            for giver, taker, weight, entry in reversed(moved):
                taker.remove(weight, entry)
                giver.put(weight, entry)
                self.targets[entry[2]] = giver.node

    def _pair(self, stuck: Collection[NodeName]) -> tuple[_Share, _Share] | None:
        """Return the heaviest node that can give and the lightest that can take; None if level."""
        givers = [share for share in self.shares.values() if share.node not in stuck]
        giver = max(givers, key=_Share.rank, default=None)
        taker = self._lightest(giver)
        if giver is None or taker is None:
            return None
        too_much = min((1 + LEVEL) * self._mean, self._mean + self._heaviest)
        level = giver.load <= too_much and taker.load >= (1 - LEVEL) * self._mean
        return None if level else (giver, taker)

    def _extremes(self) -> tuple[float, float]:
        loads = [share.load for share in self.shares.values()]
        return min(loads), max(loads)

    def _crowded(self) -> list[tuple[_Share, float]]:
        """Return the nodes with a shard above the mean load and other shards, and their loads.

        On such a node the shards delay each other, while other nodes are less busy.
        """
        return [
            (share, share.load)
            for share in self.shares.values()
            if share.count > 1 and max(share.shelves, default=0.0) > self._mean
        ]

    def _worth_it(self, before: tuple[float, float], after: tuple[float, float]) -> bool:
        """Return True if moves relieve the heaviest node, or help the lightest, by over a tenth."""
        relieved = after[1] < (1 - RELIEF_MIN) * before[1]
        helped = after[0] > before[0] + RELIEF_MIN * self._mean
        return relieved or helped or before[1] > self._mean + self._heaviest

    def _move(self, giver: _Share, taker: _Share, weight: float) -> _Entry:
        entry = giver.take(weight)
        taker.put(weight, entry)
        self.targets[entry[2]] = taker.node
        return entry

    def _lightest(self, giver: _Share | None = None) -> _Share | None:
        """Return the node with the least load that can take one shard more."""
        able = (
            share
            for share in self.shares.values()
            if share is not giver and (self._cap is None or share.count < self._cap)
        )
        return min(able, key=_Share.rank, default=None)


def _entry(shard: ShardId, *, owned: bool) -> _Entry:
    """Return the sort entry of a shard among shards of one weight: held shards move last."""
    return owned, rank_key(shard), shard


def _best(giver: _Share, taker: _Share) -> float | None:
    """Return the weight whose move minimizes the higher of two loads; None if none helps."""
    helping = [weight for weight in giver.shelves if weight < giver.load - taker.load]
    return min(
        helping,
        key=lambda weight: (max(giver.load - weight, taker.load + weight), weight),
        default=None,
    )


def plan_weighted(
    group: Group, holdings: plans.Holdings, weights: Mapping[ShardId, float]
) -> plans.Plan:
    """Return the moves that level the load; `weights` has every shard of `holdings`."""
    before = _loads(holdings, weights)
    levelling = _Levelling(holdings, weights, group.node_cap)
    levelling.place([*holdings.free, *holdings.outgoing])
    levelling.shed()
    levelling.level()
    actions: list[plans.Action] = []
    unassigned: list[plans.Unassigned] = []
    moves = 0
    for lease, owner in _owned(holdings):
        target = levelling.targets[lease.shard]
        if target is None:
            reason = CAPPED
            unassigned.append(plans.Unassigned(lease.shard, reason))
        elif target != owner:
            moves += 1
            load = levelling.shares[target].load
            action = _action(lease, owner, target, weights[lease.shard], load)
            actions += [action] if action else []
    ranked = sorted(levelling.shares.values(), key=lambda share: rank_key(share.node))
    needed = len(holdings.free) + len(holdings.outgoing) + len(holdings.returning) - len(unassigned)
    return plans.Plan(
        generation=group.generation,
        actions=tuple(actions),
        unassigned=tuple(unassigned),
        counts=tuple((share.node, share.count) for share in ranked),
        moves=moves,
        moves_minimum=needed,
        summary=(
            f"{len(weights)} consumable shards with {sum(weights.values()):g} records/s on "
            f"{len(ranked)} live nodes, {sum(weights.values()) / len(ranked):g} each on average"
        ),
        proof=_weighted_proof(before, levelling, needed, moves),
        loads=tuple((share.node, share.load) for share in ranked),
    )


def _loads(holdings: plans.Holdings, weights: Mapping[ShardId, float]) -> dict[NodeName, float]:
    return {
        node: sum(weights[lease.shard] for lease in leases) for node, leases in holdings.own.items()
    }


def _owned(holdings: plans.Holdings) -> list[tuple[ShardLease, NodeName | None]]:
    """Pair every shard with its owner, sorted by shard; the owner of a free shard is None."""
    pairs: list[tuple[ShardLease, NodeName | None]] = [(lease, None) for lease in holdings.free]
    pairs += [(lease, lease.lease_owner) for lease in holdings.outgoing]
    for leases in holdings.own.values():
        pairs += [(lease, lease.lease_owner) for lease in leases]
    return sorted(pairs, key=lambda pair: rank_key(pair[0].shard))


def _action(
    lease: ShardLease, owner: NodeName | None, target: NodeName, weight: float, load: float
) -> plans.Action | None:
    """Return the move that is possible now; None if it must wait for a later round."""
    reason = f"{owner} takes no runs"
    if lease.state is ShardState.TRANSFER:
        if lease.consumer_owner != target:
            return None  # In transfer between two nodes that take no runs: it moves afterwards.
    else:
        unassigned = lease.state is ShardState.NOT_ALLOC
        why = (
            UNASSIGNED if unassigned else f"{owner} has more load than its share, or takes no runs"
        )
        reason = f"{why}; {target} then has {load:g} records/s, {weight:g} from this shard"
    return plans.next_action(lease, owner, target, reason)


def _weighted_proof(
    before: Mapping[NodeName, float], levelling: _Levelling, needed: int, moves: int
) -> tuple[str, ...]:
    lines = [f"moves of shards that are unassigned or on nodes that take no runs: {needed}"]
    if moves > needed:
        highest = max(before.values())
        after = max(share.load for share in levelling.shares.values())
        lines.append(
            f"further moves that level the loads: {moves - needed}; the highest load changes from "
            f"{highest:g} to {after:g} records/s, with the shards that were unassigned"
        )
    else:
        lines.append(f"further moves would level the loads by less than {RELIEF_MIN:.0%}")
    return tuple(lines)


def plan(snapshot: Snapshot, *, live: Collection[NodeName]) -> plans.Plan:
    """Return the moves that this group needs now, by its assignment mode.

    `live` has the nodes that the caller does not consider dead. The plan treats a dead node's
    shards as free, although they can be claimed only after the node's eviction.
    """
    group = snapshot.group
    if group.paused:
        return plans.Plan(group.generation, summary=f"{group.key} is paused, so no shard moves")
    moves = _plan_by_mode(snapshot, live=live)
    waiting = stranded(snapshot)
    return replace(moves, unassigned=moves.unassigned + waiting) if waiting else moves


def _plan_by_mode(snapshot: Snapshot, *, live: Collection[NodeName]) -> plans.Plan:
    group = snapshot.group
    takers = eligible_nodes(snapshot.nodes, live)
    if group.assignment is AssignmentMode.PINNED:
        return assignment_plan.plan_pinned(snapshot, takers=takers, live=live)
    if group.assignment is AssignmentMode.MODULO and assignment_plan.modulo_applies(snapshot.nodes):
        return assignment_plan.plan_modulo(snapshot, takers=takers, live=live)
    return _plan_shared(snapshot, takers=takers, live=live)


def stranded(snapshot: Snapshot) -> tuple[plans.Unassigned, ...]:
    """Return the shards that wait for parents that were never listed."""
    waiting = [lease for lease in snapshot.shards if lease.state is ShardState.WAIT]
    if not waiting:
        return ()
    states: dict[str, ShardState] = {lease.shard: lease.state for lease in snapshot.shards}
    return tuple(
        plans.Unassigned(lease.shard, f"it {why_waiting(lease, states)}")
        for lease in sorted(waiting, key=lambda lease: rank_key(lease.shard))
        if unlisted_parents(lease, states)
    )


def _plan_shared(
    snapshot: Snapshot, *, takers: Sequence[NodeName], live: Collection[NodeName]
) -> plans.Plan:
    """Share the consumable shards among the nodes that take runs, by count or by load.

    Shards in state `wait` or `over` do not count. Shards that are not subscribable stay with their
    owners. If all weights are equal, shards are shared by count.
    """
    group = snapshot.group
    counted = [lease for lease in snapshot.shards if lease.state.consumable and lease.subscribable]
    if not takers:
        return plans.Plan(
            group.generation,
            unassigned=tuple(
                plans.Unassigned(lease.shard, "no live node takes runs")
                for lease in plans.ranked(counted)
            ),
            summary=f"{len(counted)} consumable shards, but no live node takes runs",
        )
    holdings = plans.holdings_of(counted, takers, live)
    weights = weighed(snapshot, counted)
    if len(set(weights.values())) > 1:
        return plan_weighted(group, holdings, weights)
    return plan_balanced(group, holdings)


def fewest_moves(
    snapshot: Snapshot, *, live: Collection[NodeName], owners: Mapping[ShardId, NodeName]
) -> int:
    """Count the fewest changes of owner from the earlier `owners` to a settled group."""
    rows: list[ShardLease] = []
    for lease in snapshot.shards:
        owner = owners.get(lease.shard)
        owner = owner if owner in live else None
        state = ShardState.ALREADY_ALLOC if owner else ShardState.NOT_ALLOC
        before = replace(lease, state=state, lease_owner=owner, consumer_owner=owner)
        rows.append(before if lease.state.consumable else lease)
    if snapshot.group.weighted:
        # By load, only the moves of shards whose owner has left are proven to be necessary.
        assigned = {lease.shard for lease in snapshot.shards if lease.state.held}
        return sum(row.state is ShardState.NOT_ALLOC and row.shard in assigned for row in rows)
    return plan(replace(snapshot, shards=tuple(rows)), live=live).moves_minimum


def eligible_nodes(nodes: Iterable[Node], live: Collection[NodeName]) -> tuple[NodeName, ...]:
    """Return the live members that take runs, by name."""
    names = (node.name for node in nodes if node.member and node.accepts_runs and node.name in live)
    return tuple(sorted(names, key=rank_key))


def orphans(snapshot: Snapshot) -> list[str]:
    """List the shards that only `free_orphans` can release, each with its reason.

    These are shards whose holder or next node is not a member, shards in transfer that no run has
    open, and waiting shards whose parents are all finished. They result from manual changes, or
    changes over several transactions.
    """
    members = {node.name for node in snapshot.nodes if node.member}
    states: dict[str, ShardState] = {lease.shard: lease.state for lease in snapshot.shards}
    reasons: dict[ShardId, str] = {}
    for lease in snapshot.shards:
        if lease.state is ShardState.WAIT and may_start(
            ordered=snapshot.group.ordered,
            parents=lease.parents,
            states=states,
            removed=lease.gone_parents,
        ):
            reasons[lease.shard] = "waits for parents that are finished"
        elif lease.state.held:
            owner, holder = lease.lease_owner, lease.consumer_owner
            if owner not in members or holder not in members:
                absent = {owner, holder} - members
                reasons[lease.shard] = f"belongs to {min(map(str, absent))}, which has left"
            elif lease.state is ShardState.TRANSFER and not lease.consumer_run:
                reasons[lease.shard] = "is in transfer, but no run has it open"
    return [f"{shard} {reasons[shard]}" for shard in sorted(reasons, key=rank_key)]
