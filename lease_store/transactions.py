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
from threading import local
from typing import TypeVar
from uuid import uuid4

from sqlalchemy import Connection, Engine, Executable, MappingResult, event
from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from dagster_leasehold.lease_store import failpoints
from dagster_leasehold.lease_store.database_errors import (
    ADVICE,
    Verdict,
    disk_is_full,
    error_number,
    verdict,
)
from dagster_leasehold.lease_store.engine import (
    IDLE_TRANSACTION_S,
    READ_ONLY_INFO,
    READ_TIMEOUT_S,
    WRITE_OPTION,
)
from dagster_leasehold.lease_store.errors import (
    OutcomeUnknown,
    StoreError,
    StoreReadOnly,
    StoreUnavailable,
)

ATTEMPTS_MAX = 6
LOSSES_MAX = 3
PATIENCE_S = 3.5  # no new attempt after this: a lease's holder must not spend its trust here
PAUSE_FIRST_S = 0.01
PAUSE_MAX_S = 0.5
KIND_OPTION = "leasehold_kind"

Outcome = TypeVar("Outcome")


class Raced(Exception):
    """The rows changed between a verb's first look and its locks: look again."""


class Transaction:
    """What a verb's work gets: a connection, the transaction's id, and a way to undo it all.

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

    def abandon(self, outcome: Outcome) -> Outcome:
        """Undo what was written so far; `outcome` is the verb's."""
        self.abandoned = True
        return outcome


Work = Callable[[Transaction], Outcome]
Mark = Callable[[Transaction], bool]


class _Pace(local):
    """When the statements of this thread's transaction were sent and answered, in seconds."""

    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        """A new transaction: nothing was sent yet."""
        self.sent_s: float | None = None
        self.answered_s: float | None = None
        self.stood_s = 0.0

    def send(self, now_s: float) -> None:
        """A statement goes out; how long the transaction had stood still before it is noted."""
        if self.answered_s is not None:
            self.stood_s = max(self.stood_s, now_s - self.answered_s)
        self.sent_s, self.answered_s = now_s, None

    def answer(self, now_s: float) -> None:
        """The statement has its answer."""
        self.answered_s = now_s

    def waited_s(self, now_s: float) -> float:
        """How long the last statement has waited for its answer; 0 where it has one."""
        return 0.0 if self.sent_s is None or self.answered_s is not None else now_s - self.sent_s


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
        self._pace = _Pace()
        event.listen(engine, "before_cursor_execute", self._count)
        event.listen(engine, "after_cursor_execute", self._answered)

    @contextmanager
    def patient_engine(self) -> Generator[Engine]:
        """An engine whose statements may take minutes: nobody who holds a lease may wait so."""
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
            mark: whether this very transaction took effect, looked for in a new one after the
                reply to COMMIT was lost; None where running the work again is harmless.

        Raises:
            StoreUnavailable: the database does not answer; nothing was changed.
            StoreReadOnly: it takes no writes; nothing was changed.
            OutcomeUnknown: the reply was lost, and the mark could not be looked for.
            StoreError: it refuses; nothing was changed.
        """
        return self._run(kind, work, mark, write=True)

    def _run(self, kind: str, work: Work[Outcome], mark: Mark | None, *, write: bool) -> Outcome:
        unsettled: tuple[Outcome, str] | None = None
        losses = 0
        started = self._clock()
        for attempt in range(ATTEMPTS_MAX):
            if attempt:
                self._sleep(min(PAUSE_FIRST_S * 2**attempt, PAUSE_MAX_S) * (0.5 + self._jitter()))
            sent: tuple[Outcome, str] | None = None
            try:
                if unsettled and mark:
                    if self._happened(kind, mark, unsettled[1]):
                        return unsettled[0]
                    unsettled = None
                with self._transaction(kind, self._new_id(), write=write) as transaction:
                    outcome = work(transaction)
                    if transaction.abandoned or not write:
                        transaction.connection.rollback()
                        return outcome
                    failpoints.reach_in_transaction(kind)
                    sent = (outcome, transaction.id)
                    self._pace.send(self._clock())
                    transaction.connection.commit()
                return outcome
            except PoolTimeout as error:
                raise self._unavailable(unsettled) from error
            except StoreReadOnly as error:
                # A replica need not have what the primary committed, and its old primary may.
                if unsettled:
                    raise self._unavailable(unsettled) from error
                raise
            except (Raced, DBAPIError) as error:
                judged = Verdict.RETRY if isinstance(error, Raced) else verdict(error)
                losses += judged is Verdict.LOST
                doubtful = sent is not None and judged is Verdict.LOST
                unsettled = sent if doubtful else unsettled
                # A doubtful COMMIT deserves one more look, however late it is.
                late = self._clock() - started > PATIENCE_S and not doubtful
                hopeless = judged not in (Verdict.RETRY, Verdict.LOST) or losses >= LOSSES_MAX
                if late or hopeless or attempt == ATTEMPTS_MAX - 1:
                    raise self._refusal(judged, error, unsettled) from error
        raise AssertionError("The last attempt returns or raises.")

    def translated(self, error: Exception) -> StoreError:
        """The store's own error for one of the database's that arose outside `read` and `write`."""
        if isinstance(error, DBAPIError):
            return self._refusal(verdict(error), error, None)
        return self._unavailable(None)

    def _happened(self, kind: str, mark: Mark, identity: str) -> bool:
        with self._transaction(kind, identity, write=True) as transaction:
            found = mark(transaction)
            transaction.connection.rollback()
            return found

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
                raise self._read_only()

    def _count(
        self,
        connection: Connection,
        _cursor: object,
        statement: str,
        *_: object,
    ) -> None:
        self._pace.send(self._clock())
        kind = connection.get_execution_options().get(KIND_OPTION)
        if kind and not statement.startswith("BEGIN"):
            self.statements[kind] += 1

    def _answered(self, *_: object) -> None:
        self._pace.answer(self._clock())

    def _refusal(self, judged: Verdict, error: Exception, unsettled: object) -> StoreError:
        if not unsettled and isinstance(error, DBAPIError) and disk_is_full(error):
            return StoreUnavailable(
                f"The disk that holds the lease store at {self.place} is full: make room there; "
                "nothing was changed."
            )
        if unsettled or judged in (Verdict.UNAVAILABLE, Verdict.LOST):
            return self._unavailable(unsettled)
        if judged is Verdict.RETRY:
            return StoreUnavailable(
                f"The lease store at {self.place} is too busy: other transactions held its rows "
                "through every attempt; nothing was changed, and trying again later is safe."
            )
        if judged is Verdict.READ_ONLY:
            return self._read_only()
        assert isinstance(error, DBAPIError)
        number = error_number(error)
        advice = ADVICE.get(number, "nothing was changed")
        return StoreError(
            f"The lease store at {self.place} refused (error {number}: {_first_line(error)}): "
            f"{advice}."
        )

    def _read_only(self) -> StoreReadOnly:
        return StoreReadOnly(
            f"The lease store at {self.place} takes no writes: it is a read-only server or "
            "file; point the settings to the primary, or make the file and its folder writable."
        )

    def _unavailable(self, unsettled: object) -> StoreError:
        if unsettled:
            return OutcomeUnknown(
                f"The reply of the lease store at {self.place} was lost and it does not answer "
                "any more: the last write may or may not have happened; it is safe to try again."
            )
        safe = "nothing was changed, and trying again is safe"
        if self._pace.stood_s >= IDLE_TRANSACTION_S:
            return StoreUnavailable(
                f"The lease store at {self.place} ended a transaction that had stood still for "
                f"{self._pace.stood_s:.0f} s: this process was held up; {safe}."
            )
        waited_s = self._pace.waited_s(self._clock())
        if waited_s >= READ_TIMEOUT_S:
            return StoreUnavailable(
                f"The lease store at {self.place} does not answer: a statement had no reply within "
                f"{waited_s:.0f} s, so that its server is overloaded or frozen; {safe}."
            )
        return StoreUnavailable(
            f"The lease store at {self.place} does not answer: check that the database is "
            "running and reachable; nothing was changed."
        )


def _first_line(error: DBAPIError) -> str:
    arguments = error.orig.args if error.orig else ()
    text = str(arguments[-1]) if arguments else type(error.orig).__name__
    return text.splitlines()[0][:200] if text else "no message"
