"""The index of event times names the whole place of a row, so that each page begins at its end."""

from __future__ import annotations

from dagster_leasehold.lease_store.migrations.repeatable import create_index, drop_index

revision = "0011"
down_revision = "0010"

_COLUMNS = ("consume_group", "logstream_sig", "event_span", "shard_id", "sequence")


def upgrade() -> None:
    """Create the new index before the former one goes: at every moment there is one."""
    create_index("batch_by_event_time", "batch", _COLUMNS)
    drop_index("batch_by_event_span", "batch")
