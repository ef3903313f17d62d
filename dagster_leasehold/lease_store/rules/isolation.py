"""Pure rules that find the record on which runs hang or crash.

An intended range is normally repeated unchanged, so that sinks recognize its batch by its number.
This module decides when it is halved instead:

1. A run intends a range and hangs, or its worker is killed. Its tenure counts as a failed attempt.
2. A second run repeats the same range under the same number, and fails too.
3. The third abandons the number, and reads the first half under the next number. Before it reads,
   it stores the suspicion in the shard's row, because reading can kill it. If the failed runs were
   killed, only the fourth does this, because runs are often killed for other reasons.
4. A half that fails is halved again. A half that commits moves the checkpoint, and the other half
   is halved. So the range shrinks to one record in about log2(n) attempts.
5. After as many failures of a single record, it goes to quarantine, or the shard is held there. A
   run that commits the record later ends the hold.
6. Then the rest of the first range is one attempt, still without other shards in the run.

Sizes are in the source's unit: offsets if its cursors are offsets, otherwise records. A failure
unrelated to records does not count, such as a source that does not answer. A killed run counts if
it had begun the range.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime
from enum import Enum, auto
from typing import Literal

FAILED_MAX = 2
"""The failed attempts after which a range is halved, or a single record blocks its shard."""
KILLED_MAX = 3
"""The same if the runs were killed, possibly by a host or an operator."""
FAILURE_LENGTH_MAX = 1_000
KILLED = "the run died without an error message, as if it was killed"


OnPoison = Literal["hold", "quarantine"]
"""The handling of the record: it holds its shard, or goes to quarantine."""


@dataclass(frozen=True, slots=True)
class Suspicion:
    """The findings of failed runs about the records after a shard's checkpoint.

    The next commit clears it, unless the search for a bad record continues.

    Attributes:
        failure: the error of the last attempt; empty if its run was killed.
        records: the number of records that include the bad one; 0 if unknown.
        remaining: the number of records to read without other shards.
        alone: True if the range of the last attempt cannot be divided.
        holds_shard: True if the shard waits at the record.
        quarantined: the number of records of the first range in quarantine.
        skip: True if an operator has sent the held record to quarantine.
        error: the error of the last failed run.
        error_at: the time of that failure, for people.
    """

    failure: str = ""
    records: int = 0
    remaining: int = 0
    alone: bool = False
    holds_shard: bool = False
    quarantined: int = 0
    skip: bool = False
    error: str = ""
    error_at: datetime | None = None

    @property
    def isolating(self) -> bool:
        """True during the search for a bad record, and while the record blocks the shard."""
        return self.remaining > 0

    @property
    def known_failure(self) -> str:
        """The failure of the last attempt, for people."""
        return self.failure or KILLED

    def because(self, failure: str) -> Suspicion:
        """Return the suspicion after a failed attempt."""
        return replace(self, failure=failure[:FAILURE_LENGTH_MAX])

    def failed(self, error: str, at: datetime) -> Suspicion:
        """Return the suspicion after a failed run, of any cause."""
        return replace(self, error=error[:FAILURE_LENGTH_MAX], error_at=at)

    def within(self, size: int, *, alone: bool = False) -> Suspicion:
        """Return the suspicion after a failed range of this size."""
        return replace(self, records=size, remaining=max(size, self.remaining), alone=alone)

    def after(self, size: int, *, quarantined: bool = False) -> Suspicion | None:
        """Return the remaining suspicion after a commit of this size, or None."""
        remaining = self.remaining - size
        if remaining <= 0:
            return None
        return Suspicion(
            failure=self.failure,
            records=0 if quarantined else max(0, self.records - size),
            remaining=remaining,
            quarantined=self.quarantined + (size if quarantined else 0),
        )

    def next_size(self) -> int:
        """Return the next size after a commit: half of the bad range, or the rest."""
        return max(1, self.records // 2) if self.records else self.remaining


class NextStep(Enum):
    """The next step for an uncommitted intended range."""

    REPEAT = auto()
    HALVE = auto()
    SETTLE = auto()


def next_step(failures: int, suspicion: Suspicion | None) -> NextStep:
    """Decide about an intended range by its failed attempts."""
    if suspicion is not None and suspicion.holds_shard:
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
    """Return a shard's attempts after a suspicion was recorded; the open tenure counts as one.

    The count restarts for a single record, because earlier attempts included its neighbours.
    """
    newly_alone = suspicion.alone and not (before is not None and before.alone)
    return 1 if abandon or newly_alone else tries


def goes_to_quarantine(on_poison: OnPoison, suspicion: Suspicion, *, quarantined_max: int) -> bool:
    """Return True if the bad record goes to quarantine; otherwise it holds the shard.

    Quarantined records of a batch are limited, because a broken transform fails for every record.
    """
    if suspicion.skip:
        return True
    return on_poison == "quarantine" and suspicion.quarantined < quarantined_max


def blocks(tries: int, suspicion: Suspicion | None) -> bool:
    """Return True if a shard needs runs without other shards."""
    isolating = suspicion is not None and suspicion.isolating
    return isolating or tries >= _failed_max(suspicion)


def sentence(key: object, shard: str, cursor: str | None, suspicion: Suspicion | None) -> str:
    """Return the sentence about a blocked shard; empty if it is not blocked."""
    if suspicion is None or not suspicion.isolating:
        return ""
    at = "its beginning" if cursor is None else f"cursor {cursor}"
    why = suspicion.known_failure.rstrip(".")
    if suspicion.holds_shard:
        return (
            f"Shard {shard} of {key} is held at {at}, because the record there stops every run "
            f"({why}). Each run retries it, so fix the transform, or send the record to "
            f"quarantine with `leasehold quarantine skip`."
        )
    if suspicion.alone:
        return f"Shard {shard} of {key} is blocked at {at} by the record there ({why})."
    if suspicion.records:
        return (
            f"Shard {shard} of {key} is blocked at {at} or up to {suspicion.records:,} records "
            f"after it ({why}). Its runs halve that range until they find the record."
        )
    return ""
