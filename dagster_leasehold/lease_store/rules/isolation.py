"""Pure rules that find the record where runs hang or crash, and say what becomes of it.

An intended range is made again as it is, so that sinks know its batch by its number. There is one
exception, which this module decides:

1. A run intends a range and hangs, or its worker is killed. Its tenure counts as a failed try.
2. A second run makes the same range under the same number, and fails as well.
3. The third abandons the number for good, and tries the first half of the range under the next
   one. Before it tries, its suspicion is on the shard's row: the try can kill the run. After two
   runs that were killed it is the fourth: what kills a run is often no record.
4. A half that fails is halved again. One that commits moves the checkpoint, and the rest of what
   is known to block is halved. So the range shrinks to one record in about log2(n) tries.
5. A record that stands alone and fails as often blocks the shard. It goes to quarantine, or the
   shard is held there; a run that tries it again and commits it ends the hold.
6. Behind it the rest of the first range is tried at once, but still apart from other shards.

Sizes are counted in the source's unit: offsets where its cursors are offsets, records
elsewhere. A failure that says nothing about records, such as a source that does not answer, is
not counted; a run that was killed is, if it had begun with the range.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime
from enum import Enum, auto
from typing import Literal

FAILED_MAX = 2
"""The tries that a range has before it is halved, and a record alone before it blocks."""
KILLED_MAX = 3
"""As many, where no run could say how it failed: a host or an operator might have killed it."""
FAILURE_LENGTH_MAX = 1_000
KILLED = "the run that tried it ended without a word, as if it was killed"


OnPoison = Literal["hold", "quarantine"]
"""The end of the search for a record: it holds its shard, or goes to quarantine."""


@dataclass(frozen=True, slots=True)
class Suspicion:
    """The knowledge of the records behind a shard's checkpoint, after runs that failed.

    The next commit clears it, unless the search for a bad record is still continuing.

    Attributes:
        failure: how the last try failed; empty where its run was killed.
        records: among so many records from the checkpoint on is one that blocks; 0 if unknown.
        left: so many records from the checkpoint on are tried apart from other shards.
        alone: the range that is tried cannot be cut further.
        held: it failed as often as it may, and the shard waits there.
        quarantined: the records of the first range that went to quarantine.
        skip: an operator wants the held record in quarantine.
        error: the error of the last run that failed with the shard.
        error_at: the time of that failure, for people.
    """

    failure: str = ""
    records: int = 0
    left: int = 0
    alone: bool = False
    held: bool = False
    quarantined: int = 0
    skip: bool = False
    error: str = ""
    error_at: datetime | None = None

    @property
    def isolating(self) -> bool:
        """True if a record is being looked for, or was found."""
        return self.left > 0

    @property
    def known_failure(self) -> str:
        """How the last try failed, for people."""
        return self.failure or KILLED

    def because(self, failure: str) -> Suspicion:
        """Return the suspicion after a try that failed like this."""
        return replace(self, failure=failure[:FAILURE_LENGTH_MAX])

    def failed(self, error: str, at: datetime) -> Suspicion:
        """Return the suspicion after a run that failed, be it the fault of a record or not."""
        return replace(self, error=error[:FAILURE_LENGTH_MAX], error_at=at)

    def within(self, size: int, *, alone: bool = False) -> Suspicion:
        """Return the suspicion once a range of this size, from the checkpoint on, has failed."""
        return replace(self, records=size, left=max(size, self.left), alone=alone)

    def after(self, size: int, *, quarantined: bool = False) -> Suspicion | None:
        """Return the suspicion that remains after a commit of this size, or None."""
        left = self.left - size
        if left <= 0:
            return None
        return Suspicion(
            failure=self.failure,
            records=0 if quarantined else max(0, self.records - size),
            left=left,
            quarantined=self.quarantined + (size if quarantined else 0),
        )

    def next_size(self) -> int:
        """Return the size of the next try behind a commit: half of what blocks, or all the rest."""
        return max(1, self.records // 2) if self.records else self.left


class NextStep(Enum):
    """The next step with an intended range that was not committed."""

    REPEAT = auto()
    HALVE = auto()
    SETTLE = auto()


def next_step(failures: int, suspicion: Suspicion | None) -> NextStep:
    """Decide about an intended range by the tries of it that have failed."""
    if suspicion is not None and suspicion.held:
        return NextStep.SETTLE if failures or suspicion.skip else NextStep.REPEAT
    alone = suspicion is not None and suspicion.alone
    isolating = suspicion is not None and suspicion.isolating
    if failures < (1 if isolating and not alone else _failed_max(suspicion)):
        return NextStep.REPEAT
    return NextStep.SETTLE if alone else NextStep.HALVE


def _failed_max(suspicion: Suspicion | None) -> int:
    return FAILED_MAX if suspicion is not None and suspicion.failure else KILLED_MAX


def tries_after(
    tries: int, before: Suspicion | None, suspicion: Suspicion, *, abandon: bool
) -> int:
    """Return the tries of a shard once a suspicion is recorded; the open tenure makes one.

    A record counts as alone from here on: what failed before might have failed for its neighbours.
    """
    newly_alone = suspicion.alone and not (before is not None and before.alone)
    return 1 if abandon or newly_alone else tries


def goes_to_quarantine(on_poison: OnPoison, suspicion: Suspicion, *, quarantined_max: int) -> bool:
    """Return True if the record that stands alone goes to quarantine; otherwise it holds the shard.

    More records of one range than a batch can quarantine look like a transform that fails for all.
    """
    if suspicion.skip:
        return True
    return on_poison == "quarantine" and suspicion.quarantined < quarantined_max


def blocks(tries: int, suspicion: Suspicion | None) -> bool:
    """Return True if a shard without an open tenure needs runs of its own."""
    isolating = suspicion is not None and suspicion.isolating
    return isolating or tries >= _failed_max(suspicion)


def sentence(key: object, shard: str, cursor: str | None, suspicion: Suspicion | None) -> str:
    """Return what people read about a shard that is blocked; empty where it is not."""
    if suspicion is None or not suspicion.isolating:
        return ""
    at = "its beginning" if cursor is None else f"cursor {cursor}"
    why = suspicion.known_failure.rstrip(".")
    if suspicion.held:
        return (
            f"Shard {shard} of {key} is held at {at}, because the record there stops every run "
            f"({why}). Each run tries it again, so fix the transform, or send the record to "
            f"quarantine with `leasehold quarantine skip`."
        )
    if suspicion.alone:
        return f"Shard {shard} of {key} is blocked at {at} by the record there ({why})."
    if suspicion.records:
        return (
            f"Shard {shard} of {key} is blocked at {at} or up to {suspicion.records:,} records "
            f"after it ({why}). Its runs halve that range until the record stands alone."
        )
    return ""
