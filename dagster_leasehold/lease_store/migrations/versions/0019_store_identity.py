"""A store has an identity, by which it owns the folders of its output."""

from __future__ import annotations

from sqlalchemy import Column, SmallInteger, String

from dagster_leasehold.lease_store.migrations.repeatable import create_table

revision = "0019"
down_revision = "0018"


def upgrade() -> None:
    """Add the table; its row is made when somebody first asks for it."""
    create_table(
        "store_identity",
        Column("number", SmallInteger, primary_key=True, autoincrement=False),
        Column("identity", String(36), nullable=False),
    )
