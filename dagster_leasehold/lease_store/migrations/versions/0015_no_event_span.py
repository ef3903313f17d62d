"""Readers go through the table: the ledger is no longer looked up by event time."""

from __future__ import annotations

from dagster_leasehold.lease_store.migrations.repeatable import drop_column, drop_index

revision = "0015"
down_revision = "0014"


def upgrade() -> None:
    """Drop the column and its index where an earlier state of this version made them."""
    for index in ("batch_by_event_span", "batch_by_event_time"):
        drop_index(index, "batch")
    drop_column("batch", "event_span")
