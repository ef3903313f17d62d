"""The first schema: groups, nodes, shards, journal, ledger, outbox and gaps.

This is a copy of the tables as they were then; later changes of `lease_store.tables` come with
revisions of their own and leave this one alone.
"""

from __future__ import annotations

import logging
from typing import Any

from alembic import op
from sqlalchemy import (
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    Connection,
    Double,
    Index,
    Integer,
    MetaData,
    String,
    Table,
    Text,
    column,
    func,
    select,
    table,
)
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

metadata = MetaData()


def _times() -> tuple[Column[Any], Column[Any]]:
    return (
        Column("create_time", ServerTime, nullable=False, default=server_time()),
        Column(
            "update_time", ServerTime, nullable=False, default=server_time(), onupdate=server_time()
        ),
    )


def _grammar_checks(table: str, *columns: str) -> list[CheckConstraint]:
    checks: list[CheckConstraint] = []
    for each in columns:
        name = f"{table}_{each}_grammar"
        glob = f"{each} GLOB '[A-Za-z0-9]*' AND {each} NOT GLOB '*[^A-Za-z0-9._-]*'"
        # MySQL refuses regular expressions on binary strings, hence the conversion.
        text = f"CONVERT({each} USING latin1)"
        regexp = f"{text} REGEXP '^[A-Za-z0-9]' AND NOT {text} REGEXP '[^A-Za-z0-9._-]'"
        checks.append(CheckConstraint(glob, name=name).ddl_if(dialect="sqlite"))
        checks.append(CheckConstraint(regexp, name=name).ddl_if(dialect="mysql"))
    return checks


Table(
    "consumer_group",
    metadata,
    *make.group_key(),
    Column("ordered", Boolean, nullable=False),
    Column("timeout_s", Double, nullable=False),
    Column("handoff_limit_s", Double, nullable=False),
    Column("assignment", String(16), nullable=False),
    Column("initial_position", String(64), nullable=False),
    Column("node_cap", Integer),
    Column("weighted", Boolean, nullable=False),
    Column("paused", Boolean, nullable=False),
    Column("generation", BigInteger, nullable=False),
    *_times(),
    *_grammar_checks("consumer_group", "consume_group", "logstream_sig"),
    **make.OPTIONS,
)

Table(
    "loghub_client_worker_instance",
    metadata,
    *make.group_key(),
    make.identifier("worker_instance"),
    Column("lease_id", BigInteger, nullable=False),
    make.short_text("incarnation"),
    make.short_text("address"),
    Column("source_count", Integer),
    Column("node_id", Integer),
    Column("pinned", JsonText),
    Column("accepts_runs", Boolean, nullable=False),
    *_times(),
    *_grammar_checks("worker_instance", "worker_instance"),
    **make.OPTIONS,
)

Table(
    "loghub_client_shard_lease",
    metadata,
    *make.group_key(),
    make.identifier("shard_id"),
    Column("lease_id", BigInteger, nullable=False),
    make.identifier("lease_owner", key=False, nullable=True),
    make.identifier("consumer_owner", key=False, nullable=True),
    make.cursor("check_point", nullable=True),
    Column("state", String(16), nullable=False),
    Column("consumer_epoch", BigInteger, nullable=False),
    make.short_text("consumer_run"),
    Column("handoff_eta_s", Double),
    Column("parents", JsonText, nullable=False),
    make.short_text("hash_begin"),
    make.short_text("hash_end"),
    Column("read_only", Boolean, nullable=False),
    Column("subscribable", Boolean, nullable=False),
    Column("watermark", EventTime),
    *_times(),
    Index("shard_lease_by_owner", "consume_group", "logstream_sig", "consumer_owner"),
    *_grammar_checks("shard_lease", "shard_id"),
    **make.OPTIONS,
)

Table(
    "lease_journal",
    metadata,
    Column("sequence", AutoNumber, primary_key=True, autoincrement=True),
    make.identifier("consume_group", key=False),
    make.identifier("logstream_sig", key=False),
    Column("kind", String(16), nullable=False),
    Column("reason", Text, nullable=False),
    make.short_text("observer"),
    Column("recorded_at", EventTime, nullable=False),
    make.identifier("shard_id", key=False, nullable=True),
    Column("edge", Integer),
    Column("from_state", String(16)),
    Column("to_state", String(16)),
    make.identifier("from_owner", key=False, nullable=True),
    make.identifier("to_owner", key=False, nullable=True),
    Column("epoch", BigInteger, nullable=False),
    make.short_text("run"),
    make.cursor("check_point", nullable=True),
    # The transaction that wrote the entry: how a lost reply to its COMMIT is settled.
    make.short_text("transaction_id"),
    Index("lease_journal_by_group", "consume_group", "logstream_sig", "sequence"),
    Index("lease_journal_by_shard", "consume_group", "logstream_sig", "shard_id", "sequence"),
    Index("lease_journal_by_transaction", "transaction_id"),
    sqlite_autoincrement=True,
    **make.OPTIONS,
)

Table(
    "batch",
    metadata,
    *make.group_key(),
    make.identifier("shard_id"),
    Column("sequence", BigInteger, primary_key=True, autoincrement=False),
    make.cursor("start_cursor"),
    make.cursor("end_cursor"),
    Column("state", String(16), nullable=False),
    Column("epoch", BigInteger, nullable=False),
    make.short_text("run"),
    make.identifier("holder", key=False),
    Column("attempt", Text, nullable=False),
    Column("generation", Integer, nullable=False),
    Column("files", JsonText, nullable=False),
    Column("records", BigInteger),
    Column("bytes", BigInteger),
    Column("written", BigInteger, nullable=False),
    Column("quarantined", BigInteger, nullable=False),
    Column("first_event_time", EventTime),
    Column("last_event_time", EventTime),
    Column("finished", Boolean, nullable=False),
    Column("committed_at", EventTime),
    **make.OPTIONS,
)

Table(
    "outbox",
    metadata,
    Column("sequence", AutoNumber, primary_key=True, autoincrement=True),
    make.identifier("consume_group", key=False),
    make.identifier("logstream_sig", key=False),
    make.identifier("shard_id", key=False),
    Column("kind", String(32), nullable=False),
    make.short_text("batch_id"),
    Column("payload", JsonText, nullable=False),
    make.short_text("run"),
    Column("delivered", Boolean, nullable=False),
    Index("outbox_pending", "consume_group", "logstream_sig", "delivered", "sequence"),
    sqlite_autoincrement=True,
    **make.OPTIONS,
)

Table(
    "gap",
    metadata,
    *make.group_key(),
    make.identifier("shard_id"),
    make.cursor("start_cursor", key=True),
    make.cursor("end_cursor", key=True),
    Column("reason", Text, nullable=False),
    Column("recorded_at", EventTime, nullable=False),
    Column("acknowledged", Boolean, nullable=False),
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


def _guarded(connection: Connection) -> bool:
    """Tell whether the trigger is there."""
    if connection.dialect.name == "sqlite":
        triggers = table("sqlite_master", column("name"), column("type"))
        mine = select(triggers.c.name).where(triggers.c.type == "trigger")
        return _TRIGGER in connection.execute(mine).scalars()
    triggers = table(
        "TRIGGERS", column("TRIGGER_NAME"), column("TRIGGER_SCHEMA"), schema="information_schema"
    )
    mine = select(triggers.c.TRIGGER_NAME).where(func.database() == triggers.c.TRIGGER_SCHEMA)
    return _TRIGGER in connection.execute(mine).scalars()


def _guard(connection: Connection) -> None:
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
