"""Changes of the schema that can be made again, and the columns that many tables share.

MySQL commits every change of a table by itself: an upgrade that was cut off goes on where it
stopped. What released revisions use of this module never changes: they made tables with it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from alembic import op
from sqlalchemy import Column, inspect

from dagster_leasehold.lease_store.columns import ExactText

OPTIONS: dict[str, Any] = {
    "mysql_engine": "InnoDB",
    "mysql_charset": "utf8mb4",
    "mysql_collate": "utf8mb4_bin",
}
SHARDS = "loghub_client_shard_lease"


def identifier(name: str, *, key: bool = True, nullable: bool = False) -> Column[str]:
    """Return a column for a name of the grammar; in the table's key unless told otherwise."""
    return Column(name, ExactText(64), primary_key=key, nullable=nullable and not key)


def cursor(name: str, *, key: bool = False, nullable: bool = False) -> Column[str]:
    """Return a column for a cursor of a shard."""
    return Column(name, ExactText(512), primary_key=key, nullable=nullable and not key)


def short_text(name: str, *, key: bool = False) -> Column[str]:
    """Return a column for a text of at most 255 bytes."""
    return Column(name, ExactText(255), primary_key=key, nullable=False)


def group_key() -> tuple[Column[str], Column[str]]:
    """Return the first two columns of every key."""
    return identifier("consume_group"), identifier("logstream_sig")


def create_table(name: str, *columns: Column[Any], numbered: bool = False) -> None:
    """Create a table, unless it is there; a numbered one never uses a number again."""
    if not inspect(op.get_bind()).has_table(name):
        op.create_table(name, *columns, sqlite_autoincrement=numbered, **OPTIONS)


def add_column(table: str, column: Column[Any]) -> None:
    """Add a column, unless it is there."""
    if column.name not in {each["name"] for each in inspect(op.get_bind()).get_columns(table)}:
        op.add_column(table, column)


def drop_column(table: str, name: str) -> None:
    """Drop a column, if it is there."""
    if name in {each["name"] for each in inspect(op.get_bind()).get_columns(table)}:
        op.drop_column(table, name)


def create_index(name: str, table: str, columns: Sequence[str], *, unique: bool = False) -> None:
    """Create an index, unless it is there."""
    if name not in _indexes(table):
        op.create_index(name, table, list(columns), unique=unique)


def drop_index(name: str, table: str) -> None:
    """Drop an index, if it is there."""
    if name in _indexes(table):
        op.drop_index(name, table)


def _indexes(table: str) -> set[str | None]:
    return {index["name"] for index in inspect(op.get_bind()).get_indexes(table)}
