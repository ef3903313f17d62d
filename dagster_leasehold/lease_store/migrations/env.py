"""Runs the revisions for Alembic, always on a connection that `lease_store.schema` hands over."""

from __future__ import annotations

from alembic import context

from dagster_leasehold.lease_store.schema import VERSION_TABLE
from dagster_leasehold.lease_store.tables import metadata


def run() -> None:
    """Run the revisions that Alembic was asked for."""
    context.configure(
        connection=context.config.attributes["connection"],
        target_metadata=metadata,
        version_table=VERSION_TABLE,
        transactional_ddl=False,
    )
    # The caller's connection has its transaction; Alembic must not end it half way.
    context.run_migrations()


run()
