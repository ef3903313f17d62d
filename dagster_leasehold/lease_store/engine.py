"""Database engines that are safe for leases: isolation, time-outs, time zone, strictness, TLS.

What is set at connect is also read back there: a proxy or an account's init script that changes
it is found at once, and not by the first lost update.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

from sqlalchemy import URL, Connection, Engine, create_engine, event, make_url
from sqlalchemy.engine.interfaces import ExceptionContext
from sqlalchemy.exc import ArgumentError, InvalidatePoolError, NoSuchModuleError
from sqlalchemy.pool import ConnectionPoolEntry, PoolResetState

from dagster_leasehold.lease_store.database_errors import Verdict, verdict
from dagster_leasehold.lease_store.database_packets import PacketLimit
from dagster_leasehold.lease_store.database_transport import transport
from dagster_leasehold.lease_store.errors import InvalidSetting, StoreError, shown

CONNECT_TIMEOUT_S = 3
READ_TIMEOUT_S = 4  # above the lock wait; a look at a frozen server and one more stay under 10 s
LOCK_WAIT_S = 2
IDLE_S = 20  # the server ends a session that rests in the pool for longer
IDLE_TRANSACTION_S = 5  # and much sooner one in use, which may have rows locked
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


def parse_url(text: str) -> URL:
    """Return the URL of a lease store, with the driver that this project is tested with.

    Raises:
        InvalidSetting: it is no URL, or of a database that is not supported.
    """
    try:
        url = make_url(text)
    except (ArgumentError, NoSuchModuleError, ValueError):
        # The text may hold a password, so it is not shown.
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
    """Return an engine for a lease store; it connects when it is first used.

    Args:
        url: see `parse_url`.
        statement_s: how long a statement may take, in seconds. Whoever holds a lease must not wait
            for longer than the default; who reads whole tables has to.
    """
    mysql = url.get_backend_name() == "mysql"
    engine = _mysql_engine(url, statement_s) if mysql else _sqlite_engine(url)
    event.listen(engine, "handle_error", _give_up_connection)
    return engine


def _give_up_connection(context: ExceptionContext) -> None:
    """Throw away a connection that leads to a server which does not take writes any more.

    Without this, after a fail-over:
    1. The pool holds connections to the old primary, now a read-only replica.
    2. A beat gets error 1290; the driver sees a healthy connection and keeps it.
    3. Every later beat gets the same connection, until the lease has lapsed.
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
        pool_reset_on_return=None,  # `_limit_idle_time` does so
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
    # A session is idle while its process waits for another one.
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
    """Have the server end a silent session soon while it is in use, and later while it rests.

    A process that freezes within a transaction:
    1. It has changed the row of its group, and is stopped before its COMMIT.
    2. Every other node waits for that row, and gives up after the lock wait, again and again.
    3. The server undoes the transaction once the session was silent for its `wait_timeout`.
    4. A limit as short as that at all times would end the sessions that rest between two beats.

    Setting the limit when a connection leaves the pool finds out that it is broken, and when it
    comes back nothing is left to roll back after a COMMIT: the two statements cost as much as a
    ping and a rollback, which they replace.
    """

    from pymysql.constants.SERVER_STATUS import SERVER_STATUS_IN_TRANS

    def leave_pool(connection: Any, entry: ConnectionPoolEntry, _proxy: object) -> None:
        if entry.info.pop(_FRESH_INFO, False):
            return
        try:
            _limit(connection, in_use_s)
        except connection.Error as error:
            raise InvalidatePoolError from error

    def come_back(connection: Any, _record: ConnectionPoolEntry, state: PoolResetState) -> None:
        if state.terminate_only:
            return
        if not state.transaction_was_reset and connection.server_status & SERVER_STATUS_IN_TRANS:
            connection.rollback()
        _limit(connection, at_rest_s)

    event.listen(engine, "checkout", leave_pool)
    event.listen(engine, "reset", come_back)


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
                "The lease store's server does not speak TLS, which its URL asks for: enable it "
                "there, or drop the ssl_ options."
            )


def _assert_session(cursor: Any, in_use_s: int) -> None:
    """Read back what was set.

    Raises:
        StoreError: something between us and the server changed it.
    """
    cursor.execute("SELECT @@time_zone, @@sql_mode, @@innodb_lock_wait_timeout, @@wait_timeout")
    time_zone, sql_mode, lock_wait, idle = cursor.fetchone()
    settings = {
        "transaction isolation": (isolation(cursor), "READ-COMMITTED"),
        "time_zone": (time_zone, "+00:00"),
        "innodb_lock_wait_timeout": (int(lock_wait), LOCK_WAIT_S),
        "wait_timeout": (int(idle), in_use_s),
        "strict sql_mode": ("STRICT_ALL_TABLES" in sql_mode.split(","), True),
    }
    for name, (value, wanted) in settings.items():
        if value != wanted:
            raise StoreError(
                f"The database session has {name} = {shown(value)} instead of {shown(wanted)}: "
                "leases are not safe on it; look for a proxy that rewrites session settings."
            )


def _read_only(cursor: Any) -> bool:
    """Return True if the server is a replica: a privileged account could write there."""
    cursor.execute("SELECT @@GLOBAL.read_only")
    return str(cursor.fetchone()[0]).upper() not in ("0", "OFF", "NONE")


def isolation(cursor: Any) -> str:
    """Return the isolation level of a session, as its server writes it: `READ-COMMITTED`."""
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
        # The driver's own transaction control would begin too late and never lock: see `begin`.
        connection.isolation_level = None
        connection.execute(f"PRAGMA busy_timeout = {READ_TIMEOUT_S * 1000}")
        connection.execute("PRAGMA foreign_keys = ON")
        connection.execute("PRAGMA synchronous = FULL")

    def begin(connection: Connection) -> None:
        # A write that began as a read can find that another writer was faster, and SQLite then
        # fails it without waiting; taking the write lock first makes it wait.
        write = connection.get_execution_options().get(WRITE_OPTION, False)
        connection.exec_driver_sql("BEGIN IMMEDIATE" if write else "BEGIN")

    event.listen(engine, "connect", prepare)
    event.listen(engine, "begin", begin)
    return engine


def _openable(url: URL) -> URL:
    """Return the URL under which a file can be read, where nothing may be written beside it.

    1. SQLite opens a write-ahead log with a file that readers and writers share beside it.
    2. In a folder that may only be read, it cannot make that file, and refuses to read at all.
    3. Where nobody has the store open, there is no log to be read, and the file can be taken as
       it is; where somebody has, the log and the shared file are there already.
    """
    path = sqlite_path(url)
    if path is None or url.query or not path.is_file() or os.access(path.parent, os.W_OK):
        return url
    log = path.with_name(f"{path.name}-wal")
    at_rest = not log.exists() or log.stat().st_size == 0
    place = f"file:{quote(str(path.absolute()))}"
    options = {"mode": "ro", "uri": "true"} | ({"immutable": "1"} if at_rest else {})
    return url.set(database=place, query=options)


def sqlite_path(url: URL) -> Path | None:
    """Return the file of a SQLite store; None for other databases."""
    if url.get_backend_name() != "sqlite" or not url.database:
        return None
    if url.database.startswith("file:"):
        return Path(unquote(url.database.removeprefix("file:")))
    return Path(url.database)
