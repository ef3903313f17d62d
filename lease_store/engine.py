"""Database engines that are safe for leases: isolation, time-outs, time zone, strictness, TLS.

What is set at connect is also read back there: a proxy or an account's init script that changes
it is found at once, and not by the first lost update.
"""

from __future__ import annotations

import ssl
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from sqlalchemy import URL, Connection, Engine, create_engine, event, make_url
from sqlalchemy.engine.interfaces import ExceptionContext
from sqlalchemy.exc import ArgumentError, NoSuchModuleError
from sqlalchemy.pool import ConnectionPoolEntry

from lease_store.database_errors import Verdict, verdict
from lease_store.errors import InvalidSetting, StoreError, shown

CONNECT_TIMEOUT_S = 3
READ_TIMEOUT_S = 4  # above the lock wait; a look at a frozen server and one more stay under 10 s
LOCK_WAIT_S = 2
IDLE_S = 20  # the server ends an idle session, and with it whatever it had locked
IDLE_TRANSACTION_S = 5  # and much sooner where it holds locks in an open transaction (MariaDB)
RECYCLE_S = 15  # the pool replaces a connection before the server ends it
POOL_SIZE = 5
SQL_MODE = (
    "STRICT_ALL_TABLES,NO_ZERO_DATE,NO_ZERO_IN_DATE,ERROR_FOR_DIVISION_BY_ZERO,"
    "NO_ENGINE_SUBSTITUTION"
)
WRITE_OPTION = "leasehold_write"
READ_ONLY_INFO = "leasehold_read_only"
_UNKNOWN_VARIABLE = 1193


def parse_url(text: str) -> URL:
    """The URL of a lease store, with the driver that this project is tested with.

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
    """An engine for a lease store; it connects when it is first used.

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
    url, arguments = _tls(url)
    engine = create_engine(
        url,
        pool_size=POOL_SIZE,
        pool_pre_ping=True,
        pool_recycle=RECYCLE_S,
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
    # A session is idle while its process waits for another one.
    longer_s = statement_s - READ_TIMEOUT_S

    def prepare(connection: Any, record: ConnectionPoolEntry) -> None:
        with connection.cursor() as cursor:
            _prepare_session(cursor, encrypted=encrypted, longer_s=longer_s)
            record.info[READ_ONLY_INFO] = _read_only(cursor)
        connection.commit()

    event.listen(engine, "connect", prepare)
    return engine


def _tls(url: URL) -> tuple[URL, dict[str, Any]]:
    """The URL without its `ssl_*` options, and a context that verifies certificate and host.

    The driver's own reading of these options would accept any certificate.
    """
    query = dict(url.query)
    options = {name: query.pop(name) for name in tuple(query) if name.startswith("ssl_")}
    if not options:
        return url, {}
    unknown = sorted(options.keys() - {"ssl_ca", "ssl_cert", "ssl_key"})
    if unknown:
        raise InvalidSetting(
            f"The lease store's URL has the TLS option {shown(unknown[0])}: use ssl_ca, ssl_cert "
            "and ssl_key; certificate and host name are always verified."
        )
    try:
        context = ssl.create_default_context(cafile=_path(options.get("ssl_ca")))
        if "ssl_cert" in options:
            certificate = _path(options["ssl_cert"])
            context.load_cert_chain(str(certificate), keyfile=_path(options.get("ssl_key")))
    except (OSError, ssl.SSLError) as error:
        raise InvalidSetting(
            f"The lease store's TLS files cannot be read ({error.strerror or error}): check "
            "ssl_ca, ssl_cert and ssl_key in its URL."
        ) from None
    return url.set(query=query), {"ssl": context}


def _path(option: str | tuple[str, ...] | None) -> str | None:
    return option[0] if isinstance(option, tuple) else option


def _prepare_session(cursor: Any, *, encrypted: bool, longer_s: int) -> None:
    cursor.execute("SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED")
    cursor.execute(
        "SET SESSION sql_mode = %s, time_zone = '+00:00', innodb_lock_wait_timeout = %s, "
        "wait_timeout = %s",
        (SQL_MODE, LOCK_WAIT_S, IDLE_S + longer_s),
    )
    cursor.execute("SELECT VERSION()")
    if "MariaDB" in str(cursor.fetchone()[0]):
        idle_s = IDLE_TRANSACTION_S + longer_s
        cursor.execute("SET SESSION idle_transaction_timeout = %s", (idle_s,))
    _assert_session(cursor)
    if encrypted:
        cursor.execute("SHOW SESSION STATUS LIKE 'Ssl_cipher'")
        row = cursor.fetchone()
        if not row or not row[1]:
            raise StoreError(
                "The lease store's server does not speak TLS, which its URL asks for: enable it "
                "there, or drop the ssl_ options."
            )


def _assert_session(cursor: Any) -> None:
    """Read back what was set.

    Raises:
        StoreError: something between us and the server changed it.
    """
    cursor.execute("SELECT @@time_zone, @@sql_mode, @@innodb_lock_wait_timeout")
    time_zone, sql_mode, lock_wait = cursor.fetchone()
    found = {
        "transaction isolation": (_isolation(cursor), "READ-COMMITTED"),
        "time_zone": (time_zone, "+00:00"),
        "innodb_lock_wait_timeout": (int(lock_wait), LOCK_WAIT_S),
        "strict sql_mode": ("STRICT_ALL_TABLES" in _words(sql_mode), True),
    }
    for name, (value, wanted) in found.items():
        if value != wanted:
            raise StoreError(
                f"The database session has {name} = {shown(value)} instead of {shown(wanted)}: "
                "leases are not safe on it; look for a proxy that rewrites session settings."
            )


def _read_only(cursor: Any) -> bool:
    """Whether the server is a replica: an account with privileges enough could write there."""
    cursor.execute("SELECT @@GLOBAL.read_only")
    return str(cursor.fetchone()[0]).upper() not in ("0", "OFF", "NONE")


def _words(sql_mode: str) -> Iterable[str]:
    return sql_mode.split(",")


def _isolation(cursor: Any) -> str:
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
        url,
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


def sqlite_path(url: URL) -> Path | None:
    """The file of a SQLite store; None for other databases."""
    if url.get_backend_name() != "sqlite" or not url.database:
        return None
    return Path(url.database.removeprefix("file:"))
