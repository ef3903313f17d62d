"""A shard's summary says which committed output has expired, and where what is left begins."""

from __future__ import annotations

from sqlalchemy import Column

from dagster_leasehold.lease_store.columns import JsonText
from dagster_leasehold.lease_store.migrations.repeatable import add_column

revision = "0012"
down_revision = "0011"


def upgrade() -> None:
    """No output has expired before this release."""
    add_column("shard_summary", Column("expired", JsonText))
