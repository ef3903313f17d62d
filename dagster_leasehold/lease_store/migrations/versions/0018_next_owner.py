"""A node that leaves finds the shards that it waits for by an index."""

from __future__ import annotations

from dagster_leasehold.lease_store.migrations import repeatable as make

revision = "0018"
down_revision = "0017"


def upgrade() -> None:
    """Add the index of next owners."""
    columns = ("consume_group", "logstream_sig", "lease_owner")
    make.create_index("shard_lease_by_next_owner", make.SHARDS, columns)
