"""Runs the revisions for Alembic, on the connection of `lease_store.schema`."""

from __future__ import annotations

from alembic import context

from dagster_leasehold.lease_store.schema import VERSION_TABLE
from dagster_leasehold.lease_store.tables import metadata


def run() -> None:
    """Run the revisions that the caller of Alembic requested."""
    context.configure(
        connection=context.config.attributes["connection"],
        target_metadata=metadata,
        version_table=VERSION_TABLE,
        transactional_ddl=False,
    )
    # The caller has begun a transaction; Alembic must not end it.
    context.run_migrations()


run()
