"""The errors of transactions that failed for good: what is wrong, where, what to do.

A server that does not answer is told apart from a process that was held up by the times between
statements and answers.
"""

from __future__ import annotations

from dataclasses import dataclass
from threading import local

from sqlalchemy.exc import DBAPIError

from dagster_leasehold.lease_store import database_errors, errors
from dagster_leasehold.lease_store.engine import IDLE_TRANSACTION_S, READ_TIMEOUT_S


@dataclass(frozen=True, slots=True)
class Delay:
    """The times that a failed transaction spent waiting, in seconds.

    Attributes:
        stood_s: the longest time between an answer and this process's next statement.
        waited_s: the time that its last statement has waited for an answer; 0 where it has one.
    """

    stood_s: float
    waited_s: float


class Pace(local):
    """The times at which this thread's statements were sent and answered, in seconds."""

    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        """Begin a new transaction: nothing was sent yet."""
        self.sent_s: float | None = None
        self.answered_s: float | None = None
        self.stood_s = 0.0

    def send(self, now_s: float) -> None:
        """Note that a statement goes out, and how long the transaction stood still before it."""
        if self.answered_s is not None:
            self.stood_s = max(self.stood_s, now_s - self.answered_s)
        self.sent_s, self.answered_s = now_s, None

    def answer(self, now_s: float) -> None:
        """Note that the statement has its answer."""
        self.answered_s = now_s

    def delay(self, now_s: float) -> Delay:
        """Return the waiting of this thread's transaction so far."""
        answered = self.sent_s is None or self.answered_s is not None
        return Delay(self.stood_s, 0.0 if answered else now_s - (self.sent_s or 0.0))


def refusal(
    judged: database_errors.Verdict, error: Exception, place: str, delay: Delay, *, unsettled: bool
) -> errors.StoreError:
    """Return the store's error for one that ended a transaction.

    Args:
        judged: the way on after `error`.
        error: a database error, or a race that was lost in every attempt.
        place: how messages name the database; no secrets.
        delay: the transaction's waiting.
        unsettled: the reply to a COMMIT was lost before.
    """
    if not unsettled and isinstance(error, DBAPIError) and database_errors.disk_is_full(error):
        return errors.StoreUnavailable(
            f"The disk that holds the lease store at {place} is full: make room there; "
            "nothing was changed."
        )
    if unsettled or judged in (database_errors.Verdict.UNAVAILABLE, database_errors.Verdict.LOST):
        return unavailable(place, delay, unsettled=unsettled)
    if judged is database_errors.Verdict.RETRY:
        return errors.StoreUnavailable(
            f"The lease store at {place} is too busy: other transactions held its rows "
            "through every attempt; nothing was changed, and trying again later is safe."
        )
    if judged is database_errors.Verdict.READ_ONLY:
        return read_only(place)
    assert isinstance(error, DBAPIError)
    number = database_errors.error_number(error)
    advice = database_errors.ADVICE.get(number, "nothing was changed")
    return errors.StoreError(
        f"The lease store at {place} refused (error {number}: {_first_line(error)}): {advice}."
    )


def read_only(place: str) -> errors.StoreReadOnly:
    """Return the error for a database that takes no writes."""
    return errors.StoreReadOnly(
        f"The lease store at {place} takes no writes: it is a read-only server or "
        "file; point the settings to the primary, or make the file and its folder writable."
    )


def unavailable(place: str, delay: Delay, *, unsettled: bool) -> errors.StoreError:
    """Return the error for a database that does not answer."""
    if unsettled:
        return errors.OutcomeUnknown(
            f"The reply of the lease store at {place} was lost and it does not answer "
            "any more: the last write may or may not have happened; it is safe to try again."
        )
    safe = "nothing was changed, and trying again is safe"
    if delay.stood_s >= IDLE_TRANSACTION_S:
        return errors.StoreUnavailable(
            f"The lease store at {place} ended a transaction that had stood still for "
            f"{delay.stood_s:.0f} s: this process was held up; {safe}."
        )
    if delay.waited_s >= READ_TIMEOUT_S:
        return errors.StoreUnavailable(
            f"The lease store at {place} does not answer: a statement had no reply within "
            f"{delay.waited_s:.0f} s, so that its server is overloaded or frozen; {safe}."
        )
    return errors.StoreUnavailable(
        f"The lease store at {place} does not answer: check that the database is "
        "running and reachable; nothing was changed."
    )


def _first_line(error: DBAPIError) -> str:
    arguments = error.orig.args if error.orig else ()
    text = str(arguments[-1]) if arguments else type(error.orig).__name__
    return text.splitlines()[0][:200] if text else "no message"
