"""Planning: from a snapshot to the smallest set of moves that gives every node its share.

Pure: no clock, no I/O, no randomness. Whoever plans from the same snapshot computes the same
plan, so that each process carries out the moves that concern the nodes it serves and needs to
ask nobody. A plan that was made from a stale snapshot does no harm: every move names the
`lease_id` that it was planned from, and fails where that has moved on.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace

from dagster_leasehold.lease_store.group_rows import AssignmentMode, Node, Snapshot
from dagster_leasehold.lease_store.identifiers import NodeName, ShardId
from dagster_leasehold.lease_store.rules import assignment_modes
from dagster_leasehold.lease_store.rules import assignment_plan as plans
from dagster_leasehold.lease_store.rules.assignment_plan import rank_key
from dagster_leasehold.lease_store.rules.balanced_plan import plan_balanced
from dagster_leasehold.lease_store.rules.lineage import unlisted_parents, why_waiting
from dagster_leasehold.lease_store.rules.states import ShardState, may_start
from dagster_leasehold.lease_store.rules.weighted_plan import plan_weighted, weighed
from dagster_leasehold.lease_store.shard_rows import ShardLease


def plan(snapshot: Snapshot, *, live: Collection[NodeName]) -> plans.Plan:
    """Return the moves that this group needs now, by its assignment mode.

    `live` names the nodes that the caller does not judge dead. A dead node's shards are planned
    for as if they were free already; their claims follow once the node has been evicted.
    """
    group = snapshot.group
    if group.paused:
        return plans.Plan(
            group.generation, summary=f"{group.key} is paused: nothing changes its owner"
        )
    decided = _plan_by_mode(snapshot, live=live)
    left = stranded(snapshot)
    return replace(decided, unassigned=decided.unassigned + left) if left else decided


def _plan_by_mode(snapshot: Snapshot, *, live: Collection[NodeName]) -> plans.Plan:
    group = snapshot.group
    takers = eligible_nodes(snapshot.nodes, live)
    if group.assignment is AssignmentMode.PINNED:
        return assignment_modes.plan_pinned(snapshot, takers=takers, live=live)
    if group.assignment is AssignmentMode.MODULO and assignment_modes.modulo_applies(
        snapshot.nodes
    ):
        return assignment_modes.plan_modulo(snapshot, takers=takers, live=live)
    return _plan_shared(snapshot, takers=takers, live=live)


def stranded(snapshot: Snapshot) -> tuple[plans.Unassigned, ...]:
    """Return the shards whose wait only a person can end: their parents were never listed."""
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
    """Share the shards that can be consumed among the takers, by count or by load.

    `wait` and `over` shards do not count, nor do those that the source does not let anyone
    subscribe to: they stay where they are. Equal weights are the same as none.
    """
    group = snapshot.group
    counted = [lease for lease in snapshot.shards if lease.state.consumable and lease.subscribable]
    if not takers:
        return plans.Plan(
            group.generation,
            unassigned=tuple(
                plans.Unassigned(lease.shard, "no live node takes runs")
                for lease in sorted(counted, key=lambda lease: rank_key(lease.shard))
            ),
            summary=f"{len(counted)} shards can be consumed, but no live node takes runs",
        )
    holdings = plans.holdings_of(counted, takers, live)
    weights = weighed(snapshot, counted)
    if len(set(weights.values())) > 1:
        return plan_weighted(group, holdings, weights)
    return plan_balanced(group, holdings)


def fewest_moves(
    snapshot: Snapshot, *, live: Collection[NodeName], owners: Mapping[ShardId, NodeName]
) -> int:
    """Count the changes of owner that any way to a settled group needs at least.

    Args:
        snapshot: the group once it has settled.
        live: its live members.
        owners: who held which shard before; all that happened since counts as one change.
    """
    rows: list[ShardLease] = []
    for lease in snapshot.shards:
        owner = owners.get(lease.shard)
        owner = owner if owner in live else None
        state = ShardState.ALREADY_ALLOC if owner else ShardState.NOT_ALLOC
        before = replace(lease, state=state, lease_owner=owner, consumer_owner=owner)
        rows.append(before if lease.state.consumable else lease)
    if snapshot.group.weighted:
        # By load no count is proven but for the shards whose owner is gone.
        held = {lease.shard for lease in snapshot.shards if lease.state.held}
        return sum(row.state is ShardState.NOT_ALLOC and row.shard in held for row in rows)
    return plan(replace(snapshot, shards=tuple(rows)), live=live).moves_minimum


def eligible_nodes(nodes: Iterable[Node], live: Collection[NodeName]) -> tuple[NodeName, ...]:
    """Return the live members that take runs, by name."""
    names = (node.name for node in nodes if node.member and node.accepts_runs and node.name in live)
    return tuple(sorted(names, key=rank_key))


def orphans(snapshot: Snapshot) -> list[str]:
    """Name the shards that only `free_orphans` can reach, each with its reason, by shard.

    These are shards that are held by, or on their way to, a node that is no member; shards in
    transfer that no run has open; and waiting shards whose parents are all finished. They are left
    by changes that the store did not see as one transaction.
    """
    members = {node.name for node in snapshot.nodes if node.member}
    states: dict[str, ShardState] = {lease.shard: lease.state for lease in snapshot.shards}
    reasons: list[str] = []
    for lease in sorted(snapshot.shards, key=lambda lease: rank_key(lease.shard)):
        if lease.state is ShardState.WAIT and may_start(
            ordered=snapshot.group.ordered,
            parents=lease.parents,
            states=states,
            gone=lease.gone_parents,
        ):
            reasons.append(f"{lease.shard} waits for parents that are finished")
        elif lease.state.held:
            gone = {lease.lease_owner, lease.consumer_owner} - members
            if gone:
                reasons.append(
                    f"{lease.shard} belongs to {min(map(str, gone))}, no member any more"
                )
            elif lease.state is ShardState.TRANSFER and not lease.consumer_run:
                reasons.append(f"{lease.shard} is in transfer, but no run has it open")
    return reasons
