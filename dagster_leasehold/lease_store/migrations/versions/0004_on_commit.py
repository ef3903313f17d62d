"""Delivering to the hook of a stream: failed attempts, and who delivers."""

from __future__ import annotations

from sqlalchemy import BigInteger, Column, Integer

from dagster_leasehold.lease_store.columns import ExactText
from dagster_leasehold.lease_store.migrations import repeatable as make

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    """No hook was called before: no attempt has failed, and nobody delivers."""
    make.add_column("outbox", Column("attempts", Integer, nullable=False, server_default="0"))
    make.add_column("outbox", Column("error", ExactText(300), nullable=False, server_default=""))
    make.create_table(
        "delivery_claim",
        *make.group_key(),
        make.short_text("worker_instance"),
        make.short_text("incarnation"),
        Column("epoch", BigInteger, nullable=False),
    )
