"""A shard counts the tries at its checkpoint, and keeps what they tell of its records."""

from __future__ import annotations

from sqlalchemy import BigInteger, Column

from dagster_leasehold.lease_store.columns import JsonText
from dagster_leasehold.lease_store.migrations import repeatable as make

revision = "0023"
down_revision = "0022"


def upgrade() -> None:
    """No try has failed yet."""
    make.add_column(make.SHARDS, Column("tries", BigInteger, nullable=False, server_default="0"))
    make.add_column(make.SHARDS, Column("suspicion", JsonText))
