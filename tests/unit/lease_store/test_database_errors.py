"""Every error number has one meaning, and every transaction acts on it."""

from __future__ import annotations

import sqlite3

import pytest
from sqlalchemy.exc import DBAPIError, InterfaceError, OperationalError

from dagster_leasehold.lease_store.database_errors import (
    MYSQL_VERDICTS,
    SQLITE_VERDICTS,
    Verdict,
    disk_is_full,
    error_number,
    verdict,
)


def of_mysql(number: int, text: str = "injected") -> DBAPIError:
    import pymysql

    return OperationalError("UPDATE", {}, pymysql.err.OperationalError(number, text))


def of_sqlite(number: int) -> DBAPIError:
    original = sqlite3.OperationalError("injected")
    original.sqlite_errorcode = number
    return OperationalError("UPDATE", {}, original)


@pytest.mark.parametrize(
    ("number", "expected"),
    [
        (1213, Verdict.RETRY),
        (1205, Verdict.RETRY),
        (1020, Verdict.RETRY),
        (2013, Verdict.LOST),
        (2006, Verdict.LOST),
        (1927, Verdict.LOST),
        (4031, Verdict.LOST),
        (2003, Verdict.UNAVAILABLE),
        (1040, Verdict.UNAVAILABLE),
        (1290, Verdict.READ_ONLY),
        (1792, Verdict.READ_ONLY),
        (1836, Verdict.READ_ONLY),
        (1045, Verdict.FATAL),
        (1142, Verdict.FATAL),
        (1406, Verdict.FATAL),
        (1062, Verdict.FATAL),
    ],
)
def test_mysql_errors_are_classified_by_number(number: int, expected: Verdict) -> None:
    assert verdict(of_mysql(number)) is expected


@pytest.mark.parametrize(
    ("number", "expected"),
    [
        (sqlite3.SQLITE_BUSY, Verdict.RETRY),
        (sqlite3.SQLITE_BUSY_SNAPSHOT, Verdict.RETRY),
        (sqlite3.SQLITE_LOCKED, Verdict.RETRY),
        (sqlite3.SQLITE_READONLY, Verdict.READ_ONLY),
        (sqlite3.SQLITE_READONLY_DIRECTORY, Verdict.READ_ONLY),
        (sqlite3.SQLITE_IOERR_WRITE, Verdict.UNAVAILABLE),
        (sqlite3.SQLITE_FULL, Verdict.UNAVAILABLE),
        (sqlite3.SQLITE_NOTADB, Verdict.FATAL),
        (sqlite3.SQLITE_CORRUPT, Verdict.FATAL),
        (sqlite3.SQLITE_CONSTRAINT_CHECK, Verdict.FATAL),
    ],
)
def test_sqlite_errors_are_classified_by_their_low_byte(number: int, expected: Verdict) -> None:
    assert verdict(of_sqlite(number)) is expected


def test_a_closed_connection_without_an_error_number_counts_as_lost() -> None:
    import pymysql

    original = pymysql.err.InterfaceError(0, "")
    error = InterfaceError("UPDATE", {}, original, connection_invalidated=True)
    assert verdict(error) is Verdict.LOST
    assert verdict(InterfaceError("UPDATE", {}, original)) is Verdict.FATAL


def test_an_error_without_arguments_has_number_zero() -> None:
    assert error_number(OperationalError("UPDATE", {}, Exception())) == 0


def test_no_number_has_two_meanings() -> None:
    assert Verdict.FATAL not in MYSQL_VERDICTS.values()
    assert Verdict.FATAL not in SQLITE_VERDICTS.values()


@pytest.mark.parametrize("number", [13, 4874])
def test_a_full_disk_is_not_reported_as_a_silent_server(number: int) -> None:
    assert verdict(of_sqlite(number)) is Verdict.UNAVAILABLE
    assert disk_is_full(of_sqlite(number))
    assert not disk_is_full(of_sqlite(10))
