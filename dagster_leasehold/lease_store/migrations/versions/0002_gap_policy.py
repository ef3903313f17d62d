"""The fate of records that retention removed before they were read: a policy per group."""

from __future__ import annotations

from sqlalchemy import Boolean, Column, String

from dagster_leasehold.lease_store.migrations.repeatable import add_column

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    """Existing groups hold; gaps that were recorded before had all been skipped."""
    add_column(
        "consumer_group", Column("gap_policy", String(8), nullable=False, server_default="hold")
    )
    add_column("gap", Column("skipped", Boolean, nullable=False, server_default="1"))
