"""A group knows which log its cursors belong to."""

from __future__ import annotations

from dagster_leasehold.lease_store.migrations import repeatable as make

revision = "0022"
down_revision = "0021"


def upgrade() -> None:
    """Add the table; its rows are made by runs, of the logs that they find."""
    make.create_table("log_identity", *make.group_key(), make.short_text("identity"))
