"""Ownership: decides if a run can consume a requested shard, and on behalf of which node.

`placement` calls it, and the sensor that cleans up after ended runs.
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
class MayConsume:
    """A node of this deployment holds the shard.

    Attributes:
        node: the node.
        incarnation: its incarnation.
        open_run: the run that has the shard open; empty if there is none.
    """

    node: NodeName
    incarnation: str
    open_run: str


@dataclass(frozen=True, slots=True)
class MayClaim:
    """The shard is unassigned. `node` can claim it until its `lease_id` changes."""

    node: NodeName
    lease_id: int


@dataclass(frozen=True, slots=True)
class Finished:
    """All records of the shard were consumed."""


@dataclass(frozen=True, slots=True)
class Refused:
    """The run cannot consume the shard; `sentence` says why and what to do."""

    sentence: str


Standing = MayConsume | MayClaim | Finished | Refused


def standings_of(
    snapshot: Snapshot,
    shards: Iterable[ShardId],
    *,
    served: Sequence[NodeName],
    address: str,
    wanted: str | None,
) -> dict[ShardId, Standing]:
    """Decide for each shard if a run of a deployment can consume it now.

    Args:
        snapshot: the group's snapshot.
        shards: the requested shards.
        served: the nodes that the deployment serves.
        address: the deployment's address; a node of the same name with another address belongs to
            another deployment.
        wanted: the node that the launcher named, or None for any.
    """
    rows = {row.shard: row for row in snapshot.shards}
    members = {node.name for node in snapshot.nodes if node.member and node.address == address}
    ours = [node for node in served if node in members]

    @cache
    def planned() -> Plan:
        # Every member counts as live: the next rebalancing reassigns the shards of a dead one.
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
        obstacle = _obstacle(snapshot, row, served, wanted)
        if obstacle is not None:
            return Refused(obstacle)
        if row.state is ShardState.NOT_ALLOC:
            return _claimant(snapshot, row, ours, wanted, planned)
        return _holder(snapshot, row, ours, wanted)

    return {shard: standing(shard) for shard in shards}


def _obstacle(
    snapshot: Snapshot, row: ShardLease, served: Sequence[NodeName], wanted: str | None
) -> str | None:
    """Return the reason why no node of the deployment can consume the shard now, or None."""
    key = snapshot.group.key
    if wanted is not None and wanted not in served:
        return f"This deployment does not serve node {wanted!r}: it serves {', '.join(served)}."
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
    wanted: str | None,
    planned: Callable[[], Plan],
) -> Standing:
    """Let the node claim the shard that the plan assigns it to, so that it does not move later."""
    key = snapshot.group.key
    if not any(wanted in (None, node) for node in ours):
        return Refused(
            f"Shard {row.shard} of {key} is unassigned, and no node that this deployment serves is "
            "a member of the group yet: switch the rebalance sensor on."
        )
    claims = (action for action in planned().actions if isinstance(action, Claim))
    node = next((claim.node for claim in claims if claim.shard == row.shard), None)
    if node is None:
        return Refused(
            f"Shard {row.shard} of {key} is planned for no node: {_why_unplanned(planned(), row)}. "
            "`leasehold plan --explain` says more."
        )
    if node not in ours:
        return Refused(
            f"Shard {row.shard} of {key} is planned for node {node}, which another deployment "
            "serves: materialize it there."
        )
    if wanted not in (None, node):
        return Refused(
            f"Shard {row.shard} of {key} is planned for node {node}, not for {wanted}: leave the "
            f"node out, or name {node}."
        )
    return MayClaim(node, row.lease_id)


def _why_unplanned(planned: Plan, row: ShardLease) -> str:
    """Return the reason why the plan leaves a shard unassigned."""
    reasons = (each.reason for each in planned.unassigned if each.shard == row.shard)
    return next(reasons, planned.summary)


def _holder(
    snapshot: Snapshot, row: ShardLease, ours: Sequence[NodeName], wanted: str | None
) -> Standing:
    holder = row.consumer_owner
    node = next((node for node in snapshot.nodes if node.name == holder), None)
    if node is None or holder not in ours:
        return Refused(
            f"Shard {row.shard} of {snapshot.group.key} is held by node {holder}, which another "
            "deployment serves: materialize it there."
        )
    if wanted not in (None, holder):
        return Refused(
            f"Shard {row.shard} of {snapshot.group.key} is held by node {holder}, not by "
            f"{wanted}: leave the node out, or name the holder."
        )
    return MayConsume(node.name, node.incarnation, row.consumer_run)


def claim_for_run(
    store: Shards, key: GroupKey, claims: Mapping[ShardId, MayClaim], *, run: str
) -> None:
    """Claim unassigned shards for a run; the next snapshot shows which claims succeeded."""
    store.claim(
        key,
        {shard: (claim.node, claim.lease_id) for shard, claim in claims.items()},
        observer=f"run {run}",
        reason=f"asked for by run {run}",
    )


def close_ended_tenure(
    store: Tenures, key: GroupKey, shard: ShardId, node: NodeName, *, ended: str, closing: str
) -> bool:
    """Close the tenure of a run that has ended without closing it.

    A tenure can be closed only by its own run. So this opens a new tenure for the run id `closing`,
    and closes it at once. The higher epoch fences the ended run in case it wakes. If the shard is
    in transfer, opening it completes the transfer instead.

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
