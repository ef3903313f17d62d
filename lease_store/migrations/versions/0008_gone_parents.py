"""Parents that their source has removed for good: an ordered group waits for all others."""

from __future__ import annotations

from alembic import op
from sqlalchemy import Column, inspect

from dagster_leasehold.lease_store.columns import JsonText

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None

TABLE = "loghub_client_shard_lease"


def upgrade() -> None:
    """The next listing says which parents are gone; until then a waiting child goes on waiting."""
    # MySQL commits every change of a table by itself: an upgrade that was cut off goes on here.
    if "gone_parents" not in {each["name"] for each in inspect(op.get_bind()).get_columns(TABLE)}:
        op.add_column(TABLE, Column("gone_parents", JsonText))
