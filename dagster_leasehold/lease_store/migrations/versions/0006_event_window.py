"""The output of windows of event time: one row per downstream asset and window."""

from __future__ import annotations

from sqlalchemy import BigInteger, Boolean, Column, Integer

from dagster_leasehold.lease_store.columns import EventTime, JsonText
from dagster_leasehold.lease_store.migrations.repeatable import create_table, group_key, short_text

revision = "0006"
down_revision = "0005"


def upgrade() -> None:
    """No window was made before this release."""
    create_table(
        "event_window",
        *group_key(),
        short_text("asset", key=True),
        Column("window_start", EventTime, primary_key=True, autoincrement=False),
        Column("window_end", EventTime, nullable=False),
        Column("version", BigInteger, nullable=False),
        Column("generation", Integer, nullable=False),
        short_text("run"),
        Column("files", JsonText, nullable=False),
        Column("records", BigInteger, nullable=False),
        Column("covered", JsonText, nullable=False),
        Column("late", BigInteger, nullable=False),
        Column("rerun", Boolean, nullable=False),
        Column("made_at", EventTime),
    )
