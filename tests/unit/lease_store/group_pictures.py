"""Snapshots of groups for tests of planning: nodes, shards, and the results of a plan."""

from __future__ import annotations

from dataclasses import replace

from dagster_leasehold.lease_store.group_rows import Group, Node, Snapshot
from dagster_leasehold.lease_store.identifiers import GroupKey, NodeName, ShardId
from dagster_leasehold.lease_store.rules.assignment_plan import (
    BeginTransfer,
    CancelTransfer,
    Claim,
    Plan,
)
from dagster_leasehold.lease_store.rules.states import ShardState
from dagster_leasehold.lease_store.shard_rows import ShardLease

KEY = GroupKey.parse("group", "stream")
NODES = [NodeName(f"node-{letter}") for letter in "abcdefg"]


def node(name: str, **fields: object) -> Node:
    return replace(Node(NodeName(name), 1, f"{name}-1"), **fields)


def shard(name: str, owner: str | None = None, holder: str | None = None) -> ShardLease:
    """A shard that is free, held by `owner`, or on its way to `owner` from `holder`."""
    if owner is None:
        return ShardLease(ShardId(name), ShardState.NOT_ALLOC, lease_id=3)
    state = ShardState.TRANSFER if holder else ShardState.ALREADY_ALLOC
    return ShardLease(
        ShardId(name),
        state,
        lease_id=3,
        lease_owner=NodeName(owner),
        consumer_owner=NodeName(holder or owner),
        consumer_run="run",
    )


def snapshot(nodes: list[Node], shards: list[ShardLease], **fields: object) -> Snapshot:
    return Snapshot(replace(Group(KEY), **fields), tuple(nodes), tuple(shards))


def live(snap: Snapshot) -> set[NodeName]:
    return {member.name for member in snap.nodes if member.member}


def carried_out(snap: Snapshot, decided: Plan) -> Snapshot:
    """The snapshot after every action of a plan, hand-overs included."""
    rows = {lease.shard: lease for lease in snap.shards}
    for action in decided.actions:
        row = rows[action.shard]
        assert action.seen_lease_id == row.lease_id
        if isinstance(action, Claim):
            assert row.state is ShardState.NOT_ALLOC
        elif isinstance(action, BeginTransfer):
            assert row.state is ShardState.ALREADY_ALLOC
            assert row.lease_owner == action.loses != action.gains
        else:
            assert isinstance(action, CancelTransfer)
            assert row.state is ShardState.TRANSFER
            assert row.consumer_owner == action.gains
        rows[action.shard] = replace(
            row,
            state=ShardState.ALREADY_ALLOC,
            lease_id=row.lease_id + 1,
            lease_owner=action.gains,
            consumer_owner=action.gains,
        )
    return replace(snap, shards=tuple(rows.values()))


def counts(snap: Snapshot) -> dict[NodeName, int]:
    counts = dict.fromkeys(live(snap), 0)
    for lease in snap.shards:
        if lease.state.held and lease.lease_owner in counts:
            counts[lease.lease_owner] += 1
    return counts


def moves_of(decided: Plan) -> list[tuple[str, str, str]]:
    return [(type(action).__name__, action.shard, action.gains) for action in decided.actions]
