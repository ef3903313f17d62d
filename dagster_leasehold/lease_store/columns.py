"""Column types and columns with the same meaning on every database."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import mysql
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.functions import FunctionElement
from sqlalchemy.types import TypeEngine
from typing_extensions import override

from dagster_leasehold.lease_store.identifiers import CURSOR_LENGTH_MAX, IDENTIFIER_LENGTH_MAX

NAME_LENGTH_MAX = 255
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


class ExactText(sa.TypeDecorator[str]):
    """Text in VARBINARY, which MySQL compares byte by byte.

    Its text collations treat `a`, `A`, `á` and `a ` as the same key.
    """

    impl = mysql.VARBINARY
    cache_ok = True

    @override
    def process_bind_param(self, value: str | None, dialect: sa.Dialect) -> bytes | None:
        return None if value is None else value.encode()

    @override
    def result_processor(self, dialect: sa.Dialect, coltype: object) -> Any:
        # With `process_result_value` SQLAlchemy makes three calls for each value of a row.
        return _decoded


def _decoded(value: Any) -> Any:
    return value.decode() if isinstance(value, bytes) else value


def exact_text(length: int) -> TypeEngine[str]:
    """Return the type of a text that is compared byte by byte, like SQLite's own text."""
    return sa.String(length).with_variant(ExactText(length), "mysql")


class EventTime(sa.TypeDecorator[datetime]):
    """A time as microseconds since 1970 in UTC, regardless of the session's time zone."""

    impl = sa.BigInteger
    cache_ok = True

    @override
    def process_bind_param(self, value: datetime | None, dialect: sa.Dialect) -> int | None:
        if value is None:
            return None
        if value.tzinfo is None:
            raise ValueError("A time without a time zone cannot be stored.")
        return (value - _EPOCH) // _MICROSECOND

    @override
    def process_result_value(self, value: int | None, dialect: sa.Dialect) -> datetime | None:
        return None if value is None else _EPOCH + value * _MICROSECOND


JsonText = sa.Text().with_variant(mysql.MEDIUMTEXT(), "mysql")
"""JSON, decoded by `sql_store.mapping`. Many files exceed the 64 KiB of MySQL's TEXT."""
AutoNumber = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
ServerTime = sa.DateTime().with_variant(mysql.DATETIME(fsp=6), "mysql")


class server_time(FunctionElement[datetime]):  # noqa: N801 - reads like the SQL function it is
    """The database's own UTC clock, for columns that only people read."""

    type = ServerTime
    inherit_cache = True


@compiles(server_time, "sqlite")
def _server_time_sqlite(*_: object, **__: object) -> str:
    return "strftime('%Y-%m-%d %H:%M:%f', 'now')"


@compiles(server_time, "mysql")
def _server_time_mysql(*_: object, **__: object) -> str:
    return "UTC_TIMESTAMP(6)"


def identifier_column(name: str, *, key: bool = True, nullable: bool = False) -> sa.Column[str]:
    """Return a column for an identifier, by default in the table's key."""
    type_ = exact_text(IDENTIFIER_LENGTH_MAX)
    return sa.Column(name, type_, primary_key=key, nullable=nullable and not key)


def group_key() -> tuple[sa.Column[str], sa.Column[str]]:
    """Return the first two columns of every key."""
    return identifier_column("consume_group"), identifier_column("logstream_sig")


def cursor_column(name: str, *, nullable: bool = False) -> sa.Column[str]:
    """Return a column for a cursor of a shard."""
    return sa.Column(name, exact_text(CURSOR_LENGTH_MAX), nullable=nullable)


def name_column(name: str, *, nullable: bool = False) -> sa.Column[str]:
    """Return a column for a text of at most 255 bytes."""
    return sa.Column(name, exact_text(NAME_LENGTH_MAX), nullable=nullable)


def count_column(name: str) -> sa.Column[int]:
    """Return a column for a number that begins at 0."""
    return sa.Column(name, sa.BigInteger, nullable=False, server_default="0")


def times() -> tuple[sa.Column[Any], sa.Column[Any]]:
    """Return the columns for the times of a row's creation and last change, for people only."""
    return (
        sa.Column("create_time", ServerTime, nullable=False, default=server_time()),
        sa.Column(
            "update_time", ServerTime, nullable=False, default=server_time(), onupdate=server_time()
        ),
    )


def grammar_checks(table: str, *columns: str) -> list[sa.CheckConstraint]:
    """Return CHECK constraints for the grammar of `lease_store.identifiers`."""
    checks: list[sa.CheckConstraint] = []
    for column in columns:
        name = f"{table}_{column}_grammar"
        glob = f"{column} GLOB '[A-Za-z0-9]*' AND {column} NOT GLOB '*[^A-Za-z0-9._-]*'"
        # MySQL refuses regular expressions on binary strings, so the text is converted.
        text = f"CONVERT({column} USING latin1)"
        regexp = f"{text} REGEXP '^[A-Za-z0-9]' AND NOT {text} REGEXP '[^A-Za-z0-9._-]'"
        checks.append(sa.CheckConstraint(glob, name=name).ddl_if(dialect="sqlite"))
        checks.append(sa.CheckConstraint(regexp, name=name).ddl_if(dialect="mysql"))
    return checks
