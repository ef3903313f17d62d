"""The right to replace committed output of a shard: one claim per shard."""

from __future__ import annotations

from sqlalchemy import Column, String

from dagster_leasehold.lease_store.columns import EventTime
from dagster_leasehold.lease_store.migrations.repeatable import (
    create_table,
    group_key,
    identifier,
    short_text,
)

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    """Nobody rewrites anything when this release first sees the database."""
    create_table(
        "rewrite_claim",
        *group_key(),
        identifier("shard_id"),
        short_text("run"),
        Column("kind", String(16), nullable=False),
        Column("claimed_at", EventTime, nullable=False),
    )
