"""Transactions of the SQL store: one for each operation, retried as a whole.

If the reply to a COMMIT is lost, the operation's mark shows whether it took effect:

1. The transaction sends COMMIT, and the server makes it durable.
2. The connection breaks before the reply arrives. The driver reports error 2013, exactly as if the
   connection had broken before the COMMIT arrived.
3. If the transaction ran again, it would take its own change for another process's, and report a
   lost race (or count twice).
4. So the next attempt first reads the mark, under the lock that the first transaction would still
   hold if it were in flight. If the mark is set, the first outcome is returned; otherwise the
   transaction runs again.

A new session sets isolation, timeouts, time zone, strictness and TLS, on which leases depend, and
reads the values back. So a proxy or an init script that changes them is noticed at once, not at
the first lost update.

A statement can be larger than the server accepts:

1. A commit with very many files is one statement of 20 MiB; `max_allowed_packet` is 16 MiB.
2. The server closes the connection while the statement is being sent. The driver reports error
   2006, exactly as if the server was down.
3. Retries would not help. So the statement's size is compared with the session's limit, and the
   error gets the server's own number for large statements.
"""

from __future__ import annotations

import os
import random
import time
from collections import Counter
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import local
from typing import Any, Generic, TypeVar
from urllib.parse import quote, unquote
from uuid import uuid4

from sqlalchemy import (
    URL,
    Connection,
    Engine,
    Executable,
    MappingResult,
    create_engine,
    event,
    make_url,
)
from sqlalchemy.engine.interfaces import ExceptionContext
from sqlalchemy.exc import ArgumentError, DBAPIError, InvalidatePoolError, NoSuchModuleError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from sqlalchemy.pool import ConnectionPoolEntry, PoolResetState
from tenacity import Retrying, retry_if_exception_type, stop_after_attempt, wait_exponential

from dagster_leasehold.lease_store import database_errors, errors, failpoints
from dagster_leasehold.lease_store.database_errors import PACKET_TOO_LARGE, Verdict, verdict
from dagster_leasehold.lease_store.database_transport import transport
from dagster_leasehold.lease_store.errors import InvalidSetting, StoreError, StoreReadOnly, shown
from dagster_leasehold.lease_store.stored_rows import Raced

LOST_WHILE_SENDING = frozenset({2006, 2013, 2055})
MANY_ROWS_BYTES = 1_024_000
"""The driver divides a larger statement of many rows."""

CONNECT_TIMEOUT_S = 3
READ_TIMEOUT_S = 4  # above the lock wait; two attempts at a frozen server take less than 10 s
LOCK_WAIT_S = 2
IDLE_S = 20  # after this time the server ends an idle session in the pool
IDLE_TRANSACTION_S = 5  # the same for a session in use, because it can hold row locks
RECYCLE_S = 15  # the pool replaces a connection before the server ends it
POOL_SIZE = 5
SQL_MODE = (
    "STRICT_ALL_TABLES,NO_ZERO_DATE,NO_ZERO_IN_DATE,ERROR_FOR_DIVISION_BY_ZERO,"
    "NO_ENGINE_SUBSTITUTION"
)
WRITE_OPTION = "leasehold_write"
READ_ONLY_INFO = "leasehold_read_only"
_FRESH_INFO = "leasehold_fresh"
_UNKNOWN_VARIABLE = 1193
ATTEMPTS_MAX = 6
LOSSES_MAX = 3
PATIENCE_S = 3.5  # no new attempt after this, so that a lease holder does not lose its trust
PAUSE_FIRST_S = 0.02
PAUSE_MAX_S = 0.5
_GROWING = wait_exponential(multiplier=PAUSE_FIRST_S, max=PAUSE_MAX_S)
KIND_OPTION = "leasehold_kind"

Outcome = TypeVar("Outcome")


class PacketLimit:
    """The server's `max_allowed_packet`, as of the engine's newest session."""

    def __init__(self) -> None:
        self._bytes: int | None = None

    def read(self, cursor: Any) -> None:
        """Read the limit of a new session, which is constant for the session."""
        cursor.execute("SELECT @@max_allowed_packet")
        self._bytes = int(cursor.fetchone()[0])

    def name_cause(self, context: ExceptionContext) -> None:
        """Replace the error of a statement that was too large with a clear one."""
        error: Any = context.original_exception
        number = error.args[0] if error.args else 0
        if number == PACKET_TOO_LARGE:
            context.is_disconnect = True
        execution: Any = context.execution_context
        if number not in LOST_WHILE_SENDING or execution is None or self._bytes is None:
            return
        size = _sent_bytes(execution.cursor, context.statement or "", context.parameters)
        if size >= self._bytes:
            error.args = (
                PACKET_TOO_LARGE,
                f"a statement of {size} bytes is larger than max_allowed_packet of {self._bytes}",
            )


def _sent_bytes(cursor: Any, statement: str, parameters: Any) -> int:
    """Return the size of the driver's largest packet for a statement."""
    many = isinstance(parameters, list)
    rows: list[Any] = parameters if many else [parameters]
    sizes = [len(cursor.mogrify(statement, row).encode("utf-8", "replace")) for row in rows]
    return 1 + min(sum(sizes), max(*sizes, MANY_ROWS_BYTES if many else 0))


def parse_url(text: str) -> URL:
    """Parse the URL of a lease store; raise InvalidSetting if the database is not supported."""
    try:
        url = make_url(text)
    except (ArgumentError, NoSuchModuleError, ValueError):
        # The text can contain a password, so it is not shown.
        raise InvalidSetting(
            "The lease store's URL cannot be parsed: use sqlite:///path/to/leases.db or "
            "mysql+pymysql://user:password@host:3306/database."
        ) from None
    family = url.get_backend_name()
    if family in ("mysql", "mariadb"):
        if not url.database:
            raise InvalidSetting(
                "The lease store's URL names no database: end it with /name_of_the_database."
            )
        return url.set(drivername="mysql+pymysql")
    if family == "sqlite":
        if url.database in (None, "", ":memory:"):
            raise InvalidSetting(
                "A lease store in SQLite's memory cannot be shared between processes: give a path, "
                "sqlite:///path/to/leases.db."
            )
        return url.set(drivername="sqlite+pysqlite")
    raise InvalidSetting(
        f"The lease store cannot live in {shown(family)}: use SQLite, MariaDB or MySQL."
    )


def open_engine(url: URL, *, statement_s: int = READ_TIMEOUT_S) -> Engine:
    """Return an engine for a lease store; it connects on first use.

    `statement_s` is the timeout of a statement. A lease holder must not wait longer than the
    default. Reads of whole tables need more.
    """
    mysql = url.get_backend_name() == "mysql"
    engine = _mysql_engine(url, statement_s) if mysql else _sqlite_engine(url)
    event.listen(engine, "handle_error", _give_up_connection)
    return engine


def _give_up_connection(context: ExceptionContext) -> None:
    """Discard a connection to a server that no longer accepts writes.

    Without this, after a failover:

    1. The pool has connections to the old primary, now a read-only replica.
    2. A heartbeat gets error 1290. The connection itself is healthy, so the pool keeps it.
    3. Every later heartbeat gets the same connection, until the lease has expired.
    """
    error = context.sqlalchemy_exception
    if error is not None and hasattr(error, "connection_invalidated"):
        verdict_ = verdict(error)  # pyright: ignore[reportArgumentType]
        if verdict_ in (Verdict.READ_ONLY, Verdict.LOST):
            context.is_disconnect = True


# -- MariaDB and MySQL ----------------------------------------------------------------------------


def _mysql_engine(url: URL, statement_s: int) -> Engine:
    url, arguments = transport(url)
    engine = create_engine(
        url,
        pool_size=POOL_SIZE,
        pool_recycle=RECYCLE_S,
        pool_reset_on_return=None,  # `_limit_idle_time` resets connections
        pool_timeout=READ_TIMEOUT_S,
        hide_parameters=True,
        connect_args={
            "connect_timeout": CONNECT_TIMEOUT_S,
            "read_timeout": statement_s,
            "write_timeout": statement_s,
            "charset": "utf8mb4",
            "local_infile": False,
            **arguments,
        },
    )
    encrypted = "ssl" in arguments
    packets = PacketLimit()
    # A session is idle while its process waits for a statement of another session.
    longer_s = statement_s - READ_TIMEOUT_S

    def prepare(connection: Any, entry: ConnectionPoolEntry) -> None:
        with connection.cursor() as cursor:
            _prepare_session(cursor, encrypted=encrypted, in_use_s=IDLE_TRANSACTION_S + longer_s)
            entry.info[READ_ONLY_INFO] = _read_only(cursor)
            packets.read(cursor)
        connection.commit()
        entry.info[_FRESH_INFO] = True

    event.listen(engine, "connect", prepare)
    event.listen(engine, "handle_error", packets.name_cause)
    _limit_idle_time(engine, in_use_s=IDLE_TRANSACTION_S + longer_s, at_rest_s=IDLE_S + longer_s)
    return engine


def _limit_idle_time(engine: Engine, *, in_use_s: int, at_rest_s: int) -> None:
    """Limit a session's idle time: to a short time while in use, to a longer one in the pool.

    A process can freeze within a transaction:

    1. It has changed the row of its group, and freezes before its COMMIT.
    2. Every other node waits for that row until its lock wait times out, again and again.
    3. The server rolls back the transaction after the session was idle for `wait_timeout`.
    4. The same limit in the pool would end sessions that are idle between two heartbeats.

    The statement at checkout also detects a broken connection. So the two statements replace the
    pool's ping and rollback, at the same cost.
    """

    from pymysql.constants.SERVER_STATUS import SERVER_STATUS_IN_TRANS

    def check_out(connection: Any, entry: ConnectionPoolEntry, _proxy: object) -> None:
        if entry.info.pop(_FRESH_INFO, False):
            return
        try:
            _limit(connection, in_use_s)
        except connection.Error as error:
            raise InvalidatePoolError from error

    def check_in(connection: Any, _record: ConnectionPoolEntry, state: PoolResetState) -> None:
        if state.terminate_only:
            return
        if not state.transaction_was_reset and connection.server_status & SERVER_STATUS_IN_TRANS:
            connection.rollback()
        _limit(connection, at_rest_s)

    event.listen(engine, "checkout", check_out)
    event.listen(engine, "reset", check_in)


def _limit(connection: Any, seconds: int) -> None:
    with connection.cursor() as cursor:
        cursor.execute("SET SESSION wait_timeout = %s", (seconds,))


def _prepare_session(cursor: Any, *, encrypted: bool, in_use_s: int) -> None:
    cursor.execute("SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED")
    cursor.execute(
        "SET SESSION sql_mode = %s, time_zone = '+00:00', innodb_lock_wait_timeout = %s, "
        "wait_timeout = %s",
        (SQL_MODE, LOCK_WAIT_S, in_use_s),
    )
    _assert_session(cursor, in_use_s)
    if encrypted:
        cursor.execute("SHOW SESSION STATUS LIKE 'Ssl_cipher'")
        row = cursor.fetchone()
        if not row or not row[1]:
            raise StoreError(
                "The lease store's URL requires TLS, but its server does not use it: enable TLS "
                "there, or drop the ssl_ options."
            )


def _assert_session(cursor: Any, in_use_s: int) -> None:
    """Read back the settings of the session; raise StoreError if one was changed."""
    cursor.execute("SELECT @@time_zone, @@sql_mode, @@innodb_lock_wait_timeout, @@wait_timeout")
    time_zone, sql_mode, lock_wait, idle = cursor.fetchone()
    settings = {
        "transaction isolation": (isolation(cursor), "READ-COMMITTED"),
        "time_zone": (time_zone, "+00:00"),
        "innodb_lock_wait_timeout": (int(lock_wait), LOCK_WAIT_S),
        "wait_timeout": (int(idle), in_use_s),
        "strict sql_mode": ("STRICT_ALL_TABLES" in sql_mode.split(","), True),
    }
    for name, (value, expected) in settings.items():
        if value != expected:
            raise StoreError(
                f"The database session has {name} = {shown(value)} instead of {shown(expected)}: "
                "leases are not safe on it; look for a proxy that rewrites session settings."
            )


def _read_only(cursor: Any) -> bool:
    """Return True if the server is read-only, like a replica; privileged accounts can write."""
    cursor.execute("SELECT @@GLOBAL.read_only")
    return str(cursor.fetchone()[0]).upper() not in ("0", "OFF", "NONE")


def isolation(cursor: Any) -> str:
    """Return the isolation level of a session, in the server's form: `READ-COMMITTED`."""
    try:
        cursor.execute("SELECT @@transaction_isolation")
    except Exception as error:
        if not error.args or error.args[0] != _UNKNOWN_VARIABLE:
            raise
        cursor.execute("SELECT @@tx_isolation")  # MariaDB before 11.1
    return str(cursor.fetchone()[0])


# -- SQLite ---------------------------------------------------------------------------------------


def _sqlite_engine(url: URL) -> Engine:
    engine = create_engine(
        _openable(url),
        pool_size=POOL_SIZE,
        pool_timeout=READ_TIMEOUT_S,
        hide_parameters=True,
        connect_args={"timeout": READ_TIMEOUT_S, "check_same_thread": False},
    )

    def prepare(connection: Any, _record: object) -> None:
        # The driver's own transactions would begin too late and never lock: see `begin`.
        connection.isolation_level = None
        connection.execute(f"PRAGMA busy_timeout = {READ_TIMEOUT_S * 1000}")
        connection.execute("PRAGMA foreign_keys = ON")
        connection.execute("PRAGMA synchronous = FULL")

    def begin(connection: Connection) -> None:
        # If a transaction begins with a read and another one writes first, SQLite fails its write
        # without waiting. A transaction that takes the write lock first waits.
        write = connection.get_execution_options().get(WRITE_OPTION, False)
        connection.exec_driver_sql("BEGIN IMMEDIATE" if write else "BEGIN")

    event.listen(engine, "connect", prepare)
    event.listen(engine, "begin", begin)
    return engine


def _openable(url: URL) -> URL:
    """Return a URL that can read a database file in a read-only folder.


    1. For a database with a write-ahead log, SQLite uses a shared-memory file in the same folder.
    2. In a read-only folder it cannot create that file, and refuses to read.
    3. If no process has the store open, the log is empty, and the database can be read as
       immutable. Otherwise the log and the shared-memory file already exist.
    """
    path = sqlite_path(url)
    if path is None or url.query or not path.is_file() or os.access(path.parent, os.W_OK):
        return url
    log = path.with_name(f"{path.name}-wal")
    empty_log = not log.exists() or log.stat().st_size == 0
    place = f"file:{quote(str(path.absolute()))}"
    options = {"mode": "ro", "uri": "true"} | ({"immutable": "1"} if empty_log else {})
    return url.set(database=place, query=options)


def sqlite_path(url: URL) -> Path | None:
    """Return the file of a SQLite store; None for other databases."""
    if url.get_backend_name() != "sqlite" or not url.database:
        return None
    if url.database.startswith("file:"):
        return Path(unquote(url.database.removeprefix("file:")))
    return Path(url.database)


class Pace(local):
    """The delays of this thread's transaction, in seconds.

    Attributes:
        stalled_s: the longest time between an answer and this process's next statement.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self.begin()

    def begin(self) -> None:
        """Start timing a new transaction."""
        self._sent_s: float | None = None
        self._answered_s: float | None = None
        self.stalled_s = 0.0

    def send(self) -> None:
        """Record that a statement is sent."""
        now_s = self._clock()
        if self._answered_s is not None:
            self.stalled_s = max(self.stalled_s, now_s - self._answered_s)
        self._sent_s, self._answered_s = now_s, None

    def answer(self) -> None:
        """Record that the statement was answered."""
        self._answered_s = self._clock()

    @property
    def waited_s(self) -> float:
        """The wait of the last statement for its answer; 0 if it was answered."""
        answered = self._sent_s is None or self._answered_s is not None
        return 0.0 if answered else self._clock() - (self._sent_s or 0.0)


def refusal(
    judgement: database_errors.Verdict, error: Exception, place: str, pace: Pace, *, unsettled: bool
) -> errors.StoreError:
    """Return the store's error for an error that ended a transaction.

    Args:
        judgement: the verdict on `error`.
        error: a database error, or a race that was lost in every attempt.
        unsettled: True if the reply to a COMMIT was lost, and its outcome is unknown.
    """
    if not unsettled and isinstance(error, DBAPIError) and database_errors.disk_is_full(error):
        return errors.StoreUnavailable(
            f"The disk that holds the lease store at {place} is full: make room there; "
            "nothing was changed."
        )
    if unsettled or judgement in (
        database_errors.Verdict.UNAVAILABLE,
        database_errors.Verdict.LOST,
    ):
        return unavailable(place, pace, unsettled=unsettled)
    if judgement is database_errors.Verdict.RETRY:
        return errors.StoreUnavailable(
            f"The lease store at {place} is too busy: other transactions locked its rows "
            "during every attempt; nothing was changed, and a later retry is safe."
        )
    if judgement is database_errors.Verdict.READ_ONLY:
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


def unavailable(place: str, pace: Pace, *, unsettled: bool) -> errors.StoreError:
    """Return the error for a database that does not answer."""
    if unsettled:
        return errors.OutcomeUnknown(
            f"The lease store at {place} stopped answering during a COMMIT, so it is unknown if "
            "the last write took effect. A retry is safe."
        )
    safe = "nothing was changed, and a retry is safe"
    if pace.stalled_s >= IDLE_TRANSACTION_S:
        return errors.StoreUnavailable(
            f"The lease store at {place} ended a transaction that had stalled for "
            f"{pace.stalled_s:.0f} s: this process was held up; {safe}."
        )
    if (waited_s := pace.waited_s) >= READ_TIMEOUT_S:
        return errors.StoreUnavailable(
            f"The lease store at {place} does not answer: a statement had no reply within "
            f"{waited_s:.0f} s, so its server is overloaded or frozen; {safe}."
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
    """One attempt at an operation of the store.

    Attributes:
        id: unique; journal entries contain it, to check the outcome after a lost reply.
        abandoned: True if it must be rolled back.
    """

    def __init__(self, connection: Connection, identity: str) -> None:
        self.connection = connection
        self.id = identity
        self.abandoned = False

    def rows(self, statement: Executable) -> MappingResult:
        """Return the rows of a query, by column name."""
        return self.connection.execute(statement).mappings()

    def value(self, statement: Executable) -> Any:
        """Return the first value of the first row of a query; None without a row."""
        return self.connection.execute(statement).scalar()

    def abandon(self, outcome: Outcome) -> Outcome:
        """Mark the transaction for a rollback; return `outcome`."""
        self.abandoned = True
        return outcome


Work = Callable[[Transaction], Outcome]
Mark = Callable[[Transaction], bool]


class _Again(Exception):
    """An attempt failed, and another attempt can succeed."""

    def __init__(self, judgement: Verdict, error: Exception) -> None:
        super().__init__(judgement, error)
        self.verdict = judgement
        self.error = error


@dataclass(slots=True)
class _Attempts(Generic[Outcome]):
    """The attempts at one transaction so far.

    Attributes:
        mark: checks if an attempt took effect.
        started_s: the start of the first attempt.
        unsettled: outcome and id of an attempt whose COMMIT had no reply.
    """

    kind: str
    work: Work[Outcome]
    mark: Mark | None
    write: bool
    started_s: float
    unsettled: tuple[Outcome, str] | None = None
    losses: int = 0


class Transactions:
    """Runs the operations of a store on an engine.

    Args:
        engine: see `open_engine`.
        place: the name of the database in messages, without secrets.
        clock: monotonic seconds; limits the time of all attempts.
        jitter: returns a number in [0, 1), to spread the attempts of colliding processes.
        long_running: opens an engine whose statements can take minutes, for work on whole tables;
            None if `engine` can be used for that.
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
        long_running: Callable[[], Engine] | None = None,
    ) -> None:
        self.engine = engine
        self.place = place
        self.statements: Counter[str] = Counter()
        self._sleep = sleep
        self._clock = clock
        self._jitter = jitter
        self._new_id = new_id
        self._long_running = long_running
        self._pace = Pace(clock)
        event.listen(engine, "before_cursor_execute", self._count)
        event.listen(engine, "after_cursor_execute", self._answered)

    @contextmanager
    def long_running_engine(self) -> Generator[Engine]:
        """Open an engine whose statements can take minutes; lease holders must not use it."""
        if self._long_running is None:
            yield self.engine
            return
        engine = self._long_running()
        try:
            yield engine
        finally:
            engine.dispose()

    def read(self, kind: str, work: Work[Outcome]) -> Outcome:
        """Run statements that change nothing, in one transaction; raises as `write`."""
        return self._run(kind, work, None, write=False)

    def write(self, kind: str, work: Work[Outcome], *, mark: Mark | None = None) -> Outcome:
        """Run an operation's statements in one transaction.

        Args:
            kind: the operation, for the statement counter.
            work: its statements; every attempt runs all of them.
            mark: after a lost reply to COMMIT, checks in a new transaction if that attempt took
                effect; None if running the work twice is harmless.

        Raises:
            StoreUnavailable: the database does not answer; nothing was changed.
            StoreReadOnly: the database takes no writes; nothing was changed.
            OutcomeUnknown: the reply was lost, and the mark could not be read.
            StoreError: the database refuses; nothing was changed.
        """
        return self._run(kind, work, mark, write=True)

    def _run(self, kind: str, work: Work[Outcome], mark: Mark | None, *, write: bool) -> Outcome:
        attempts = _Attempts(kind, work, mark, write, self._clock())
        retrying = Retrying(
            retry=retry_if_exception_type(_Again),
            stop=stop_after_attempt(ATTEMPTS_MAX),
            wait=lambda state: _GROWING(state) * (0.5 + self._jitter()),
            sleep=self._sleep,
            reraise=True,
        )
        try:
            return retrying(lambda: self._attempt(attempts))
        except _Again as last:
            raise self._refusal(last.verdict, last.error, attempts.unsettled) from last.error

    def _attempt(self, attempts: _Attempts[Outcome]) -> Outcome:
        """Run the transaction once, unless a lost attempt took effect; raise _Again to retry."""
        sent: tuple[Outcome, str] | None = None
        try:
            if attempts.unsettled and attempts.mark:
                if self._happened(attempts.kind, attempts.mark, attempts.unsettled[1]):
                    return attempts.unsettled[0]
                attempts.unsettled = None
            with self._transaction(
                attempts.kind, self._new_id(), write=attempts.write
            ) as transaction:
                outcome = attempts.work(transaction)
                if transaction.abandoned or not attempts.write:
                    transaction.connection.rollback()
                    return outcome
                failpoints.reach(f"in_{attempts.kind}")
                sent = (outcome, transaction.id)
                self._pace.send()
                transaction.connection.commit()
            return outcome
        except PoolTimeout as error:
            raise self._unavailable(attempts.unsettled) from error
        except StoreReadOnly as error:
            # A replica possibly lacks the last commits of the old primary, so it proves nothing.
            if attempts.unsettled:
                raise self._unavailable(attempts.unsettled) from error
            raise
        except (Raced, DBAPIError) as error:
            judgement = Verdict.RETRY if isinstance(error, Raced) else verdict(error)
            attempts.losses += judgement is Verdict.LOST
            reply_lost = sent is not None and judgement is Verdict.LOST
            attempts.unsettled = sent if reply_lost else attempts.unsettled
            # After a COMMIT without a reply, there is always one more attempt.
            late = self._clock() - attempts.started_s > PATIENCE_S and not reply_lost
            hopeless = (
                judgement not in (Verdict.RETRY, Verdict.LOST) or attempts.losses >= LOSSES_MAX
            )
            if late or hopeless:
                raise self._refusal(judgement, error, attempts.unsettled) from error
            raise _Again(judgement, error) from error

    def translated(self, error: Exception) -> StoreError:
        """Convert a database error that was raised outside `read` and `write`."""
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
        """Refuse a read-only server, after a second check on a new connection.

        A replica accepts the writes of a privileged account, and the next failover would lose them.
        """
        if connection.info.get(READ_ONLY_INFO):
            connection.invalidate()
            if connection.info.get(READ_ONLY_INFO):
                connection.invalidate()
                raise read_only(self.place)

    def _count(self, connection: Connection, _cursor: object, statement: str, *_: object) -> None:
        self._pace.send()
        kind = connection.get_execution_options().get(KIND_OPTION)
        if kind and not statement.startswith("BEGIN"):
            self.statements[kind] += 1

    def _answered(self, *_: object) -> None:
        self._pace.answer()

    def _refusal(self, judgement: Verdict, error: Exception, unsettled: object) -> StoreError:
        return refusal(judgement, error, self.place, self._pace, unsettled=unsettled is not None)

    def _unavailable(self, unsettled: object) -> StoreError:
        return unavailable(self.place, self._pace, unsettled=unsettled is not None)
