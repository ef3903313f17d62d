"""What a gap that is found does to those that are recorded: pure rules that all stores carry out.

A gap that the shard holds at may grow while it waits, since retention goes on. What somebody has
acknowledged never grows: the rest is a gap of its own, which needs an answer of its own.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from dagster_leasehold.lease_store.journal_rows import Gap
from dagster_leasehold.lease_store.rules.transitions import Note
from dagster_leasehold.lease_store.shard_rows import Tenure


@dataclass(frozen=True, slots=True)
class GapWrite:
    """What to store: `gap`, in place of `replaces` or as a new row.

    `moves` says that the checkpoint goes to the gap's end.
    """

    gap: Gap
    replaces: Gap | None
    moves: bool


def found(
    gap: Gap, known: Iterable[Gap], *, check_point: str | None, accepted: bool
) -> GapWrite | None:
    """What becomes of a gap that begins at the checkpoint; None where nothing is to be written.

    Args:
        gap: what was found, not acknowledged.
        known: the shard's gaps that begin at the same cursor.
        check_point: of the shard.
        accepted: the checkpoint moves past it; otherwise the shard holds.
    """
    same = next((each for each in known if each.end == gap.end), None)
    if same is not None:
        if not accepted or (same.skipped and check_point == gap.end):
            return None
        return GapWrite(replace(same, skipped=True), same, moves=True)
    held = [each for each in known if not each.skipped]
    if not accepted and any(each.acknowledged for each in held):
        # It was accepted between our look and now: the next look moves past it.
        return None
    growing = next((each for each in held if not each.acknowledged), None)
    return GapWrite(replace(gap, skipped=accepted), growing, moves=accepted)


def gap_note(gap: Gap, tenure: Tenure) -> Note:
    """The journal entry of a gap that was found or skipped."""
    done = "skipped" if gap.skipped else "held"
    return Note(
        kind="gap",
        reason=f"{done} [{gap.start}, {gap.end}): {gap.reason}",
        shard=gap.shard,
        from_owner=tenure.holder,
        to_owner=tenure.holder,
        epoch=tenure.epoch,
        run=tenure.run,
        check_point=gap.end if gap.skipped else gap.start,
    )


def acknowledgement(gap: Gap) -> Note:
    """The journal entry of a gap that somebody accepted."""
    return Note(kind="ack", reason=f"accepted [{gap.start}, {gap.end})", shard=gap.shard)
