"""Parents that their source has removed for good: an ordered group waits for all others."""

from __future__ import annotations

from sqlalchemy import Column

from dagster_leasehold.lease_store.columns import JsonText
from dagster_leasehold.lease_store.migrations.repeatable import SHARDS, add_column

revision = "0008"
down_revision = "0007"


def upgrade() -> None:
    """The next listing says which parents are gone; until then a waiting child goes on waiting."""
    add_column(SHARDS, Column("gone_parents", JsonText))
