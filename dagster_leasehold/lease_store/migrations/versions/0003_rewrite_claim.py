"""The right to replace committed output of a shard: one claim per shard."""

from __future__ import annotations

from sqlalchemy import Column, String

from dagster_leasehold.lease_store.columns import EventTime
from dagster_leasehold.lease_store.migrations import repeatable as make

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    """Nobody rewrites anything when this release first sees the database."""
    make.create_table(
        "rewrite_claim",
        *make.group_key(),
        make.identifier("shard_id"),
        make.short_text("run"),
        Column("kind", String(16), nullable=False),
        Column("claimed_at", EventTime, nullable=False),
    )
