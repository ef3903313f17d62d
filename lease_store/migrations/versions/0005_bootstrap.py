"""The bootstrap cursor that a shard was last started at: each one takes effect once."""

from __future__ import annotations

from alembic import op
from sqlalchemy import Column, inspect

from dagster_leasehold.lease_store.columns import ExactText

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None

TABLE = "loghub_client_shard_lease"


def upgrade() -> None:
    """No shard was started by its node's settings when this release first sees the database."""
    # MySQL commits every change of a table by itself: an upgrade that was cut off goes on here.
    if "bootstrap" not in {each["name"] for each in inspect(op.get_bind()).get_columns(TABLE)}:
        op.add_column(TABLE, Column("bootstrap", ExactText(512)))
