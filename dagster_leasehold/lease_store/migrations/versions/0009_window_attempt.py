"""Attempts to make a window of event time that are under way: vacuum leaves their files alone."""

from __future__ import annotations

from sqlalchemy import Column, Integer

from dagster_leasehold.lease_store.columns import EventTime
from dagster_leasehold.lease_store.migrations.repeatable import create_table, group_key, short_text

revision = "0009"
down_revision = "0008"


def upgrade() -> None:
    """No attempt of this release is under way when it first sees the database."""
    create_table(
        "window_attempt",
        *group_key(),
        Column("slot", Integer, primary_key=True, autoincrement=False),
        short_text("attempt"),
        short_text("run"),
        Column("begun_at", EventTime, nullable=False),
    )
