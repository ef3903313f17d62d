"""Pure rules of the ledger: intents, commits, and replaced output.

Two rewriters do not overwrite each other:

1. A replay reads batch 7 and writes new files for it; its process is paused.
2. A run that considers it dead takes over its claim and replays the batch.
3. The first one wakes up and swaps. It no longer has the claim, so nothing changes.
4. If it had claimed the shard again in between, the batch's generation would differ.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

from dagster_leasehold.lease_store.errors import CheckpointRefused, IntentConflict, shown
from dagster_leasehold.lease_store.identifiers import GroupKey, ShardId
from dagster_leasehold.lease_store.journal_rows import EventKind, Note, OutboxEvent
from dagster_leasehold.lease_store.ledger_rows import (
    Batch,
    BatchCommit,
    BatchRewrite,
    BatchState,
    Intent,
    RewriteClaim,
)
from dagster_leasehold.lease_store.rules.cursors import in_order, place_of
from dagster_leasehold.lease_store.rules.refusals import checkpoint_behind
from dagster_leasehold.lease_store.shard_rows import Tenure


def group_of(tenures: Sequence[Tenure]) -> GroupKey:
    """Return the group of tenures; raise ValueError for several groups, or a shard twice."""
    keys = {tenure.key for tenure in tenures}
    if len(keys) != 1:
        raise ValueError("All tenures of one call must belong to one group.")
    if len({tenure.shard for tenure in tenures}) != len(tenures):
        raise ValueError("One call can name each shard once.")
    return tenures[0].key


def raised(watermark: datetime | None, to: datetime | None) -> datetime | None:
    """Return a shard's watermark after a commit; it never goes back."""
    return max((time for time in (watermark, to) if time is not None), default=None)


def may_advance(check_point: str | None, start: str) -> bool:
    """Return True if a range from `start` continues a shard."""
    return check_point is None or check_point == start


def check_onwards(tenure: Tenure, check_point: str | None, cursor: str) -> None:
    """Raise CheckpointRefused for a cursor before the stored checkpoint, or without an order."""
    check_place(tenure.key, tenure.shard, cursor)
    if check_point not in (None, cursor) and not in_order(check_point, cursor):
        raise checkpoint_behind(tenure, cursor, check_point)


def check_place(key: GroupKey, shard: ShardId, cursor: str) -> None:
    """Raise CheckpointRefused for a cursor that cannot be ordered."""
    if place_of(cursor) is None:
        raise CheckpointRefused(
            f"The cursor {shown(cursor)} of shard {shown(shard)} of group {key} cannot be compared "
            "with others. Use decimal numbers, separated by dots, that grow from record to record."
        )


def next_in_line(newest: Batch | None) -> tuple[int, Batch | None]:
    """Return the number of a shard's next batch and its open intent, from its newest row."""
    if newest is None:
        return 0, None
    if newest.state is BatchState.INTENT:
        return newest.sequence, newest
    return newest.last + 1, None


def intended_batch(intent: Intent) -> Batch:
    """Return the ledger row of an intent."""
    tenure = intent.tenure
    return Batch(
        shard=tenure.shard,
        sequence=intent.sequence,
        start=intent.start,
        end=intent.end,
        state=BatchState.INTENT,
        epoch=tenure.epoch,
        run=tenure.run,
        holder=tenure.holder,
    )


def committed_batch(commit: BatchCommit) -> Batch:
    """Return the ledger row of a commit, not dated yet."""
    tenure = commit.tenure
    return Batch(
        shard=tenure.shard,
        sequence=commit.sequence,
        start=commit.start,
        end=commit.end,
        state=BatchState.COMMITTED,
        epoch=tenure.epoch,
        run=tenure.run,
        holder=tenure.holder,
        attempt=commit.attempt,
        files=commit.files,
        statistics=commit.statistics,
        finished=commit.finished,
    )


def check_next_in_line(
    intent: Intent, *, intended: Batch | None, next_sequence: int, check_point: str | None
) -> None:
    """Refuse an intent that is not the shard's next range.

    Raises:
        IntentConflict: the number is not the next, the range does not begin at the checkpoint or
            ends before it starts, or an intent of this number has other bounds.
        CheckpointRefused: a cursor cannot be ordered.
    """
    for cursor in (intent.start, intent.end):
        check_place(intent.tenure.key, intent.tenure.shard, cursor)
    name = f"Batch {intent.sequence} of shard {intent.tenure.shard} of group {intent.tenure.key}"
    if intent.sequence != next_sequence:
        raise IntentConflict(f"{name} is out of order: the next is number {next_sequence}.")
    if not may_advance(check_point, intent.start):
        raise IntentConflict(
            f"{name} starts at {shown(intent.start)}, but the checkpoint is {shown(check_point)}."
        )
    if not in_order(intent.start, intent.end):
        raise IntentConflict(
            f"{name} would end at {shown(intent.end)}, before its start at {shown(intent.start)}: "
            "the source has to plan forward."
        )
    if intended and (intended.start, intended.end) != (intent.start, intent.end):
        raise IntentConflict(
            f"{name} was intended as {shown(intended.start)} to {shown(intended.end)}: consume "
            "that range first."
        )


def already_committed(batch: Batch | None, commit: BatchCommit) -> bool:
    """Return True if this commit took effect, and its reply was lost."""
    if batch is None or batch.state is not BatchState.COMMITTED:
        return False
    tenure = commit.tenure
    return (batch.epoch, batch.run, batch.attempt, batch.start, batch.end) == (
        tenure.epoch,
        tenure.run,
        commit.attempt,
        commit.start,
        commit.end,
    )


def check_intended(batch: Batch | None, commit: BatchCommit) -> None:
    """Raise IntentConflict for a commit without an intent of its tenure with its bounds."""
    tenure = commit.tenure
    intended = batch is not None and (
        (batch.state, batch.epoch, batch.run, batch.start, batch.end)
        == (BatchState.INTENT, tenure.epoch, tenure.run, commit.start, commit.end)
    )
    if not intended:
        raise IntentConflict(
            f"Batch {commit.sequence} of shard {tenure.shard} of group {tenure.key}, "
            f"{shown(commit.start)} to {shown(commit.end)}, was not intended under tenure "
            f"{tenure.epoch}: record the intent before committing it."
        )


def materialization_payload(commit: BatchCommit) -> dict[str, object]:
    """Return the JSON values of a committed batch for the outbox."""
    statistics = commit.statistics
    first, last = statistics.first_event_time, statistics.last_event_time
    return {
        "start": commit.start,
        "end": commit.end,
        "attempt": commit.attempt,
        "holder": str(commit.tenure.holder),
        "epoch": commit.tenure.epoch,
        "finished": commit.finished,
        "records": statistics.records,
        "bytes": statistics.bytes,
        "written": statistics.written,
        "quarantined": statistics.quarantined,
        "mistimed": commit.mistimed,
        "first_event_time": first.isoformat() if first else None,
        "last_event_time": last.isoformat() if last else None,
    }


def may_claim(claim: RewriteClaim, run: str, replaces: str) -> bool:
    """Return True if a run can take over this claim."""
    return claim.run in ("", run, replaces)


def rewritten(batch: Batch | None, rewrite: BatchRewrite) -> Batch | None:
    """Return the batch with its new output; None if it has changed since the rewrite's read."""
    if batch is None or batch.state is not BatchState.COMMITTED:
        return None
    if batch.generation != rewrite.generation or rewrite.attempt not in (None, batch.attempt):
        return None
    return replace(
        batch, generation=batch.generation + 1, files=rewrite.files, statistics=rewrite.statistics
    )


def rewrite_note(shard: ShardId, run: str, reason: str) -> Note:
    """Return the journal entry of a swap."""
    return Note(kind="rewrite", reason=reason, shard=shard, run=run)


def events_of(batch: Batch, commit: BatchCommit) -> list[OutboxEvent]:
    """Return the events of a commit, not numbered yet.

    A hook's event also has the committed files, relative to the group's output folder.
    """
    payload = materialization_payload(commit)
    payloads: dict[EventKind, dict[str, Any]] = {EventKind.MATERIALIZATION: payload}
    if commit.hooked:
        files = [file.path for file in commit.files if not file.quarantine]
        payloads[EventKind.HOOK] = payload | {"files": files}
    return [
        OutboxEvent(0, kind.value, batch.shard, batch.batch_id, payload, batch.run)
        for kind, payload in payloads.items()
    ]
