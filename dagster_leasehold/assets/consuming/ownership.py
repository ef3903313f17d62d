"""Determines whether a run can consume a requested shard, and for which node.

`placement` and the sensor that cleans up after ended runs call it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache

from dagster_leasehold.lease_store import failpoints
from dagster_leasehold.lease_store.group_rows import Snapshot
from dagster_leasehold.lease_store.identifiers import GroupKey, NodeName, ShardId
from dagster_leasehold.lease_store.outcomes import NotHeld, Opened
from dagster_leasehold.lease_store.roles.shards import Shards
from dagster_leasehold.lease_store.roles.tenures import Tenures
from dagster_leasehold.lease_store.rules.assignment_plan import UNSUBSCRIBABLE, Claim, Plan
from dagster_leasehold.lease_store.rules.lineage import why_waiting
from dagster_leasehold.lease_store.rules.planning import plan
from dagster_leasehold.lease_store.rules.states import ShardState
from dagster_leasehold.lease_store.shard_rows import ShardLease
from dagster_leasehold.lease_store.times import utc_now


@dataclass(frozen=True, slots=True)
class CanConsume:
    """A node of this deployment holds the shard.

    Attributes:
        open_run: the run that has the shard open; empty if there is none.
    """

    node: NodeName
    incarnation: str
    open_run: str


@dataclass(frozen=True, slots=True)
class CanClaim:
    """The shard is unassigned, and `node` can claim it until its `lease_id` changes."""

    node: NodeName
    lease_id: int


@dataclass(frozen=True, slots=True)
class Finished:
    """All records of the shard were consumed."""


@dataclass(frozen=True, slots=True)
class Refused:
    """The run cannot consume the shard; `sentence` gives the reason and the remedy."""

    sentence: str


Standing = CanConsume | CanClaim | Finished | Refused


def standings_of(
    snapshot: Snapshot,
    shards: Iterable[ShardId],
    *,
    served: Sequence[NodeName],
    address: str,
    target: str | None,
) -> dict[ShardId, Standing]:
    """Determine for each shard whether a run of a deployment can consume it now.

    Args:
        address: the deployment's address; a node with the same name and another address belongs to
            another deployment.
        target: the node that the launcher named, or None for any.
    """
    rows = {row.shard: row for row in snapshot.shards}
    members = {node.name for node in snapshot.nodes if node.member and node.address == address}
    ours = [node for node in served if node in members]

    @cache
    def planned() -> Plan:
        # Every member counts as live: the next rebalancing reassigns the shards of dead members.
        return plan(snapshot, live=[node.name for node in snapshot.nodes if node.member])

    def standing(shard: ShardId) -> Standing:
        row = rows.get(shard)
        if row is None:
            return Refused(
                f"Consumer group {snapshot.group.key} has no shard {shard!r}: materialize one of "
                "the partitions that the step `shard_list` added."
            )
        if row.state is ShardState.OVER:
            return Finished()
        obstacle = _obstacle(snapshot, row, served, target)
        if obstacle is not None:
            return Refused(obstacle)
        if row.state is ShardState.NOT_ALLOC:
            return _claimant(snapshot, row, ours, target, planned)
        return _holder(snapshot, row, ours, target)

    return {shard: standing(shard) for shard in shards}


def _obstacle(
    snapshot: Snapshot, row: ShardLease, served: Sequence[NodeName], target: str | None
) -> str | None:
    """Return the reason why no node of the deployment can consume the shard now, or None."""
    key = snapshot.group.key
    if target is not None and target not in served:
        return f"This deployment does not serve node {target!r}: it serves {', '.join(served)}."
    if row.state is ShardState.WAIT:
        states: dict[str, ShardState] = {each.shard: each.state for each in snapshot.shards}
        return f"Shard {row.shard} of {key} {why_waiting(row, states)}."
    if snapshot.group.paused:
        return f"Consumer group {key} is paused: resume it before consuming shard {row.shard}."
    if not row.subscribable:
        return f"Shard {row.shard} of {key} cannot be consumed: {UNSUBSCRIBABLE}."
    return None


def _claimant(
    snapshot: Snapshot,
    row: ShardLease,
    ours: Sequence[NodeName],
    target: str | None,
    planned: Callable[[], Plan],
) -> Standing:
    """Return the claim for the node in the plan, so that the shard does not move later."""
    key = snapshot.group.key
    if not any(target in (None, node) for node in ours):
        return Refused(
            f"Shard {row.shard} of {key} is unassigned, and no node of this deployment is a member "
            "of the group yet: switch the rebalance sensor on."
        )
    claims = (action for action in planned().actions if isinstance(action, Claim))
    node = next((claim.gains for claim in claims if claim.shard == row.shard), None)
    if node is None:
        return Refused(
            f"The plan leaves shard {row.shard} of {key} unassigned: "
            f"{_why_unplanned(planned(), row)}. Run `leasehold plan --explain` for details."
        )
    if node not in ours:
        return Refused(
            f"Shard {row.shard} of {key} is planned for node {node}, which another deployment "
            "serves: materialize it there."
        )
    if target not in (None, node):
        return Refused(
            f"Shard {row.shard} of {key} is planned for node {node}, not for {target}: omit the "
            f"node, or name {node}."
        )
    return CanClaim(node, row.lease_id)


def _why_unplanned(planned: Plan, row: ShardLease) -> str:
    reasons = (each.reason for each in planned.unassigned if each.shard == row.shard)
    return next(reasons, planned.summary)


def _holder(
    snapshot: Snapshot, row: ShardLease, ours: Sequence[NodeName], target: str | None
) -> Standing:
    holder = row.consumer_owner
    node = next((node for node in snapshot.nodes if node.name == holder), None)
    if node is None or holder not in ours:
        return Refused(
            f"Shard {row.shard} of {snapshot.group.key} is held by node {holder}, which another "
            "deployment serves: materialize it there."
        )
    if target not in (None, holder):
        return Refused(
            f"Shard {row.shard} of {snapshot.group.key} is held by node {holder}, not by "
            f"{target}: omit the node, or name the holder."
        )
    return CanConsume(node.name, node.incarnation, row.consumer_run)


def claim_for_run(
    store: Shards, key: GroupKey, claims: Mapping[ShardId, CanClaim], *, run: str
) -> None:
    """Claim unassigned shards for a run; the next snapshot shows which claims succeeded."""
    store.claim(
        key,
        {shard: (claim.node, claim.lease_id) for shard, claim in claims.items()},
        observer=f"run {run}",
        reason=f"requested by run {run}",
    )


def close_ended_tenure(
    store: Tenures, key: GroupKey, shard: ShardId, node: NodeName, *, ended: str, closing: str
) -> bool:
    """Close the tenure of a run that ended without closing it.

    Only its own run can close a tenure. So this opens a new tenure for the run id `closing`, and
    closes it at once. The higher epoch fences the ended run in case it resumes. If the shard is in
    transfer, opening it completes the transfer instead.

    Returns:
        False if the shard changed since the caller read it, or the group is paused.
    """
    opened = store.open_tenure(key, shard, node, closing, replaces=ended)
    if isinstance(opened, NotHeld):
        return opened.consumer_owner not in (None, node)
    if not isinstance(opened, Opened):
        return False
    failpoints.reach("during_burial")
    store.close_tenure(
        opened.tenure, reason=f"Run {ended} ended without closing it.", failed_at=utc_now()
    )
    return True
