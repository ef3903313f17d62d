"""Releases that share a database: which ones may, and the release of each node."""

from __future__ import annotations

from sqlalchemy import Column, String

from dagster_leasehold.lease_store.migrations.repeatable import add_column
from dagster_leasehold.lease_store.schema import OLDEST_COLUMN, VERSION_TABLE

revision = "0016"
down_revision = "0015"


def upgrade() -> None:
    """No node has said its release yet: all that beat now are older than this one."""
    add_column(VERSION_TABLE, Column(OLDEST_COLUMN, String(32)))
    for name, length in (("release_version", 64), ("schema_revision", 32)):
        column = Column(name, String(length), nullable=False, server_default="")
        add_column("loghub_client_worker_instance", column)
