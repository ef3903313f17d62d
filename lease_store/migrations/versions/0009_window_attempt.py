"""Attempts to make a window of event time that are under way: vacuum leaves their files alone."""

from __future__ import annotations

from alembic import op
from sqlalchemy import Column, Integer, inspect

from dagster_leasehold.lease_store.columns import EventTime, ExactText

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """No attempt of this release is under way when it first sees the database."""
    if inspect(op.get_bind()).has_table("window_attempt"):
        return
    op.create_table(
        "window_attempt",
        Column("consume_group", ExactText(64), primary_key=True),
        Column("logstream_sig", ExactText(64), primary_key=True),
        Column("slot", Integer, primary_key=True, autoincrement=False),
        Column("attempt", ExactText(255), nullable=False),
        Column("run", ExactText(255), nullable=False),
        Column("begun_at", EventTime, nullable=False),
        mysql_engine="InnoDB",
        mysql_charset="utf8mb4",
        mysql_collate="utf8mb4_bin",
    )
