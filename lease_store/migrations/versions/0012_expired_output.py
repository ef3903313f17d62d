"""A shard's summary says which committed output has expired, and where what is left begins."""

from __future__ import annotations

from alembic import op
from sqlalchemy import Column, inspect

from dagster_leasehold.lease_store.columns import JsonText

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """MySQL commits every change of a table by itself: an upgrade that was cut off goes on here."""
    columns = {column["name"] for column in inspect(op.get_bind()).get_columns("shard_summary")}
    if "expired" not in columns:
        op.add_column("shard_summary", Column("expired", JsonText))
