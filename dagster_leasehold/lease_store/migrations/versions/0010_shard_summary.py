"""Bounded history: summaries of deleted rows, and ledger rows that stand for several batches."""

from __future__ import annotations

from sqlalchemy import BigInteger, Boolean, Column, Integer

from dagster_leasehold.lease_store.columns import EventTime, JsonText
from dagster_leasehold.lease_store.migrations import repeatable as make

revision = "0010"
down_revision = "0009"


def upgrade() -> None:
    """Nothing was deleted before this release, and every row stands for itself."""
    make.add_column("batch", Column("last_sequence", BigInteger))
    make.add_column("batch", Column("last_epoch", BigInteger))
    make.add_column("batch", Column("batches", Integer, nullable=False, server_default="1"))
    # Events of earlier releases count as old: those that were delivered are needed no more.
    make.add_column("outbox", Column("recorded_at", EventTime, nullable=False, server_default="0"))
    make.create_table(
        "shard_summary",
        *make.group_key(),
        make.identifier("shard_id"),
        Column("version", BigInteger, nullable=False),
        Column("journal_until", BigInteger, nullable=False),
        Column("entries", JsonText, nullable=False),
        Column("epoch", BigInteger, nullable=False),
        Column("opened", BigInteger),
        Column("opened_epoch", BigInteger),
        make.short_text("opened_run"),
        make.identifier("opened_by", key=False, nullable=True),
        Column("open", Boolean, nullable=False),
        Column("proven_until", BigInteger, nullable=False),
        Column("proven_epoch", BigInteger, nullable=False),
        Column("folded_until", BigInteger, nullable=False),
        Column("skips", JsonText, nullable=False),
        Column("violations", JsonText, nullable=False),
    )
