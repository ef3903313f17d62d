"""Planning by load: every node gets about the same records per second instead of as many shards.

Free shards go, heaviest first, to the node with the least load. Shards that are held move from the
heaviest nodes to the lightest, one at a time, until both are within a twentieth of the mean or no
move helps. All these moves are made only if together they take more than a tenth off the highest
load, or add more than a tenth of the mean to the lowest, or if a node carries more than the mean
and one heaviest shard: so a weight that changes a little moves nothing, and yet no node ever
carries more than that. A shard that outweighs the mean by itself is a reason, too: its node gives
the others away, however light they are beside it. Moves are chosen by loads and weights alone, so
that a plan that was carried out is followed by an empty one.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from dagster_leasehold.lease_store.group_rows import Group, Snapshot
from dagster_leasehold.lease_store.identifiers import NodeName, ShardId
from dagster_leasehold.lease_store.rules import assignment_plan as plans
from dagster_leasehold.lease_store.rules.assignment_plan import rank_key
from dagster_leasehold.lease_store.rules.balanced_plan import tie_break
from dagster_leasehold.lease_store.rules.states import ShardState
from dagster_leasehold.lease_store.shard_rows import ShardLease

RELIEF_MIN = 0.1
"""The part by which the highest or lowest load has to get better for shards to move."""
LEVEL = 0.05
"""The distance from the mean, as a part of it, within which loads count as level."""

_Entry = tuple[bool, object, ShardId]


def weighed(snapshot: Snapshot, shards: Iterable[ShardLease]) -> dict[ShardId, float]:
    """Return the weight of each shard; nothing if the group balances by count or none has one.

    A shard without a weight of its own, such as a new one, counts like the middle of the others.
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
    """The share of one node: `shelves` are its movable shards by weight, cheapest first."""

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
        """Sort by load, then by count, then as the rule by count breaks ties."""
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
                    # It is on its way already: it may move on once it has arrived.
                    self.shares[node].load += weights[lease.shard]
                    self.shares[node].count += 1
                else:
                    self.shares[node].put(weights[lease.shard], _entry(lease.shard, owned=True))

    def place(self, leases: Iterable[ShardLease]) -> None:
        """Give shards that nobody keeps to the nodes with the least load, heaviest first."""
        heaviest_first = sorted(
            leases, key=lambda lease: (-self._weights[lease.shard], rank_key(lease.shard))
        )
        for lease in heaviest_first:
            taker = self._lightest()
            self.targets[lease.shard] = taker.node if taker else None
            if taker:
                taker.put(self._weights[lease.shard], _entry(lease.shard, owned=False))

    def shed(self) -> None:
        """Take from nodes what is more than the cap allows, lightest first."""
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
        # Givers only get lighter and the lightest only heavier: one that cannot help now never can.
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
        """Return the heaviest node that may give and the lightest that may take; None if level."""
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
        """Return the nodes that have more than one shard that outweighs the mean, and their loads.

        All other shards wait for such a one, or it for them, while other nodes have time.
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
        """Return the node with the least load that may take one shard more."""
        able = (
            share
            for share in self.shares.values()
            if share is not giver and (self._cap is None or share.count < self._cap)
        )
        return min(able, key=_Share.rank, default=None)


def _entry(shard: ShardId, *, owned: bool) -> _Entry:
    """Order shards of one weight: those that a node has move last."""
    return owned, rank_key(shard), shard


def _best(giver: _Share, taker: _Share) -> float | None:
    """Return the weight whose move makes the higher of two loads smallest; None if none does."""
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
    levelling.place([*holdings.free, *holdings.homeless])
    levelling.shed()
    levelling.level()
    actions: list[plans.Action] = []
    unassigned: list[plans.Unassigned] = []
    moves = 0
    for lease, owner in _owned(holdings):
        target = levelling.targets[lease.shard]
        if target is None:
            reason = "every live node has as many shards as it may"
            unassigned.append(plans.Unassigned(lease.shard, reason))
        elif target != owner:
            moves += 1
            load = levelling.shares[target].load
            action = _action(lease, owner, target, weights[lease.shard], load)
            actions += [action] if action else []
    ranked = sorted(levelling.shares.values(), key=lambda share: rank_key(share.node))
    needed = len(holdings.free) + len(holdings.homeless) + len(holdings.returning) - len(unassigned)
    return plans.Plan(
        generation=group.generation,
        actions=tuple(actions),
        unassigned=tuple(unassigned),
        counts=tuple((share.node, share.count) for share in ranked),
        moves=moves,
        moves_minimum=needed,
        summary=(
            f"{len(weights)} shards with {sum(weights.values()):g} records/s can be consumed by "
            f"{len(ranked)} live nodes, {sum(weights.values()) / len(ranked):g} each on average"
        ),
        proof=_proof(before, levelling, needed, moves),
        loads=tuple((share.node, share.load) for share in ranked),
    )


def _loads(holdings: plans.Holdings, weights: Mapping[ShardId, float]) -> dict[NodeName, float]:
    return {
        node: sum(weights[lease.shard] for lease in leases) for node, leases in holdings.own.items()
    }


def _owned(holdings: plans.Holdings) -> list[tuple[ShardLease, NodeName | None]]:
    """Pair every shard with the node that has it, by shard; None if that node is gone."""
    owned: list[tuple[ShardLease, NodeName | None]] = [(lease, None) for lease in holdings.free]
    owned += [(lease, lease.lease_owner) for lease in holdings.homeless]
    for leases in holdings.own.values():
        owned += [(lease, lease.lease_owner) for lease in leases]
    return sorted(owned, key=lambda pair: rank_key(pair[0].shard))


def _action(
    lease: ShardLease, owner: NodeName | None, target: NodeName, weight: float, load: float
) -> plans.Action | None:
    """Return the move that can be made now; None if the store has to settle something first."""
    share = f"{target} then carries {load:g} records/s, {weight:g} of them from it"
    if lease.state is ShardState.NOT_ALLOC:
        return plans.Claim(lease.shard, target, lease.lease_id, f"it is free, and {share}")
    if owner is None:
        return None  # A dead node's: free once the node has been evicted.
    if lease.state is ShardState.ALREADY_ALLOC:
        why = f"{owner} has more load than its share, or takes no runs"
        return plans.BeginTransfer(lease.shard, owner, target, lease.lease_id, f"{why}; {share}")
    if lease.consumer_owner == target:
        reason = f"{owner} takes no runs"
        return plans.CancelTransfer(lease.shard, target, owner, lease.lease_id, reason)
    return None  # In transfer between nodes without runs: it moves on when it has arrived.


def _proof(
    before: Mapping[NodeName, float], levelling: _Levelling, needed: int, moves: int
) -> tuple[str, ...]:
    """Explain the moves: those that every load needs, and the purpose of the others."""
    lines = [f"{needed} are nobody's, or with nodes that take no runs: each needs its move"]
    if moves > needed:
        highest = max(before.values())
        after = max(share.load for share in levelling.shares.values())
        lines.append(
            f"{moves - needed} more lower the loads: the highest was {highest:g} records/s before "
            f"the free shards were shared, and is {after:g} then"
        )
    else:
        lines.append(
            f"moving more would level the loads by less than {RELIEF_MIN:.0%}: nothing else moves"
        )
    return tuple(lines)
