"""Pure rules for gaps: records that were removed before they were read.

The group's policy decides where a shard continues. While a shard holds at a gap, the gap can grow,
because retention continues. An accepted gap does not grow: the rest is another gap, to be accepted
separately.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from dagster_leasehold.lease_store.errors import CheckpointRefused, CursorExpired, shown
from dagster_leasehold.lease_store.group_rows import GapPolicy
from dagster_leasehold.lease_store.journal_rows import Gap, Note
from dagster_leasehold.lease_store.rules.ledger import check_onwards, check_place
from dagster_leasehold.lease_store.rules.starting_point import BEGIN, END
from dagster_leasehold.lease_store.shard_rows import Tenure


@dataclass(frozen=True, slots=True)
class GapVerdict:
    """A policy's decision about a gap: its end, and True if the shard continues there."""

    end: str
    passes: bool


def position_after_gap(policy: GapPolicy) -> str:
    """Return where a shard continues after a gap: `begin` or `end` of the remaining records."""
    return END if policy is GapPolicy.END else BEGIN


def decide_gap(
    start: str, *, policy: GapPolicy, resumption: str, accepted_end: str | None, contradiction: str
) -> GapVerdict:
    """Decide about removed records from `start` on.

    Args:
        start: the shard's checkpoint.
        policy: the group's policy.
        resumption: the cursor at `position_after_gap`.
        accepted_end: the end of the accepted gap at `start`, if any.
        contradiction: the message of the error.

    Raises:
        CursorExpired: the log contradicts itself: it begins at the removed cursor.
    """
    if resumption == start:
        raise CursorExpired(contradiction)
    if policy is not GapPolicy.HOLD:
        return GapVerdict(resumption, passes=True)
    if accepted_end is not None:
        return GapVerdict(accepted_end, passes=True)
    return GapVerdict(resumption, passes=False)


@dataclass(frozen=True, slots=True)
class GapWrite:
    """The write of one gap; `moves` is True if the checkpoint moves to the gap's end."""

    gap: Gap
    replaces: Gap | None
    moves: bool


def gap_write(
    gap: Gap, recorded: Iterable[Gap], *, check_point: str | None, accepted: bool
) -> GapWrite | None:
    """Return the write of a gap at the checkpoint; None if nothing changes.

    Args:
        recorded: the shard's gaps that begin at the same cursor.
        accepted: True if the checkpoint passes it; otherwise the shard holds.
    """
    same = next((each for each in recorded if each.end == gap.end), None)
    if same is not None:
        if not accepted or (same.skipped and check_point == gap.end):
            return None
        return GapWrite(replace(same, skipped=True), same, moves=True)
    open_gaps = [each for each in recorded if not each.skipped]
    if not accepted and any(each.acknowledged for each in open_gaps):
        # It was accepted after the caller read it; the next attempt passes it.
        return None
    growing = next((each for each in open_gaps if not each.acknowledged), None)
    return GapWrite(replace(gap, skipped=accepted), growing, moves=accepted)


def check_gap(gap: Gap, tenure: Tenure, check_point: str | None) -> None:
    """Raise CheckpointRefused if a gap does not lead forward from the shard's checkpoint."""
    if check_point not in (None, gap.start):
        raise CheckpointRefused(
            f"A gap of shard {tenure.shard} of group {tenure.key} must begin at its checkpoint "
            f"{shown(check_point)}, not at {shown(gap.start)}."
        )
    check_place(tenure.key, tenure.shard, gap.start)
    check_onwards(tenure, gap.start, gap.end)


def gap_note(gap: Gap, tenure: Tenure) -> Note:
    """Return the journal entry of a gap that is held or skipped."""
    outcome = "skipped" if gap.skipped else "held"
    return Note(
        kind="gap",
        reason=f"{outcome} [{gap.start}, {gap.end}): {gap.reason}",
        shard=gap.shard,
        from_owner=tenure.holder,
        to_owner=tenure.holder,
        epoch=tenure.epoch,
        run=tenure.run,
        check_point=gap.end if gap.skipped else gap.start,
    )


def acknowledgement(gap: Gap) -> Note:
    """Return the journal entry of an accepted gap."""
    return Note(kind="ack", reason=f"accepted [{gap.start}, {gap.end})", shard=gap.shard)
