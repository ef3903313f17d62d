"""Bounded history: summaries of deleted rows, and ledger rows that stand for several batches."""

from __future__ import annotations

from typing import Any

from alembic import op
from sqlalchemy import BigInteger, Boolean, Column, Integer, inspect

from dagster_leasehold.lease_store.columns import EventTime, ExactText, JsonText

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Nothing was deleted before this release, and every row stands for itself."""
    _add("batch", Column("last_sequence", BigInteger))
    _add("batch", Column("last_epoch", BigInteger))
    _add("batch", Column("batches", Integer, nullable=False, server_default="1"))
    # Events of earlier releases count as old: those that were delivered are needed no more.
    _add("outbox", Column("recorded_at", EventTime, nullable=False, server_default="0"))
    if inspect(op.get_bind()).has_table("shard_summary"):
        return
    op.create_table(
        "shard_summary",
        Column("consume_group", ExactText(64), primary_key=True),
        Column("logstream_sig", ExactText(64), primary_key=True),
        Column("shard_id", ExactText(64), primary_key=True),
        Column("version", BigInteger, nullable=False),
        Column("journal_until", BigInteger, nullable=False),
        Column("entries", JsonText, nullable=False),
        Column("epoch", BigInteger, nullable=False),
        Column("opened", BigInteger),
        Column("opened_epoch", BigInteger),
        Column("opened_run", ExactText(255), nullable=False),
        Column("opened_by", ExactText(64)),
        Column("open", Boolean, nullable=False),
        Column("proven_until", BigInteger, nullable=False),
        Column("proven_epoch", BigInteger, nullable=False),
        Column("folded_until", BigInteger, nullable=False),
        Column("skips", JsonText, nullable=False),
        Column("violations", JsonText, nullable=False),
        mysql_engine="InnoDB",
        mysql_charset="utf8mb4",
        mysql_collate="utf8mb4_bin",
    )


def _add(table: str, column: Column[Any]) -> None:
    # MySQL commits every change of a table by itself: an upgrade that was cut off goes on here.
    if column.name not in {each["name"] for each in inspect(op.get_bind()).get_columns(table)}:
        op.add_column(table, column)
