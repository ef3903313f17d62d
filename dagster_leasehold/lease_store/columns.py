"""Columns that mean the same on every database: exact text, event times, JSON, names, counts."""

from __future__ import annotations

import json
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
    """Text that is compared byte for byte: no collation, no padding, no case folding.

    MySQL's text collations take `a`, `A`, `á` and `a ` for the same key; bytes are never.
    """

    impl = sa.String
    cache_ok = True

    def __init__(self, length: int) -> None:
        super().__init__(length)
        self.length = length

    @override
    def load_dialect_impl(self, dialect: sa.Dialect) -> TypeEngine[Any]:
        """VARBINARY on MySQL and MariaDB; SQLite's text is exact already."""
        if dialect.name == "mysql":
            return dialect.type_descriptor(mysql.VARBINARY(self.length))
        return dialect.type_descriptor(sa.String(self.length))

    @override
    def process_bind_param(self, value: str | None, dialect: sa.Dialect) -> Any:
        if value is None or dialect.name == "sqlite":
            return None if value is None else str(value)
        return value.encode()

    @override
    def result_processor(self, dialect: sa.Dialect, coltype: object) -> Any:
        # SQLAlchemy's way by `process_result_value` takes three calls for each value of a row.
        return None if dialect.name == "sqlite" else _decoded


def _decoded(value: Any) -> Any:
    return value.decode() if isinstance(value, bytes) else value


def _loaded(value: str | None) -> Any:
    if value is None or value == "[]":
        return None if value is None else []  # what most shards have for parents
    return json.loads(value)


class EventTime(sa.TypeDecorator[datetime]):
    """A moment as microseconds since 1970 in UTC: no session time zone can bend it."""

    impl = sa.BigInteger
    cache_ok = True

    @override
    def process_bind_param(self, value: datetime | None, dialect: sa.Dialect) -> int | None:
        """The moment as a number; a time without a zone would be ambiguous and is refused."""
        if value is None:
            return None
        if value.tzinfo is None:
            raise ValueError("A time without a time zone cannot be stored.")
        return (value - _EPOCH) // _MICROSECOND

    @override
    def process_result_value(self, value: int | None, dialect: sa.Dialect) -> datetime | None:
        return None if value is None else _EPOCH + value * _MICROSECOND


class JsonText(sa.TypeDecorator[Any]):
    """A small value as JSON text."""

    impl = sa.Text
    cache_ok = True

    @override
    def load_dialect_impl(self, dialect: sa.Dialect) -> TypeEngine[Any]:
        """MySQL's TEXT ends at 64 KiB, which a batch of many files exceeds."""
        if dialect.name == "mysql":
            return dialect.type_descriptor(mysql.MEDIUMTEXT())
        return dialect.type_descriptor(sa.Text())

    @override
    def process_bind_param(self, value: Any | None, dialect: sa.Dialect) -> str | None:
        return None if value is None else json.dumps(value, separators=(",", ":"))

    @override
    def result_processor(self, dialect: sa.Dialect, coltype: object) -> Any:
        return _loaded


AutoNumber = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
ServerTime = sa.DateTime().with_variant(mysql.DATETIME(fsp=6), "mysql")


class server_time(FunctionElement[datetime]):  # noqa: N801 - reads like the SQL function it is
    """The database's own UTC clock, for columns that people read; nothing is decided by it."""

    type = ServerTime
    inherit_cache = True


@compiles(server_time, "sqlite")
def _server_time_sqlite(*_: object, **__: object) -> str:
    return "strftime('%Y-%m-%d %H:%M:%f', 'now')"


@compiles(server_time, "mysql")
def _server_time_mysql(*_: object, **__: object) -> str:
    return "UTC_TIMESTAMP(6)"


def identifier_column(name: str, *, key: bool = True, nullable: bool = False) -> sa.Column[str]:
    """Return a column for a name of the grammar; in the table's key unless told otherwise."""
    column = ExactText(IDENTIFIER_LENGTH_MAX)
    return sa.Column(name, column, primary_key=key, nullable=nullable and not key)


def group_key() -> tuple[sa.Column[str], sa.Column[str]]:
    """Return the first two columns of every key."""
    return identifier_column("consume_group"), identifier_column("logstream_sig")


def cursor_column(name: str, *, nullable: bool = False) -> sa.Column[str]:
    """Return a column for a cursor of a shard."""
    return sa.Column(name, ExactText(CURSOR_LENGTH_MAX), nullable=nullable)


def name_column(name: str, *, nullable: bool = False) -> sa.Column[str]:
    """Return a column for a text of at most 255 bytes."""
    return sa.Column(name, ExactText(NAME_LENGTH_MAX), nullable=nullable)


def count_column(name: str) -> sa.Column[int]:
    """Return a column for a number that begins at 0."""
    return sa.Column(name, sa.BigInteger, nullable=False, server_default="0")


def times() -> tuple[sa.Column[Any], sa.Column[Any]]:
    """Return the columns that say when a row was made and changed; for people only."""
    return (
        sa.Column("create_time", ServerTime, nullable=False, default=server_time()),
        sa.Column(
            "update_time", ServerTime, nullable=False, default=server_time(), onupdate=server_time()
        ),
    )


def grammar_checks(table: str, *columns: str) -> list[sa.CheckConstraint]:
    """CHECK constraints for the grammar of `lease_store.identifiers`, in each dialect's words."""
    checks: list[sa.CheckConstraint] = []
    for column in columns:
        name = f"{table}_{column}_grammar"
        glob = f"{column} GLOB '[A-Za-z0-9]*' AND {column} NOT GLOB '*[^A-Za-z0-9._-]*'"
        # MySQL refuses regular expressions on binary strings, hence the conversion.
        text = f"CONVERT({column} USING latin1)"
        regexp = f"{text} REGEXP '^[A-Za-z0-9]' AND NOT {text} REGEXP '[^A-Za-z0-9._-]'"
        checks.append(sa.CheckConstraint(glob, name=name).ddl_if(dialect="sqlite"))
        checks.append(sa.CheckConstraint(regexp, name=name).ddl_if(dialect="mysql"))
    return checks
