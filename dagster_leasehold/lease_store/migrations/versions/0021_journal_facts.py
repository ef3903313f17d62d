"""The journal keeps what code reads in a column of its own; reasons are for people."""

from __future__ import annotations

from sqlalchemy import Column

from dagster_leasehold.lease_store.columns import JsonText
from dagster_leasehold.lease_store.migrations.repeatable import add_column

revision = "0021"
down_revision = "0020"


def upgrade() -> None:
    """Entries of releases before have no facts."""
    add_column("lease_journal", Column("facts", JsonText))
