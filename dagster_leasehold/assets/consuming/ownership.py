"""Ownership: may a run consume a shard that was requested by name, and on which node?"""

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
    """A served node holds the shard; `open_run` is the run that has it open, or empty."""

    node: NodeName
    incarnation: str
    open_run: str


@dataclass(frozen=True, slots=True)
class MayClaim:
    """The shard is unassigned: a served node may claim it while its counter is `lease_id`."""

    node: NodeName
    lease_id: int


@dataclass(frozen=True, slots=True)
class Finished:
    """The shard is over: all its records were consumed."""


@dataclass(frozen=True, slots=True)
class Refused:
    """The run may not consume the shard; `sentence` says why and what to do."""

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
    """Return whether a run of a deployment can open each of some shards now.

    Args:
        snapshot: the group as it is.
        shards: the requested ones.
        served: the nodes that the deployment serves.
        address: the address where they answer; a node of the same name that answers elsewhere is
            another deployment's.
        wanted: the node that the launcher named, or None for whichever fits.
    """
    rows = {row.shard: row for row in snapshot.shards}
    members = {node.name for node in snapshot.nodes if node.member and node.address == address}
    ours = [node for node in served if node in members]

    @cache
    def planned() -> Plan:
        # Every member counts as live: the next rebalancing settles the shards of a dead one.
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
    """Return the sentence why no node of the deployment may consume the shard now, or None."""
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
    """Give the free shard to the node that the plan gives it to, so that nothing moves later."""
    key = snapshot.group.key
    if not any(wanted in (None, node) for node in ours):
        return Refused(
            f"Shard {row.shard} of {key} is unassigned, and no node that this deployment serves is "
            "a member of the group yet: switch the rebalance sensor on."
        )
    claims = (action for action in planned().actions if isinstance(action, Claim))
    taker = next((claim.node for claim in claims if claim.shard == row.shard), None)
    if taker is None:
        return Refused(
            f"Shard {row.shard} of {key} is planned for no node: {_why_left(planned(), row)}. "
            "`leasehold plan --explain` says more."
        )
    if taker not in ours:
        return Refused(
            f"Shard {row.shard} of {key} is planned for node {taker}, which another deployment "
            "serves: materialize it there."
        )
    if wanted not in (None, taker):
        return Refused(
            f"Shard {row.shard} of {key} is planned for node {taker}, not for {wanted}: leave the "
            f"node out, or name {taker}."
        )
    return MayClaim(taker, row.lease_id)


def _why_left(planned: Plan, row: ShardLease) -> str:
    """Return the reason why the plan leaves a shard unassigned."""
    left = (each.reason for each in planned.unassigned if each.shard == row.shard)
    return next(left, planned.summary)


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
    """Claim free shards that a run was asked for; the next look shows who won each of them."""
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

    A tenure is closed by its own run alone, and that run is gone. So a tenure of its own takes
    its place and is closed at once: the epoch rises, which fences the old run should it wake. A
    shard in transfer goes to its next node in the attempt. `closing` is a fresh run id.

    Returns:
        False where the shard had moved on meanwhile, or the group is paused.
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
