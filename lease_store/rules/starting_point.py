"""Where reading of a shard begins: pure rules that runs and plain clients share."""

from __future__ import annotations

from dagster_leasehold.lease_store.group_rows import AssignmentMode, Snapshot
from dagster_leasehold.lease_store.identifiers import NodeName, ShardId
from dagster_leasehold.lease_store.rules.states import ShardState
from dagster_leasehold.lease_store.shard_rows import ShardLease


def may_bootstrap(row: ShardLease, node: NodeName, cursor: str, run: str) -> bool:
    """Whether a bootstrap cursor takes effect now: once, for the holder, and beside no other run.

    1. Two runs of a node see a cursor that has not been applied.
    2. The first applies it, reads and commits.
    3. The second must not go back, which would read again what the first has committed.
    """
    holds = row.state is ShardState.ALREADY_ALLOC and row.consumer_owner == node
    return holds and row.consumer_run in ("", run) and row.bootstrap != cursor


def bootstrap_reason(node: NodeName, cursor: str) -> str:
    """For the journal."""
    return f"the settings of {node} start it at {cursor}"


def pending_bootstraps(snapshot: Snapshot) -> frozenset[ShardId]:
    """The shards whose holders pin them at a cursor that has not taken effect yet."""
    if snapshot.group.assignment is not AssignmentMode.PINNED:
        return frozenset()
    pinned = {node.name: node.pinned or {} for node in snapshot.nodes}
    return frozenset(
        lease.shard
        for lease in snapshot.shards
        if lease.consumer_owner is not None
        and (cursor := pinned.get(lease.consumer_owner, {}).get(lease.shard)) is not None
        and cursor != lease.bootstrap
    )
