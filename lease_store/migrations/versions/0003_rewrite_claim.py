"""The right to replace committed output of a shard: one claim per shard."""

from __future__ import annotations

from alembic import op
from sqlalchemy import Column, String, inspect

from dagster_leasehold.lease_store.columns import EventTime, ExactText

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Nobody rewrites anything when this release first sees the database."""
    if inspect(op.get_bind()).has_table("rewrite_claim"):
        return
    op.create_table(
        "rewrite_claim",
        Column("consume_group", ExactText(64), primary_key=True),
        Column("logstream_sig", ExactText(64), primary_key=True),
        Column("shard_id", ExactText(64), primary_key=True),
        Column("run", ExactText(255), nullable=False),
        Column("kind", String(16), nullable=False),
        Column("claimed_at", EventTime, nullable=False),
        mysql_engine="InnoDB",
        mysql_charset="utf8mb4",
        mysql_collate="utf8mb4_bin",
    )
