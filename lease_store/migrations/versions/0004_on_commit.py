"""Delivering to the hook of a stream: failed attempts, and who delivers."""

from __future__ import annotations

from typing import Any

from alembic import op
from sqlalchemy import BigInteger, Column, Integer, inspect

from dagster_leasehold.lease_store.columns import ExactText

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """No hook was called before: no attempt has failed, and nobody delivers."""
    _add(Column("attempts", Integer, nullable=False, server_default="0"))
    _add(Column("error", ExactText(300), nullable=False, server_default=""))
    if inspect(op.get_bind()).has_table("delivery_claim"):
        return
    op.create_table(
        "delivery_claim",
        Column("consume_group", ExactText(64), primary_key=True),
        Column("logstream_sig", ExactText(64), primary_key=True),
        Column("worker_instance", ExactText(255), nullable=False),
        Column("incarnation", ExactText(255), nullable=False),
        Column("epoch", BigInteger, nullable=False),
        mysql_engine="InnoDB",
        mysql_charset="utf8mb4",
        mysql_collate="utf8mb4_bin",
    )


def _add(column: Column[Any]) -> None:
    # MySQL commits every change of a table by itself: an upgrade that was cut off goes on here.
    if column.name not in {each["name"] for each in inspect(op.get_bind()).get_columns("outbox")}:
        op.add_column("outbox", column)
