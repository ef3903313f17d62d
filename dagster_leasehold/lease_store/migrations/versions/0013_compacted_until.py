"""A shard remembers how far its committed output was compacted."""

from __future__ import annotations

from sqlalchemy import BigInteger, Column

from dagster_leasehold.lease_store.migrations.repeatable import add_column

revision = "0013"
down_revision = "0012"


def upgrade() -> None:
    """Nothing counts as compacted: the next compaction looks at all output once."""
    for name in ("compacted_until", "looked_until"):
        add_column("rewrite_claim", Column(name, BigInteger, nullable=False, server_default="0"))
