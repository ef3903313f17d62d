"""The output of windows of event time: one row per downstream asset and window."""

from __future__ import annotations

from alembic import op
from sqlalchemy import BigInteger, Boolean, Column, Integer, inspect

from dagster_leasehold.lease_store.columns import EventTime, ExactText, JsonText

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """No window was made before this release."""
    if inspect(op.get_bind()).has_table("event_window"):
        return
    op.create_table(
        "event_window",
        Column("consume_group", ExactText(64), primary_key=True),
        Column("logstream_sig", ExactText(64), primary_key=True),
        Column("asset", ExactText(255), primary_key=True),
        Column("window_start", EventTime, primary_key=True, autoincrement=False),
        Column("window_end", EventTime, nullable=False),
        Column("version", BigInteger, nullable=False),
        Column("generation", Integer, nullable=False),
        Column("run", ExactText(255), nullable=False),
        Column("files", JsonText, nullable=False),
        Column("records", BigInteger, nullable=False),
        Column("covered", JsonText, nullable=False),
        Column("late", BigInteger, nullable=False),
        Column("rerun", Boolean, nullable=False),
        Column("made_at", EventTime),
        mysql_engine="InnoDB",
        mysql_charset="utf8mb4",
        mysql_collate="utf8mb4_bin",
    )
