"""Pure rules of the state machine: a shard's new row and journal entries after each edge.

The operations of the store call them. `planning` decides which edge is useful.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, fields, replace
from datetime import datetime

from dagster_leasehold.lease_store.group_rows import Group
from dagster_leasehold.lease_store.identifiers import GroupKey, NodeName
from dagster_leasehold.lease_store.journal_rows import Note
from dagster_leasehold.lease_store.ledger_rows import Batch
from dagster_leasehold.lease_store.outcomes import NotHeld, OpenByOther, Opened, TenureView
from dagster_leasehold.lease_store.rules.isolation import Suspicion
from dagster_leasehold.lease_store.rules.states import EDGES, ShardState
from dagster_leasehold.lease_store.shard_rows import ShardLease, Tenure

FINISHED = "its checkpoint reached the end of a read-only shard"


@dataclass(frozen=True, slots=True)
class Step:
    """A shard's row before and after a change, with its journal entries."""

    before: ShardLease
    after: ShardLease
    notes: tuple[Note, ...]

    def then(self, following: Step) -> Step:
        """Return both steps as one write."""
        return Step(self.before, following.after, self.notes + following.notes)


def settings_note(before: Group, after: Group) -> Note:
    """Return the journal entry of changed group settings."""
    names = [f.name for f in fields(Group) if f.name not in ("key", "generation")]
    values = {name: [getattr(before, name), getattr(after, name)] for name in names}
    changes = {name: [old, new] for name, (old, new) in values.items() if old != new}
    reason = "; ".join(f"{name}: {old} → {new}" for name, (old, new) in changes.items())
    return Note(kind="group", reason=reason or "settings unchanged", facts=changes)


def edge_note(before: ShardLease | None, after: ShardLease, reason: str) -> Note:
    """Return the journal entry of an edge."""
    from_state = before.state if before else None
    return Note(
        kind="edge",
        reason=reason,
        shard=after.shard,
        edge=EDGES[(from_state, after.state)],
        from_state=from_state,
        to_state=after.state,
        from_owner=before.consumer_owner if before else None,
        to_owner=after.lease_owner,
        epoch=after.consumer_epoch,
        run=before.consumer_run if before else "",
        check_point=after.check_point,
    )


def _closing(before: ShardLease, reason: str) -> tuple[Note, ...]:
    if not before.consumer_run:
        return ()
    return (replace(_tenure_note("close", before, reason), from_owner=before.consumer_owner),)


def _tenure_note(kind: str, row: ShardLease, reason: str) -> Note:
    return Note(
        kind,
        reason,
        row.shard,
        epoch=row.consumer_epoch,
        run=row.consumer_run,
        check_point=row.check_point,
    )


def _edge(before: ShardLease, after: ShardLease, reason: str, *, closes: bool) -> Step:
    after = replace(after, lease_id=before.lease_id + 1)
    notes = (edge_note(before, after, reason),)
    return Step(before, after, (_closing(before, reason) if closes else ()) + notes)


def _with_owner(shard: ShardLease, state: ShardState, owner: NodeName | None) -> ShardLease:
    """Return a shard's row with a new owner, and no open run."""
    return replace(
        shard,
        state=state,
        lease_owner=owner,
        consumer_owner=owner,
        consumer_run="",
        handoff_eta_s=None,
    )


def claimed(shard: ShardLease, node: NodeName, reason: str) -> Step | None:
    """Edge 3, or None if the shard is assigned."""
    if shard.state is not ShardState.NOT_ALLOC:
        return None
    after = _with_owner(shard, ShardState.ALREADY_ALLOC, node)
    return _edge(shard, after, reason, closes=False)


def released(shard: ShardLease, reason: str) -> Step | None:
    """Edges 4 and 9: the holder has left."""
    if not shard.state.held:
        return None
    return _edge(shard, _with_owner(shard, ShardState.NOT_ALLOC, None), reason, closes=True)


def transfer_begun(shard: ShardLease, to: NodeName, reason: str) -> Step | None:
    """Edge 5; if no run has the shard open, edge 6 follows in the same write."""
    if shard.state is not ShardState.ALREADY_ALLOC or shard.lease_owner == to:
        return None
    after = replace(shard, state=ShardState.TRANSFER, lease_owner=to)
    begun = _edge(shard, after, reason, closes=False)
    if shard.consumer_run:
        return begun
    return begun.then(_transferred(begun.after, "the holder had no run open"))


def transfer_cancelled(shard: ShardLease, reason: str) -> Step | None:
    """Edge 6 back to the holder, whose tenure continues."""
    if shard.state is not ShardState.TRANSFER:
        return None
    after = replace(shard, state=ShardState.ALREADY_ALLOC, lease_owner=shard.consumer_owner)
    return _edge(shard, after, reason, closes=False)


def transfer_completed(shard: ShardLease, reason: str) -> Step | None:
    """Edge 6 to the next node; an open tenure is fenced."""
    if shard.state is not ShardState.TRANSFER:
        return None
    return _transferred(shard, reason)


def _transferred(shard: ShardLease, reason: str) -> Step:
    after = _with_owner(shard, ShardState.ALREADY_ALLOC, shard.lease_owner)
    return _edge(shard, after, reason, closes=True)


def finished(shard: ShardLease, cursor: str, reason: str) -> Step:
    """Edge 8: the checkpoint of a read-only shard reached its end at `cursor`."""
    after = replace(
        _with_owner(shard, ShardState.OVER, None), check_point=cursor, tries=0, suspicion=None
    )
    return _edge(shard, after, reason, closes=True)


def departed(shards: Iterable[ShardLease], node: NodeName, reason: str) -> list[Step]:
    """Edges 4, 6 and 9 for all shards that a node owned or waited for."""
    steps: list[Step] = []
    for shard in shards:
        step = None
        if shard.consumer_owner == node:
            step = released(shard, reason)
        elif shard.lease_owner == node:
            step = transfer_cancelled(shard, reason)
        if step:
            steps.append(step)
    return steps


def orphan_freed(shard: ShardLease, members: Collection[NodeName]) -> Step | None:
    """Edges 4, 6 and 9 for a held shard whose holder or next node has left the group."""
    if not shard.state.held:
        return None
    if shard.consumer_owner not in members:
        return released(shard, f"its holder {shard.consumer_owner} is not a member")
    if shard.state is not ShardState.TRANSFER:
        return None
    if shard.lease_owner not in members:
        return transfer_cancelled(shard, f"its next node {shard.lease_owner} is not a member")
    if not shard.consumer_run:
        return transfer_completed(shard, "its holder has no run open")
    return None


def opened(shard: ShardLease, run: str, intent: Batch | None = None) -> Step:
    """Open a tenure with the next epoch; an open tenure of a dead run is closed.

    Earlier attempts at an unfinished range still count. A dead tenure's attempt counts only if the
    intent has its epoch.
    """
    tries = shard.tries if intent is not None else 0
    if intent is not None and shard.consumer_run and intent.epoch != shard.consumer_epoch:
        tries -= 1
    after = replace(
        shard,
        consumer_epoch=shard.consumer_epoch + 1,
        consumer_run=run,
        handoff_eta_s=None,
        tries=max(0, tries) + 1,
    )
    note = _tenure_note("open", after, f"opened by run {run}")
    opening = replace(note, to_owner=after.consumer_owner)
    return Step(shard, after, (*_closing(shard, f"replaced by run {run}"), opening))


def opening(
    key: GroupKey, step: Step, node: NodeName, next_sequence: int, intent: Batch | None
) -> Opened:
    """Return the outcome of opening a shard, for its holder."""
    row = step.after
    tenure = Tenure(key, row.shard, node, row.consumer_epoch, row.consumer_run)
    failures = row.tries - 1
    return Opened(tenure, row.check_point, next_sequence, intent, failures, row.suspicion)


def closed(
    shard: ShardLease,
    members: Collection[NodeName],
    reason: str,
    *,
    attempt_failed: bool = False,
    failed_at: datetime | None = None,
) -> Step:
    """End a tenure; a shard in transfer goes to the next node, if that is still a member.

    `attempt_failed` counts a failed attempt at a range. `failed_at` is when the run failed, for any
    cause. In both cases `reason` is the error.
    """
    step = _closed(shard, members, reason)
    suspicion = shard.suspicion
    if attempt_failed:
        suspicion = (suspicion or Suspicion()).because(reason)
    if failed_at is not None:
        suspicion = (suspicion or Suspicion()).failed(reason, failed_at)
    tries = shard.tries if attempt_failed else max(0, shard.tries - 1)
    return replace(step, after=replace(step.after, tries=tries, suspicion=suspicion))


def _closed(shard: ShardLease, members: Collection[NodeName], reason: str) -> Step:
    if shard.state is ShardState.TRANSFER:
        if shard.lease_owner in members:
            return _transferred(shard, reason)
        back = _with_owner(shard, ShardState.ALREADY_ALLOC, shard.consumer_owner)
        return _edge(shard, back, reason, closes=True)
    after = replace(shard, consumer_run="", handoff_eta_s=None)
    return Step(shard, after, _closing(shard, reason))


def sent_back(shard: ShardLease, reason: str) -> Step:
    """Edge 10: an unassigned shard waits again, because an ancestor was reopened."""
    return _edge(shard, replace(shard, state=ShardState.WAIT), reason, closes=False)


def forced(
    shard: ShardLease, cursor: str | None, members: Collection[NodeName], reason: str
) -> Step:
    """Set a checkpoint and increment the epoch. A finished shard becomes unassigned (edge 7).

    The cursor None is the shard's beginning. An open tenure is fenced, so that its holder loads the
    new checkpoint. A shard in transfer goes to the next node.
    """
    fenced = replace(
        shard,
        check_point=cursor,
        consumer_epoch=shard.consumer_epoch + 1,
        consumer_run="",
        handoff_eta_s=None,
        watermark=None,
        tries=0,
        suspicion=None,
    )
    note = replace(
        _tenure_note("force", replace(fenced, consumer_run=shard.consumer_run), reason),
        from_owner=shard.consumer_owner,
        to_owner=shard.lease_owner,
    )
    step = Step(shard, fenced, (*_closing(shard, f"fenced: {reason}"), note))
    if shard.state is ShardState.OVER:
        return step.then(
            _edge(fenced, replace(fenced, state=ShardState.NOT_ALLOC), reason, closes=False)
        )
    if shard.state is ShardState.TRANSFER:
        return step.then(closed(fenced, members, "its holder has no run open"))
    return step


def skipped(shard: ShardLease, cursor: str | None) -> Step | None:
    """Quarantine the record that holds a shard at `cursor`; None if it is not held there."""
    suspicion = shard.suspicion
    if suspicion is None or not suspicion.holds_shard or shard.check_point != cursor:
        return None
    after = replace(shard, suspicion=replace(suspicion, skip=True))
    reason = f"the record at {cursor} goes to quarantine"
    return Step(shard, after, (_tenure_note("ack", shard, reason),))


def holds(shard: ShardLease | None, tenure: Tenure) -> bool:
    """Return True if the tenure has not ended."""
    return (
        shard is not None
        and shard.state.held
        and shard.consumer_owner == tenure.holder
        and shard.consumer_epoch == tenure.epoch
        and shard.consumer_run == tenure.run
    )


def tenure_view(shard: ShardLease | None, tenure: Tenure, *, paused: bool) -> TenureView:
    """Return a holder's view of its shard; `shard` is the shard's row, if it exists."""
    if shard is None or not holds(shard, tenure):
        return TenureView(current=False, paused=paused)
    moving = shard.state is ShardState.TRANSFER
    return TenureView(True, shard.lease_owner if moving else None, paused)


def opening_refused(
    shard: ShardLease, node: NodeName, replaces: str | None, *, paused: bool
) -> NotHeld | OpenByOther | None:
    """Return why a run of a node cannot open a shard, or None.

    The tenure of `replaces`, a run that has ended, can be replaced even while the shard is not
    subscribable.
    """
    if not shard.state.held or shard.consumer_owner != node:
        return NotHeld(shard.state.value, shard.consumer_owner)
    if paused:
        return NotHeld("paused", shard.consumer_owner)
    if not shard.subscribable and replaces is None:
        return NotHeld("unsubscribable", shard.consumer_owner)
    if shard.consumer_run and shard.consumer_run != replaces:
        return OpenByOther(shard.consumer_run)
    return None
