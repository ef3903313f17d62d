"""One transaction per verb: run whole, retried whole, and settled when its reply is lost.

Losing the reply to a COMMIT, settled by re-reading:
1. The transaction sends COMMIT; the server makes it durable.
2. The connection breaks before the reply arrives: the driver reports error 2013, exactly as if it
   had broken before the COMMIT arrived.
3. Running the transaction again would find its own change, take it for somebody else's, and
   report a lost race (or count twice).
4. So the verb's own mark is looked for first, under the lock that the lost transaction would still
   be holding if it were not over: found, the first outcome stands; not found, it runs again.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from threading import local
from typing import Any, Generic, TypeVar
from uuid import uuid4

from sqlalchemy import Connection, Engine, Executable, MappingResult, RowMapping, event
from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from tenacity import Retrying, retry_if_exception_type, stop_after_attempt, wait_exponential

from dagster_leasehold.lease_store import database_errors, errors, failpoints
from dagster_leasehold.lease_store.database_errors import Verdict, verdict
from dagster_leasehold.lease_store.engine import (
    IDLE_TRANSACTION_S,
    READ_ONLY_INFO,
    READ_TIMEOUT_S,
    WRITE_OPTION,
)
from dagster_leasehold.lease_store.errors import StoreError, StoreReadOnly
from dagster_leasehold.lease_store.stored_rows import Raced

ATTEMPTS_MAX = 6
LOSSES_MAX = 3
PATIENCE_S = 3.5  # no new attempt after this: a lease's holder must not spend its trust here
PAUSE_FIRST_S = 0.02
PAUSE_MAX_S = 0.5
_GROWING = wait_exponential(multiplier=PAUSE_FIRST_S, max=PAUSE_MAX_S)
KIND_OPTION = "leasehold_kind"
Outcome = TypeVar("Outcome")
Value = TypeVar("Value")


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
    """Return the error for a read-only database."""
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


class Transaction:
    """The transaction of a verb's work: a connection, an id, and a way to undo it all.

    Attributes:
        connection: where statements go.
        id: unique; journal entries carry it, so that a lost COMMIT can be recognised.
        abandoned: nothing was changed after all; roll back.
    """

    def __init__(self, connection: Connection, identity: str) -> None:
        self.connection = connection
        self.id = identity
        self.abandoned = False

    def rows(self, statement: Executable) -> MappingResult:
        """Send a statement that reads, and return its rows by the names of their columns."""
        return self.connection.execute(statement).mappings()

    def all(self, statement: Executable, read: Callable[[RowMapping], Value]) -> list[Value]:
        """Send a statement that reads, and return what `read` makes of each row."""
        return [read(row) for row in self.rows(statement)]

    def value(self, statement: Executable) -> Any:
        """Send a statement that reads, and return the first column of its first row, or None."""
        return self.connection.execute(statement).scalar()

    def abandon(self, outcome: Outcome) -> Outcome:
        """Undo what was written so far; `outcome` is the verb's."""
        self.abandoned = True
        return outcome


Work = Callable[[Transaction], Outcome]
Mark = Callable[[Transaction], bool]


class _Again(Exception):
    """An attempt failed in a way that another one may get round."""

    def __init__(self, judged: Verdict, error: Exception) -> None:
        super().__init__(judged, error)
        self.verdict = judged
        self.error = error


@dataclass(slots=True)
class _Course(Generic[Outcome]):
    """The attempts at one transaction so far.

    Attributes:
        kind: the verb.
        work: its statements.
        mark: tells if it took effect.
        write: True if it changes anything.
        started_s: when the first one began, on the store's monotonic clock.
        unsettled: outcome and id of one whose COMMIT had no reply.
        losses: the number of lost connections.
    """

    kind: str
    work: Work[Outcome]
    mark: Mark | None
    write: bool
    started_s: float
    unsettled: tuple[Outcome, str] | None = None
    losses: int = 0


class Transactions:
    """Runs the verbs of a store on an engine.

    Args:
        engine: see `lease_store.engine`.
        place: how messages name the database; no secrets.
        sleep: waits between attempts, in seconds.
        clock: monotonic seconds, bounds how long a transaction is tried.
        jitter: a number in [0, 1), spreads the attempts of processes that collided.
        new_id: identifies each attempt at a transaction.
        patient: opens an engine for work on whole tables, whose statements may take minutes; None
            where this one is as patient.
    """

    def __init__(
        self,
        engine: Engine,
        place: str,
        *,
        sleep: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
        jitter: Callable[[], float] = random.random,
        new_id: Callable[[], str] = lambda: uuid4().hex,
        patient: Callable[[], Engine] | None = None,
    ) -> None:
        self.engine = engine
        self.place = place
        self.statements: Counter[str] = Counter()
        self._sleep = sleep
        self._clock = clock
        self._jitter = jitter
        self._new_id = new_id
        self._patient = patient
        self._pace = Pace()
        event.listen(engine, "before_cursor_execute", self._count)
        event.listen(engine, "after_cursor_execute", self._answered)

    @contextmanager
    def patient_engine(self) -> Generator[Engine]:
        """Open an engine whose statements may take minutes: too long for holders of leases."""
        if self._patient is None:
            yield self.engine
            return
        engine = self._patient()
        try:
            yield engine
        finally:
            engine.dispose()

    def read(self, kind: str, work: Work[Outcome]) -> Outcome:
        """Run statements that change nothing, in one transaction.

        Raises:
            StoreUnavailable: the database does not answer.
            StoreError: it refuses.
        """
        return self._run(kind, work, None, write=False)

    def write(self, kind: str, work: Work[Outcome], *, mark: Mark | None = None) -> Outcome:
        """Run a verb's statements in one transaction.

        Args:
            kind: the verb, for the statement counter.
            work: its statements; runs again from the start when the transaction must.
            mark: tells in a new transaction whether this very one took effect, after the reply to
                its COMMIT was lost; None where running the work again is harmless.

        Raises:
            StoreUnavailable: the database does not answer; nothing was changed.
            StoreReadOnly: it takes no writes; nothing was changed.
            OutcomeUnknown: the reply was lost, and the mark could not be looked for.
            StoreError: it refuses; nothing was changed.
        """
        return self._run(kind, work, mark, write=True)

    def _run(self, kind: str, work: Work[Outcome], mark: Mark | None, *, write: bool) -> Outcome:
        course = _Course(kind, work, mark, write, self._clock())
        retrying = Retrying(
            retry=retry_if_exception_type(_Again),
            stop=stop_after_attempt(ATTEMPTS_MAX),
            wait=lambda state: _GROWING(state) * (0.5 + self._jitter()),
            sleep=self._sleep,
            reraise=True,
        )
        try:
            return retrying(lambda: self._attempt(course))
        except _Again as last:
            raise self._refusal(last.verdict, last.error, course.unsettled) from last.error

    def _attempt(self, course: _Course[Outcome]) -> Outcome:
        """Run the transaction once, or settle the one whose reply was lost.

        Raises:
            _Again: it may be tried again.
            StoreError: it may not.
        """
        sent: tuple[Outcome, str] | None = None
        try:
            if course.unsettled and course.mark:
                if self._happened(course.kind, course.mark, course.unsettled[1]):
                    return course.unsettled[0]
                course.unsettled = None
            with self._transaction(course.kind, self._new_id(), write=course.write) as transaction:
                outcome = course.work(transaction)
                if transaction.abandoned or not course.write:
                    transaction.connection.rollback()
                    return outcome
                failpoints.reach(f"in_{course.kind}")
                sent = (outcome, transaction.id)
                self._pace.send(self._clock())
                transaction.connection.commit()
            return outcome
        except PoolTimeout as error:
            raise self._unavailable(course.unsettled) from error
        except StoreReadOnly as error:
            # A replica need not have what the primary committed, and its old primary may.
            if course.unsettled:
                raise self._unavailable(course.unsettled) from error
            raise
        except (Raced, DBAPIError) as error:
            judged = Verdict.RETRY if isinstance(error, Raced) else verdict(error)
            course.losses += judged is Verdict.LOST
            doubtful = sent is not None and judged is Verdict.LOST
            course.unsettled = sent if doubtful else course.unsettled
            # A doubtful COMMIT deserves one more look, however late it is.
            late = self._clock() - course.started_s > PATIENCE_S and not doubtful
            hopeless = judged not in (Verdict.RETRY, Verdict.LOST) or course.losses >= LOSSES_MAX
            if late or hopeless:
                raise self._refusal(judged, error, course.unsettled) from error
            raise _Again(judged, error) from error

    def translated(self, error: Exception) -> StoreError:
        """Return the store's error for one of the database's from outside `read` and `write`."""
        if isinstance(error, DBAPIError):
            return self._refusal(verdict(error), error, None)
        return self._unavailable(None)

    def _happened(self, kind: str, mark: Mark, identity: str) -> bool:
        with self._transaction(kind, identity, write=True) as transaction:
            happened = mark(transaction)
            transaction.connection.rollback()
            return happened

    @contextmanager
    def _transaction(self, kind: str, identity: str, *, write: bool) -> Generator[Transaction]:
        options = {KIND_OPTION: kind, WRITE_OPTION: write}
        self._pace.begin()
        with self.engine.connect() as connection:
            if write:
                self._require_primary(connection)
            yield Transaction(connection.execution_options(**options), identity)

    def _require_primary(self, connection: Connection) -> None:
        """Refuse a server that was read-only when it was connected to, and is when looked at again.

        1. A replica refuses an ordinary account by itself, but not one with more privileges.
        2. What such an account wrote there, the next fail-over would lose.
        """
        if connection.info.get(READ_ONLY_INFO):
            connection.invalidate()
            if connection.info.get(READ_ONLY_INFO):
                connection.invalidate()
                raise read_only(self.place)

    def _count(self, connection: Connection, _cursor: object, statement: str, *_: object) -> None:
        self._pace.send(self._clock())
        kind = connection.get_execution_options().get(KIND_OPTION)
        if kind and not statement.startswith("BEGIN"):
            self.statements[kind] += 1

    def _answered(self, *_: object) -> None:
        self._pace.answer(self._clock())

    def _refusal(self, judged: Verdict, error: Exception, unsettled: object) -> StoreError:
        delay = self._pace.delay(self._clock())
        return refusal(judged, error, self.place, delay, unsettled=unsettled is not None)

    def _unavailable(self, unsettled: object) -> StoreError:
        delay = self._pace.delay(self._clock())
        return unavailable(self.place, delay, unsettled=unsettled is not None)
