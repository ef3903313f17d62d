"""The schema of release 0.2.0: all tables of `lease_store.tables`, and a trigger.

The next revision must replace the import of `metadata` by a copy of the present tables.
"""

from __future__ import annotations

import logging

import sqlalchemy as sa
from alembic import op
from sqlalchemy.exc import DBAPIError

from dagster_leasehold.lease_store.database_errors import error_number
from dagster_leasehold.lease_store.errors import StoreError
from dagster_leasehold.lease_store.schema import OLDEST_COLUMN, VERSION_TABLE
from dagster_leasehold.lease_store.tables import metadata

revision = "0100"
down_revision = None

_NO_TRIGGERS_ALLOWED = 1419
_NOT_GRANTED = 1142
_ICEBERG_TYPE = sa.Column("iceberg_type", sa.String(5))
_log = logging.getLogger(__name__)

# The nodes' table has no trigger, because it would clear LAST_INSERT_ID(), from which a heartbeat
# reads its counter; that counter only serves liveness.
_TRIGGER = "shard_lease_only_upwards"
_ONLY_UPWARDS = {
    "sqlite": (
        "CREATE TRIGGER shard_lease_only_upwards BEFORE UPDATE ON loghub_client_shard_lease "
        "WHEN NEW.consumer_epoch < OLD.consumer_epoch OR NEW.lease_id < OLD.lease_id "
        "BEGIN SELECT RAISE(ABORT, 'consumer_epoch and lease_id never go down'); END"
    ),
    "mysql": (
        "CREATE TRIGGER shard_lease_only_upwards BEFORE UPDATE ON loghub_client_shard_lease "
        "FOR EACH ROW BEGIN IF NEW.consumer_epoch < OLD.consumer_epoch "
        "OR NEW.lease_id < OLD.lease_id THEN SIGNAL SQLSTATE '45000' "
        "SET MESSAGE_TEXT = 'consumer_epoch and lease_id never go down'; END IF; END"
    ),
}


def upgrade() -> None:
    """Create the tables, and a trigger that refuses to decrease fencing numbers, even by hand.

    MySQL commits every statement that changes a table. So an upgrade that was interrupted, or that
    lacked a privilege, continues where it stopped.

    Raises:
        StoreError: the account lacks the privilege to create triggers.
    """
    connection = op.get_bind()
    if OLDEST_COLUMN not in _columns(connection, VERSION_TABLE):
        op.add_column(VERSION_TABLE, sa.Column(OLDEST_COLUMN, sa.String(32)))
    metadata.create_all(connection, checkfirst=True)
    # If another program created this table, it can lack the column: old versions of PyIceberg omit
    # it.
    if _ICEBERG_TYPE.name not in _columns(connection, "iceberg_tables"):
        op.add_column("iceberg_tables", _ICEBERG_TYPE)
    for table in metadata.sorted_tables:
        indexes = {each["name"] for each in sa.inspect(connection).get_indexes(table.name)}
        for index in sorted(table.indexes, key=lambda index: str(index.name)):
            if index.name not in indexes:
                index.create(connection)
    if not _guarded(connection):
        _guard(connection)


def _columns(connection: sa.Connection, table: str) -> set[str]:
    return {each["name"] for each in sa.inspect(connection).get_columns(table)}


def _guarded(connection: sa.Connection) -> bool:
    if connection.dialect.name == "sqlite":
        triggers = sa.table("sqlite_master", sa.column("name"), sa.column("type"))
        mine = sa.select(triggers.c.name).where(triggers.c.type == "trigger")
        return _TRIGGER in connection.execute(mine).scalars()
    triggers = sa.table(
        "TRIGGERS",
        sa.column("TRIGGER_NAME"),
        sa.column("TRIGGER_SCHEMA"),
        schema="information_schema",
    )
    mine = sa.select(triggers.c.TRIGGER_NAME).where(sa.func.database() == triggers.c.TRIGGER_SCHEMA)
    return _TRIGGER in connection.execute(mine).scalars()


def _guard(connection: sa.Connection) -> None:
    try:
        connection.exec_driver_sql(_ONLY_UPWARDS[connection.dialect.name])
    except DBAPIError as error:
        if error_number(error) == _NO_TRIGGERS_ALLOWED:
            # With a binary log, MySQL requires SUPER for triggers. They only guard against
            # statements by hand; the code's own conditions hold without them.
            _log.warning("The server allows no triggers: fencing numbers can be edited by hand.")
            return
        if error_number(error) != _NOT_GRANTED:
            raise
        raise StoreError(
            f"The lease store's account cannot create triggers in {connection.engine.url.database}"
            ": grant it TRIGGER there, and run `leasehold db upgrade` again, which continues where "
            "it stopped."
        ) from error
