"""The assignment modes where members name their shards: modulo and pinned.

Both lead to a target node per shard, and from there to moves like any other plan: the same
leases are held, so that a wrong setting can never make two nodes consume one shard.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from dagster_leasehold.lease_store import errors
from dagster_leasehold.lease_store.errors import shown
from dagster_leasehold.lease_store.group_rows import AssignmentMode, Group, Node, Snapshot
from dagster_leasehold.lease_store.identifiers import NodeName, ShardId
from dagster_leasehold.lease_store.rules import assignment_plan as plans
from dagster_leasehold.lease_store.rules.assignment_plan import rank_key
from dagster_leasehold.lease_store.rules.states import ShardState
from dagster_leasehold.lease_store.shard_rows import ShardLease


def modulo_applies(nodes: Iterable[Node]) -> bool:
    """Return True if the rule is on: members that all give a negative count switch it off."""
    counts = [node.source_count for node in nodes if node.member]
    return not counts or any(count is None or count >= 0 for count in counts)


def check_member(group: Group, members: Iterable[Node], candidate: Node) -> None:
    """Check that the settings of a candidate agree with the members'.

    Raises:
        AssignmentConflict: they do not; the subclass and its sentence say how.
    """
    if group.assignment is AssignmentMode.MODULO:
        check_modulo((node for node in members if node.member), candidate)


def check_modulo(members: Iterable[Node], candidate: Node) -> None:
    """Check that a node's modulo settings are whole, and agree with the members'.

    Raises:
        AssignmentConflict: they do not; the subclass and its sentence say how.
    """
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
) -> plans.Plan:
    """Give each shard to the node whose `node_id` is its rank modulo `source_count`.

    The rank counts all shards of the group, finished and waiting ones included, so that it stays
    the same when the state of a shard changes. Members that contradict each other are refused,
    and nothing moves until they agree: no rule can tell which of them is right.
    """
    members = sorted(
        (node for node in snapshot.nodes if node.member and node.name in live),
        key=lambda node: rank_key(node.name),
    )
    refusals: list[plans.Refusal] = []
    for place, node in enumerate(members):
        try:
            check_member(snapshot.group, members[:place], node)
        except errors.AssignmentConflict as error:
            refusals.append(plans.Refusal(node.name, error))
    if refusals:
        return plans.Plan(
            snapshot.group.generation,
            refusals=tuple(refusals),
            summary=f"nothing moves: the modulo settings of {len(refusals)} nodes do not fit",
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
            missing[shard] = f"no live node takes runs with node_id {rank % count} of {count}"
    summary = f"{len(ranked)} shards by rank modulo {count}, {len(takers)} live nodes"
    return _towards(snapshot, targets, missing, takers=takers, live=live, summary=summary)


def plan_pinned(
    snapshot: Snapshot, *, takers: Sequence[NodeName], live: Collection[NodeName]
) -> plans.Plan:
    """Give each node the shards that it names, and no others.

    A shard that several nodes name stays with the one that has it, else goes to the first by
    name; the others are refused. A shard that no node names stays with its holder.
    """
    leases = {lease.shard: lease for lease in snapshot.shards}
    pins: dict[ShardId, list[NodeName]] = {}
    refusals: list[plans.Refusal] = []
    for node in sorted(snapshot.nodes, key=lambda node: rank_key(node.name)):
        if node.name not in takers:
            continue
        for shard in sorted(node.pinned or {}, key=rank_key):
            if shard in leases:
                pins.setdefault(shard, []).append(node.name)
            else:
                refusals.append(
                    plans.Refusal(node.name, _unknown(snapshot.group, node.name, shard))
                )
    targets: dict[ShardId, NodeName | None] = {}
    for shard, nodes in pins.items():
        owner = leases[shard].lease_owner
        targets[shard] = owner if owner in nodes else nodes[0]
        for node in nodes:
            if node != targets[shard]:
                error = errors.ShardOccupied(
                    f"Node {shown(node)} asks for shard {shown(shard)}, which {targets[shard]} "
                    "already has: name it on one node only."
                )
                refusals.append(plans.Refusal(node, error))
    missing = {
        shard: "no live node that takes runs names it" for shard in leases if shard not in pins
    }
    summary = f"{len(pins)} of {len(leases)} shards are named by {len(takers)} live nodes"
    return _towards(
        snapshot, targets, missing, takers=takers, live=live, summary=summary,
        refusals=tuple(refusals),
    )  # fmt: skip


def _unknown(group: Group, node: NodeName, shard: ShardId) -> errors.UnknownShard:
    return errors.UnknownShard(
        f"Node {shown(node)} asks for shard {shown(shard)}, which {group.key} does not have: "
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
    refusals: tuple[plans.Refusal, ...] = (),
) -> plans.Plan:
    """Return the moves from the shards' present owners to given targets.

    Shards that the source does not let anyone subscribe to stay where they are.
    """
    actions: list[plans.Action] = []
    unassigned: list[plans.Unassigned] = []
    counts = dict.fromkeys(takers, 0)
    moves = 0
    for lease in sorted(snapshot.shards, key=lambda lease: rank_key(lease.shard)):
        if not lease.state.consumable:
            continue
        has_live_holder = lease.state.held and lease.consumer_owner in live
        owner = lease.lease_owner if has_live_holder else None
        target = targets.get(lease.shard)
        if target is None or (not lease.subscribable and owner != target):
            if owner is not None and owner in counts:
                counts[owner] += 1
            why = missing.get(lease.shard, plans.UNSUBSCRIBABLE)
            unassigned.append(plans.Unassigned(lease.shard, why))
            continue
        counts[target] += 1
        if owner == target:
            continue
        moves += 1
        action = _step(lease, owner, target)
        if action is not None:
            actions.append(action)
    return plans.Plan(
        generation=snapshot.group.generation,
        actions=tuple(actions),
        unassigned=tuple(unassigned),
        counts=tuple(counts.items()),
        moves=moves,
        moves_minimum=moves,
        refusals=refusals,
        summary=summary,
        proof=("every shard has one place by the settings: each that is elsewhere moves once",),
    )


def _step(lease: ShardLease, owner: NodeName | None, target: NodeName) -> plans.Action | None:
    """Return the move that can be made now; None if the store has to settle something first."""
    reason = f"the settings of {target} name it"
    if lease.state is ShardState.NOT_ALLOC:
        return plans.Claim(lease.shard, target, lease.lease_id, reason)
    holder = lease.consumer_owner
    if owner is None or holder is None:
        return None
    if lease.state is ShardState.ALREADY_ALLOC:
        return plans.BeginTransfer(lease.shard, owner, target, lease.lease_id, reason)
    return plans.CancelTransfer(lease.shard, holder, owner, lease.lease_id, reason)
