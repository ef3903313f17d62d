"""The bootstrap cursor that a shard was last started at: each one takes effect once."""

from __future__ import annotations

from dagster_leasehold.lease_store.migrations.repeatable import SHARDS, add_column, cursor

revision = "0005"
down_revision = "0004"


def upgrade() -> None:
    """No shard was started by its node's settings when this release first sees the database."""
    add_column(SHARDS, cursor("bootstrap", nullable=True))
