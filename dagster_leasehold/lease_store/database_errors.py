"""The error numbers of an `OperationalError`, and their meaning for a transaction."""

from __future__ import annotations

import ssl
from enum import Enum
from typing import Any

from sqlalchemy.exc import DBAPIError


class Verdict(Enum):
    """How to continue after a database error."""

    RETRY = "the whole transaction was or can be rolled back; run it again"
    LOST = "the connection is gone; uncommitted changes are undone"
    UNAVAILABLE = "the database cannot be reached now"
    READ_ONLY = "the database refuses writes; the connection is to the wrong server"
    FATAL = "repeating will not help"


MYSQL_VERDICTS: dict[int, Verdict] = {
    1213: Verdict.RETRY,  # deadlock: everything was rolled back
    1205: Verdict.RETRY,  # lock wait timeout: only the statement was rolled back
    1020: Verdict.RETRY,  # record has changed since the snapshot (MariaDB)
    1317: Verdict.RETRY,  # query was interrupted
    1969: Verdict.RETRY,  # statement ran past max_statement_time (MariaDB)
    2006: Verdict.LOST,  # server has gone away
    2013: Verdict.LOST,  # lost connection during query
    2014: Verdict.LOST,  # commands out of sync
    2055: Verdict.LOST,  # lost connection at ...
    1053: Verdict.LOST,  # server shutdown in progress
    1927: Verdict.LOST,  # connection was killed (MariaDB)
    4031: Verdict.LOST,  # disconnected after inactivity (MySQL)
    1158: Verdict.LOST,  # error reading communication packets
    1159: Verdict.LOST,  # time-out reading communication packets
    1160: Verdict.LOST,  # error writing communication packets
    1161: Verdict.LOST,  # time-out writing communication packets
    2002: Verdict.UNAVAILABLE,  # cannot connect through the socket
    2003: Verdict.UNAVAILABLE,  # cannot connect to the server
    2005: Verdict.UNAVAILABLE,  # unknown server host
    1040: Verdict.UNAVAILABLE,  # too many connections
    1203: Verdict.UNAVAILABLE,  # too many connections of this account
    1226: Verdict.UNAVAILABLE,  # a resource limit of this account
    1021: Verdict.UNAVAILABLE,  # disk full
    1114: Verdict.UNAVAILABLE,  # table is full
    1129: Verdict.UNAVAILABLE,  # host is blocked
    1290: Verdict.READ_ONLY,  # running with --read-only
    1792: Verdict.READ_ONLY,  # read-only transaction
    1836: Verdict.READ_ONLY,  # read-only mode
}

SQLITE_VERDICTS: dict[int, Verdict] = {
    5: Verdict.RETRY,  # SQLITE_BUSY
    6: Verdict.RETRY,  # SQLITE_LOCKED
    8: Verdict.READ_ONLY,  # SQLITE_READONLY
    10: Verdict.UNAVAILABLE,  # SQLITE_IOERR
    13: Verdict.UNAVAILABLE,  # SQLITE_FULL
}

SQLITE_FULL = 13
SQLITE_IOERR_SHMSIZE = 4874  # the shared-memory file cannot grow
PACKET_TOO_LARGE = 1153
"""The server also closes the connection, and refuses the same statement again."""
MYSQL_FULL = frozenset({1021, 1114})

ADVICE: dict[int, str] = {
    14: "check that its file can be opened, and that its folder can be written",
    1044: "grant the account of its URL access to the database",
    1045: "check the account and the password in its URL",
    1049: "create the database first",
    1153: "raise max_allowed_packet on the server; nothing was changed",
    1142: "grant the account of its URL the rights of `leasehold db upgrade` or this command",
    1143: "grant the account of its URL the rights of `leasehold db upgrade` or this command",
    2003: "check ssl_ca, ssl_cert and ssl_key in its URL against the server's certificate",
    2026: "enable TLS on the server, or drop the ssl_ options from its URL",
}
"""Advice about fatal errors; 2003 is fatal only with TLS."""


def error_number(error: DBAPIError) -> int:
    """Return the driver's number of an error, or 0."""
    original: Any = error.orig
    number = getattr(original, "sqlite_errorcode", None)
    if number is None:
        arguments = getattr(original, "args", ())
        number = arguments[0] if arguments and isinstance(arguments[0], int) else 0
    return int(number)


def disk_is_full(error: DBAPIError) -> bool:
    """Return True if the database's disk is full."""
    number = error_number(error)
    if hasattr(error.orig, "sqlite_errorcode"):
        return number & 0xFF == SQLITE_FULL or number == SQLITE_IOERR_SHMSIZE
    return number in MYSQL_FULL


def verdict(error: DBAPIError) -> Verdict:
    """Return how to continue after this error."""
    number = error_number(error)
    if isinstance(getattr(error.orig, "original_exception", None), ssl.SSLError):
        return Verdict.FATAL  # the server's certificate is wrong
    if hasattr(error.orig, "sqlite_errorcode"):
        # The low byte is the error; the other bytes are details.
        return SQLITE_VERDICTS.get(number & 0xFF, Verdict.FATAL)
    result = MYSQL_VERDICTS.get(number, Verdict.FATAL)
    if result is Verdict.FATAL and error.connection_invalidated and number != PACKET_TOO_LARGE:
        # PyMySQL closed the connection itself, without a number.
        return Verdict.LOST
    return result
