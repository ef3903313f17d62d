"""The types of a plan and its moves, and the plans of modulo and pinned groups.

In these groups the nodes' settings determine the assignment; `planning` balances all other groups.
All modes use the same leases, so a wrong setting can never make two nodes consume one shard.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

from dagster_leasehold.lease_store import errors
from dagster_leasehold.lease_store.errors import LeaseholdError, shown
from dagster_leasehold.lease_store.group_rows import AssignmentMode, Group, Node, Snapshot
from dagster_leasehold.lease_store.identifiers import NodeName, ShardId
from dagster_leasehold.lease_store.rules.states import ShardState
from dagster_leasehold.lease_store.shard_rows import ShardLease

SHOWN_SHARDS_MAX = 12
UNSUBSCRIBABLE = "its source does not allow consumers to subscribe to it now"


@dataclass(frozen=True, slots=True)
class Action:
    """A move of a shard; it fails if the shard's `lease_id` is no longer `seen_lease_id`.

    Attributes:
        gains: the node that has one shard more afterwards.
        loses: the node that has one less, or None.
    """

    KIND: ClassVar[str]
    CLAUSE: ClassVar[str]

    shard: ShardId
    gains: NodeName
    loses: NodeName | None
    seen_lease_id: int
    reason: str

    def __str__(self) -> str:
        clause = self.CLAUSE.format(shard=self.shard, gains=self.gains, loses=self.loses)
        return f"{clause}: {self.reason}"

    @property
    def cells(self) -> tuple[str, ...]:
        """The move as cells of a table: shard, kind, from, to and reason."""
        return self.shard, self.KIND, self.loses or "", self.gains, self.reason


class Claim(Action):
    """Edge 3: claim an unassigned shard."""

    __slots__ = ()
    KIND = "claim"
    CLAUSE = "{gains} claims shard {shard}"


class BeginTransfer(Action):
    """Edge 5: begin to transfer a shard from its live holder to another node."""

    __slots__ = ()
    KIND = "transfer"
    CLAUSE = "shard {shard} moves from {loses} to {gains}"


class CancelTransfer(Action):
    """Edge 6: cancel a transfer; the holder keeps the shard."""

    __slots__ = ()
    KIND = "cancel transfer"
    CLAUSE = "shard {shard} stays with {gains} instead of {loses}"


def next_action(
    lease: ShardLease, owner: NodeName | None, taker: NodeName, reason: str
) -> Action | None:
    """Return the move towards `taker` that is possible now; None if it waits for a later round.

    `owner` is the live owner. A shard of a dead owner waits for the owner's eviction. A shard in
    transfer to a third node first returns to its holder.
    """
    holder, seen = lease.consumer_owner, lease.lease_id
    if lease.state is ShardState.NOT_ALLOC:
        return Claim(lease.shard, taker, None, seen, reason)
    if owner is None or holder is None:
        return None
    if lease.state is ShardState.ALREADY_ALLOC:
        return BeginTransfer(lease.shard, taker, owner, seen, reason)
    return CancelTransfer(lease.shard, holder, owner, seen, reason)


@dataclass(frozen=True, slots=True)
class Unassigned:
    """A shard that no node can take now, with the reason."""

    shard: ShardId
    reason: str

    def __str__(self) -> str:
        return f"no new node for shard {self.shard}: {self.reason}"


@dataclass(frozen=True, slots=True)
class Refusal:
    """A node with invalid assignment settings, and the error for its user."""

    node: NodeName
    error: LeaseholdError

    def __str__(self) -> str:
        return f"{self.node} is refused: {self.error}"


@dataclass(frozen=True, slots=True)
class Plan:
    """The shares of the nodes, and the moves that lead to them.

    Attributes:
        generation: the group's generation in the snapshot.
        actions: the moves, in the order of execution.
        unassigned: the shards that no node can take now.
        counts: the number of consumable shards of each node after all moves.
        moves: the number of changes of owner, including claims.
        moves_minimum: the fewest changes of owner that any plan of this mode requires.
        refusals: the nodes whose settings contradict the others'.
        summary: one line with the numbers of shards and nodes, and the quota.
        proof: lines that show why no plan needs fewer moves.
        loads: the records per second of each node after all moves, if shards have weights.
    """

    generation: int
    actions: tuple[Action, ...] = ()
    unassigned: tuple[Unassigned, ...] = ()
    counts: tuple[tuple[NodeName, int], ...] = ()
    moves: int = 0
    moves_minimum: int = 0
    refusals: tuple[Refusal, ...] = ()
    summary: str = ""
    proof: tuple[str, ...] = ()
    loads: tuple[tuple[NodeName, float], ...] = ()

    @property
    def spread(self) -> int:
        """The difference between the largest and the smallest count; 0 without nodes."""
        shares = [count for _, count in self.counts]
        return max(shares) - min(shares) if shares else 0

    def explain(self) -> list[str]:
        """Return lines with the moves, their reasons, and the proof that no plan needs fewer."""
        lines = [self.summary]
        lines += [str(refusal) for refusal in self.refusals]
        lines += [str(action) for action in self.actions]
        lines += [str(shard) for shard in self.unassigned]
        lines += [f"{node} then has {load:g} records/s" for node, load in self.loads]
        lines.append(f"{self.moves} moves; every plan needs at least {self.moves_minimum}")
        lines += self.proof
        return lines


_DIGITS = re.compile(r"(\d+)", re.ASCII)


@lru_cache(maxsize=200_000)
def rank_key(name: str) -> tuple[tuple[tuple[int, int, str], ...], str]:
    """Sort names in natural order, `2` before `10`, so that all nodes agree."""
    parts = tuple(
        (0, int(part), "") if part.isdigit() else (1, 0, part)
        for part in _DIGITS.split(name)
        if part
    )
    return parts, name


def ranked(leases: Sequence[ShardLease]) -> list[ShardLease]:
    """Sort shards by `rank_key`; for equal shards as before, the order is cached.

    Ranking a million shards takes seconds.
    """
    return [leases[place] for place in _order(tuple(lease.shard for lease in leases))]


@lru_cache(maxsize=8)
def _order(names: tuple[ShardId, ...]) -> array[int]:
    # Filling the cache of `rank_key` with a million names would take longer than it saves.
    ranks = [rank_key.__wrapped__(name) for name in names]
    return array("L", sorted(range(len(names)), key=ranks.__getitem__))


def listed(shards: tuple[ShardId, ...]) -> str:
    """Return shards as text, at most the first `SHOWN_SHARDS_MAX`."""
    if not shards:
        return "no shard"
    ranked = sorted(shards, key=rank_key)
    names = ", ".join(ranked[:SHOWN_SHARDS_MAX])
    if len(ranked) > SHOWN_SHARDS_MAX:
        return f"{len(ranked)} shards ({names}, …)"
    return f"shards {names}" if len(ranked) > 1 else f"shard {names}"


@dataclass(frozen=True, slots=True)
class Holdings:
    """The consumable shards, grouped for planning.

    Attributes:
        own: the shards of each node that takes runs, including shards in transfer to it.
        returning: shards in transfer to a node that takes no runs; they return to their holder,
            whose `own` also has them.
        free: shards without a live owner, to be claimed.
        outgoing: shards of live nodes that take no runs, to be transferred.
    """

    own: dict[NodeName, list[ShardLease]]
    returning: list[ShardLease]
    free: list[ShardLease]
    outgoing: list[ShardLease]


def holdings_of(
    shards: Sequence[ShardLease], takers: Sequence[NodeName], live: Collection[NodeName]
) -> Holdings:
    """Group shards by owner; `takers` are the live nodes that take runs."""
    holdings = Holdings({node: [] for node in takers}, [], [], [])
    for lease in ranked(shards):
        owner, holder = lease.lease_owner, lease.consumer_owner
        in_transfer = lease.state is ShardState.TRANSFER
        if not lease.state.held or owner is None or holder not in live:
            holdings.free.append(lease)
        elif owner in holdings.own:
            holdings.own[owner].append(lease)
        elif in_transfer and holder is not None and holder in holdings.own:
            holdings.returning.append(lease)
            holdings.own[holder].append(lease)
        elif owner in live:
            holdings.outgoing.append(lease)
        else:
            holdings.free.append(lease)
    return holdings


# -- modulo and pinned assignment -----------------------------------------------------------------


def modulo_applies(nodes: Iterable[Node]) -> bool:
    """Return True unless all members have a negative `source_count`, which disables modulo."""
    counts = [node.source_count for node in nodes if node.member]
    return not counts or any(count is None or count >= 0 for count in counts)


def check_member(group: Group, members: Iterable[Node], candidate: Node) -> None:
    """Raise AssignmentConflict if a candidate's settings contradict a member's."""
    if group.assignment is AssignmentMode.MODULO:
        check_modulo((node for node in members if node.member), candidate)


def check_modulo(members: Iterable[Node], candidate: Node) -> None:
    """Raise AssignmentConflict if modulo settings are incomplete or contradict a member's."""
    _check_range(candidate)
    others = (node for node in members if node.name != candidate.name)
    for other in sorted(others, key=lambda node: rank_key(node.name)):
        _check_pair(other, candidate)


def _check_range(node: Node) -> None:
    count, remainder = node.source_count, node.node_id
    if count is None or (count >= 0 and remainder is None):
        raise errors.ModuloSettingMissing(
            f"Node {shown(node.name)} gives no source_count and node_id, but its group assigns "
            "shards by modulo: set both, on every node."
        )
    if count < 0:
        return
    if count == 0 or remainder is None or not 0 <= remainder < count:
        raise errors.ModuloIdOutOfRange(
            f"Node {shown(node.name)} has node_id {remainder} with source_count {count}: "
            "use a node_id from 0 to source_count - 1."
        )


def _check_pair(member: Node, candidate: Node) -> None:
    if member.source_count != candidate.source_count:
        raise errors.ModuloCountMismatch(
            f"Node {shown(candidate.name)} has source_count {candidate.source_count}, but "
            f"{shown(member.name)} has {member.source_count}: all nodes of a group must agree."
        )
    negative = candidate.source_count is not None and candidate.source_count < 0
    if not negative and member.node_id == candidate.node_id:
        raise errors.ModuloIdTaken(
            f"Node {shown(candidate.name)} has node_id {candidate.node_id}, which "
            f"{shown(member.name)} already has: give every node a node_id of its own."
        )


def plan_modulo(
    snapshot: Snapshot, *, takers: Sequence[NodeName], live: Collection[NodeName]
) -> Plan:
    """Assign each shard to the node whose `node_id` is its rank modulo `source_count`.

    A shard's rank is its position among all shards of the group, in any state. If members
    contradict each other, nothing moves until they agree.
    """
    members = sorted(
        (node for node in snapshot.nodes if node.member and node.name in live),
        key=lambda node: rank_key(node.name),
    )
    refusals: list[Refusal] = []
    for place, node in enumerate(members):
        try:
            check_member(snapshot.group, members[:place], node)
        except errors.AssignmentConflict as error:
            refusals.append(Refusal(node.name, error))
    if refusals:
        return Plan(
            snapshot.group.generation,
            refusals=tuple(refusals),
            summary=f"no shard moves: the modulo settings of {len(refusals)} nodes conflict",
        )
    by_remainder = {node.node_id: node.name for node in members}
    count = next((node.source_count for node in members if node.source_count), 1)
    ranked = sorted((lease.shard for lease in snapshot.shards), key=rank_key)
    targets: dict[ShardId, NodeName | None] = {}
    missing: dict[ShardId, str] = {}
    for rank, shard in enumerate(ranked):
        target = by_remainder.get(rank % count)
        targets[shard] = target if target in takers else None
        if targets[shard] is None:
            missing[shard] = f"no live node that takes runs has node_id {rank % count} of {count}"
    summary = f"{len(ranked)} shards by rank modulo {count} on {len(takers)} live nodes"
    return _towards(snapshot, targets, missing, takers=takers, live=live, summary=summary)


def plan_pinned(
    snapshot: Snapshot, *, takers: Sequence[NodeName], live: Collection[NodeName]
) -> Plan:
    """Assign each node the shards that its settings name.

    If several nodes name a shard, its owner keeps it if it is one of them; otherwise the first node
    by name gets it. The other nodes are refused. A shard that no node names stays with its holder.
    """
    leases = {lease.shard: lease for lease in snapshot.shards}
    pins: dict[ShardId, list[NodeName]] = {}
    refusals: list[Refusal] = []
    for node in sorted(snapshot.nodes, key=lambda node: rank_key(node.name)):
        if node.name not in takers:
            continue
        for shard in sorted(node.pinned or {}, key=rank_key):
            if shard in leases:
                pins.setdefault(shard, []).append(node.name)
            else:
                refusals.append(Refusal(node.name, _unknown(snapshot.group, node.name, shard)))
    targets: dict[ShardId, NodeName | None] = {}
    for shard, nodes in pins.items():
        owner = leases[shard].lease_owner
        targets[shard] = owner if owner in nodes else nodes[0]
        for node in nodes:
            if node != targets[shard]:
                error = errors.ShardOccupied(
                    f"Node {shown(node)} requests shard {shown(shard)}, which {targets[shard]} "
                    "already has: name it on one node only."
                )
                refusals.append(Refusal(node, error))
    missing = {
        shard: "no live node that takes runs is pinned to it"
        for shard in leases
        if shard not in pins
    }
    summary = f"{len(pins)} of {len(leases)} shards are pinned to {len(takers)} live nodes"
    return _towards(
        snapshot, targets, missing, takers=takers, live=live, summary=summary,
        refusals=tuple(refusals),
    )  # fmt: skip


def _unknown(group: Group, node: NodeName, shard: ShardId) -> errors.UnknownShard:
    return errors.UnknownShard(
        f"Node {shown(node)} requests shard {shown(shard)}, which {group.key} does not have: "
        "name a shard that `leasehold status` shows."
    )


def _towards(
    snapshot: Snapshot,
    targets: Mapping[ShardId, NodeName | None],
    missing: Mapping[ShardId, str],
    *,
    takers: Sequence[NodeName],
    live: Collection[NodeName],
    summary: str,
    refusals: tuple[Refusal, ...] = (),
) -> Plan:
    """Return the plan that moves each shard from its owner to its target.

    A shard that is not subscribable or has no target stays with its owner.
    """
    actions: list[Action] = []
    unassigned: list[Unassigned] = []
    counts = dict.fromkeys(takers, 0)
    moves = 0
    for lease in ranked(snapshot.shards):
        if not lease.state.consumable:
            continue
        has_live_holder = lease.state.held and lease.consumer_owner in live
        owner = lease.lease_owner if has_live_holder else None
        target = targets.get(lease.shard)
        if target is None or (not lease.subscribable and owner != target):
            if owner is not None and owner in counts:
                counts[owner] += 1
            why = missing.get(lease.shard, UNSUBSCRIBABLE)
            unassigned.append(Unassigned(lease.shard, why))
            continue
        counts[target] += 1
        if owner == target:
            continue
        moves += 1
        action = next_action(lease, owner, target, f"the settings of {target} select it")
        if action is not None:
            actions.append(action)
    return Plan(
        generation=snapshot.group.generation,
        actions=tuple(actions),
        unassigned=tuple(unassigned),
        counts=tuple(counts.items()),
        moves=moves,
        moves_minimum=moves,
        refusals=refusals,
        summary=summary,
        proof=("the settings determine the node of each shard, and shards elsewhere move once",),
    )
