"""The first schema: groups, nodes, shards, journal, ledger, outbox and gaps.

This is a copy of the tables as they were then; later changes of `lease_store.tables` come with
revisions of their own and leave this one alone.
"""

from __future__ import annotations

import logging
from typing import Any

import sqlalchemy as sa
from alembic import op
from sqlalchemy.exc import DBAPIError

from dagster_leasehold.lease_store.columns import (
    AutoNumber,
    EventTime,
    JsonText,
    ServerTime,
    server_time,
)
from dagster_leasehold.lease_store.database_errors import error_number
from dagster_leasehold.lease_store.errors import StoreError
from dagster_leasehold.lease_store.migrations import repeatable as make

revision = "0001"
down_revision = None

_NO_TRIGGERS_ALLOWED = 1419
_NOT_GRANTED = 1142
_log = logging.getLogger(__name__)

metadata = sa.MetaData()


def _times() -> tuple[sa.Column[Any], sa.Column[Any]]:
    return (
        sa.Column("create_time", ServerTime, nullable=False, default=server_time()),
        sa.Column(
            "update_time", ServerTime, nullable=False, default=server_time(), onupdate=server_time()
        ),
    )


def _grammar_checks(table: str, *columns: str) -> list[sa.CheckConstraint]:
    checks: list[sa.CheckConstraint] = []
    for each in columns:
        name = f"{table}_{each}_grammar"
        glob = f"{each} GLOB '[A-Za-z0-9]*' AND {each} NOT GLOB '*[^A-Za-z0-9._-]*'"
        # MySQL refuses regular expressions on binary strings, hence the conversion.
        text = f"CONVERT({each} USING latin1)"
        regexp = f"{text} REGEXP '^[A-Za-z0-9]' AND NOT {text} REGEXP '[^A-Za-z0-9._-]'"
        checks.append(sa.CheckConstraint(glob, name=name).ddl_if(dialect="sqlite"))
        checks.append(sa.CheckConstraint(regexp, name=name).ddl_if(dialect="mysql"))
    return checks


sa.Table(
    "consumer_group",
    metadata,
    *make.group_key(),
    sa.Column("ordered", sa.Boolean, nullable=False),
    sa.Column("timeout_s", sa.Double, nullable=False),
    sa.Column("handoff_limit_s", sa.Double, nullable=False),
    sa.Column("assignment", sa.String(16), nullable=False),
    sa.Column("initial_position", sa.String(64), nullable=False),
    sa.Column("node_cap", sa.Integer),
    sa.Column("weighted", sa.Boolean, nullable=False),
    sa.Column("paused", sa.Boolean, nullable=False),
    sa.Column("generation", sa.BigInteger, nullable=False),
    *_times(),
    *_grammar_checks("consumer_group", "consume_group", "logstream_sig"),
    **make.OPTIONS,
)

sa.Table(
    "loghub_client_worker_instance",
    metadata,
    *make.group_key(),
    make.identifier("worker_instance"),
    sa.Column("lease_id", sa.BigInteger, nullable=False),
    make.short_text("incarnation"),
    make.short_text("address"),
    sa.Column("source_count", sa.Integer),
    sa.Column("node_id", sa.Integer),
    sa.Column("pinned", JsonText),
    sa.Column("accepts_runs", sa.Boolean, nullable=False),
    *_times(),
    *_grammar_checks("worker_instance", "worker_instance"),
    **make.OPTIONS,
)

sa.Table(
    "loghub_client_shard_lease",
    metadata,
    *make.group_key(),
    make.identifier("shard_id"),
    sa.Column("lease_id", sa.BigInteger, nullable=False),
    make.identifier("lease_owner", key=False, nullable=True),
    make.identifier("consumer_owner", key=False, nullable=True),
    make.cursor("check_point", nullable=True),
    sa.Column("state", sa.String(16), nullable=False),
    sa.Column("consumer_epoch", sa.BigInteger, nullable=False),
    make.short_text("consumer_run"),
    sa.Column("handoff_eta_s", sa.Double),
    sa.Column("parents", JsonText, nullable=False),
    make.short_text("hash_begin"),
    make.short_text("hash_end"),
    sa.Column("read_only", sa.Boolean, nullable=False),
    sa.Column("subscribable", sa.Boolean, nullable=False),
    sa.Column("watermark", EventTime),
    *_times(),
    sa.Index("shard_lease_by_owner", "consume_group", "logstream_sig", "consumer_owner"),
    *_grammar_checks("shard_lease", "shard_id"),
    **make.OPTIONS,
)

sa.Table(
    "lease_journal",
    metadata,
    sa.Column("sequence", AutoNumber, primary_key=True, autoincrement=True),
    make.identifier("consume_group", key=False),
    make.identifier("logstream_sig", key=False),
    sa.Column("kind", sa.String(16), nullable=False),
    sa.Column("reason", sa.Text, nullable=False),
    make.short_text("observer"),
    sa.Column("recorded_at", EventTime, nullable=False),
    make.identifier("shard_id", key=False, nullable=True),
    sa.Column("edge", sa.Integer),
    sa.Column("from_state", sa.String(16)),
    sa.Column("to_state", sa.String(16)),
    make.identifier("from_owner", key=False, nullable=True),
    make.identifier("to_owner", key=False, nullable=True),
    sa.Column("epoch", sa.BigInteger, nullable=False),
    make.short_text("run"),
    make.cursor("check_point", nullable=True),
    # The transaction that wrote the entry: how a lost reply to its COMMIT is settled.
    make.short_text("transaction_id"),
    sa.Index("lease_journal_by_group", "consume_group", "logstream_sig", "sequence"),
    sa.Index("lease_journal_by_shard", "consume_group", "logstream_sig", "shard_id", "sequence"),
    sa.Index("lease_journal_by_transaction", "transaction_id"),
    sqlite_autoincrement=True,
    **make.OPTIONS,
)

sa.Table(
    "batch",
    metadata,
    *make.group_key(),
    make.identifier("shard_id"),
    sa.Column("sequence", sa.BigInteger, primary_key=True, autoincrement=False),
    make.cursor("start_cursor"),
    make.cursor("end_cursor"),
    sa.Column("state", sa.String(16), nullable=False),
    sa.Column("epoch", sa.BigInteger, nullable=False),
    make.short_text("run"),
    make.identifier("holder", key=False),
    sa.Column("attempt", sa.Text, nullable=False),
    sa.Column("generation", sa.Integer, nullable=False),
    sa.Column("files", JsonText, nullable=False),
    sa.Column("records", sa.BigInteger),
    sa.Column("bytes", sa.BigInteger),
    sa.Column("written", sa.BigInteger, nullable=False),
    sa.Column("quarantined", sa.BigInteger, nullable=False),
    sa.Column("first_event_time", EventTime),
    sa.Column("last_event_time", EventTime),
    sa.Column("finished", sa.Boolean, nullable=False),
    sa.Column("committed_at", EventTime),
    **make.OPTIONS,
)

sa.Table(
    "outbox",
    metadata,
    sa.Column("sequence", AutoNumber, primary_key=True, autoincrement=True),
    make.identifier("consume_group", key=False),
    make.identifier("logstream_sig", key=False),
    make.identifier("shard_id", key=False),
    sa.Column("kind", sa.String(32), nullable=False),
    make.short_text("batch_id"),
    sa.Column("payload", JsonText, nullable=False),
    make.short_text("run"),
    sa.Column("delivered", sa.Boolean, nullable=False),
    sa.Index("outbox_pending", "consume_group", "logstream_sig", "delivered", "sequence"),
    sqlite_autoincrement=True,
    **make.OPTIONS,
)

sa.Table(
    "gap",
    metadata,
    *make.group_key(),
    make.identifier("shard_id"),
    make.cursor("start_cursor", key=True),
    make.cursor("end_cursor", key=True),
    sa.Column("reason", sa.Text, nullable=False),
    sa.Column("recorded_at", EventTime, nullable=False),
    sa.Column("acknowledged", sa.Boolean, nullable=False),
    **make.OPTIONS,
)


# The nodes' table has none: a trigger would blank the LAST_INSERT_ID() that a beat reports its
# counter with, and that counter only serves liveness.
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
    """Create the tables, and a trigger that keeps fencing numbers from going down even by hand.

    MySQL commits every change of a table by itself: an upgrade that was cut off, or refused for
    want of a privilege, goes on where it stopped.

    Raises:
        StoreError: the account may not create triggers.
    """
    connection = op.get_bind()
    metadata.create_all(connection, checkfirst=True)
    for each in metadata.sorted_tables:
        for index in sorted(each.indexes, key=lambda index: str(index.name)):
            make.create_index(str(index.name), each.name, index.columns.keys())
    if not _guarded(connection):
        _guard(connection)


def _guarded(connection: sa.Connection) -> bool:
    """Tell whether the trigger is there."""
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
            # With a binary log, MySQL wants SUPER for triggers; the code's own conditions hold
            # without them, they only guard against statements typed by hand.
            _log.warning("The server allows no triggers: fencing numbers can be edited by hand.")
            return
        if error_number(error) != _NOT_GRANTED:
            raise
        raise StoreError(
            f"The lease store's account may not create triggers in {connection.engine.url.database}"
            ": grant it TRIGGER there as well, and run `leasehold db upgrade` again, which goes on "
            "where it stopped."
        ) from error
