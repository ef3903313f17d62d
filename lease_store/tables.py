"""The tables of the lease store. The first two carry the LogHub client's own names and columns.

There are no foreign keys on purpose: InnoDB would lock the group's row in share mode for every
journal or ledger row inserted, and the group's row is the lock that orders changes of ownership.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import (
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    Double,
    Index,
    Integer,
    MetaData,
    String,
    Table,
    Text,
)

from dagster_leasehold.lease_store.columns import (
    AutoNumber,
    EventTime,
    ExactText,
    JsonText,
    ServerTime,
    server_time,
)
from dagster_leasehold.lease_store.errors import LINE_BYTES_MAX
from dagster_leasehold.lease_store.identifiers import CURSOR_LENGTH_MAX, IDENTIFIER_LENGTH_MAX

NAME_LENGTH_MAX = 255

metadata = MetaData()

TABLE_OPTIONS: dict[str, Any] = {
    "mysql_engine": "InnoDB",
    "mysql_charset": "utf8mb4",
    "mysql_collate": "utf8mb4_bin",
}


def _identifier(name: str, *, key: bool = True, nullable: bool = False) -> Column[str]:
    column = ExactText(IDENTIFIER_LENGTH_MAX)
    return Column(name, column, primary_key=key, nullable=nullable and not key)


def _cursor(name: str, *, nullable: bool = False) -> Column[str]:
    return Column(name, ExactText(CURSOR_LENGTH_MAX), nullable=nullable)


def _name(name: str, *, nullable: bool = False) -> Column[str]:
    return Column(name, ExactText(NAME_LENGTH_MAX), nullable=nullable)


def _count(name: str) -> Column[int]:
    return Column(name, BigInteger, nullable=False, server_default="0")


def _times() -> tuple[Column[Any], Column[Any]]:
    return (
        Column("create_time", ServerTime, nullable=False, default=server_time()),
        Column(
            "update_time",
            ServerTime,
            nullable=False,
            default=server_time(),
            onupdate=server_time(),
        ),
    )


def grammar_checks(table: str, *columns: str) -> list[CheckConstraint]:
    """CHECK constraints for the grammar of `lease_store.identifiers`, in each dialect's words."""
    checks: list[CheckConstraint] = []
    for column in columns:
        name = f"{table}_{column}_grammar"
        glob = f"{column} GLOB '[A-Za-z0-9]*' AND {column} NOT GLOB '*[^A-Za-z0-9._-]*'"
        # MySQL refuses regular expressions on binary strings, hence the conversion.
        text = f"CONVERT({column} USING latin1)"
        regexp = f"{text} REGEXP '^[A-Za-z0-9]' AND NOT {text} REGEXP '[^A-Za-z0-9._-]'"
        checks.append(CheckConstraint(glob, name=name).ddl_if(dialect="sqlite"))
        checks.append(CheckConstraint(regexp, name=name).ddl_if(dialect="mysql"))
    return checks


consumer_group = Table(
    "consumer_group",
    metadata,
    _identifier("consume_group"),
    _identifier("logstream_sig"),
    Column("ordered", Boolean, nullable=False),
    Column("timeout_s", Double, nullable=False),
    Column("handoff_limit_s", Double, nullable=False),
    Column("assignment", String(16), nullable=False),
    Column("initial_position", String(64), nullable=False),
    Column("node_cap", Integer),
    Column("weighted", Boolean, nullable=False),
    Column("paused", Boolean, nullable=False),
    Column("gap_policy", String(8), nullable=False, server_default="hold"),
    Column("generation", BigInteger, nullable=False),
    *_times(),
    *grammar_checks("consumer_group", "consume_group", "logstream_sig"),
    **TABLE_OPTIONS,
)

worker_instance = Table(
    "loghub_client_worker_instance",
    metadata,
    _identifier("consume_group"),
    _identifier("logstream_sig"),
    _identifier("worker_instance"),
    Column("lease_id", BigInteger, nullable=False),
    _name("incarnation"),
    _name("address"),
    Column("source_count", Integer),
    Column("node_id", Integer),
    Column("pinned", JsonText),
    Column("accepts_runs", Boolean, nullable=False),
    *_times(),
    *grammar_checks("worker_instance", "worker_instance"),
    **TABLE_OPTIONS,
)

shard_lease = Table(
    "loghub_client_shard_lease",
    metadata,
    _identifier("consume_group"),
    _identifier("logstream_sig"),
    _identifier("shard_id"),
    Column("lease_id", BigInteger, nullable=False),
    _identifier("lease_owner", key=False, nullable=True),
    _identifier("consumer_owner", key=False, nullable=True),
    _cursor("check_point", nullable=True),
    Column("state", String(16), nullable=False),
    Column("consumer_epoch", BigInteger, nullable=False),
    _name("consumer_run"),
    Column("handoff_eta_s", Double),
    Column("parents", JsonText, nullable=False),
    _name("hash_begin"),
    _name("hash_end"),
    Column("read_only", Boolean, nullable=False),
    Column("subscribable", Boolean, nullable=False),
    Column("watermark", EventTime),
    _cursor("bootstrap", nullable=True),
    Column("gone_parents", JsonText),
    # Rises whenever committed rows of its ledger are changed or removed.
    _count("ledger_version"),
    # What was ever committed to it: these only rise, and no reader has to add the ledger up.
    _count("committed_batches"),
    _count("committed_records"),
    _count("committed_bytes"),
    _count("quarantined_records"),
    *_times(),
    Index("shard_lease_by_owner", "consume_group", "logstream_sig", "consumer_owner"),
    *grammar_checks("shard_lease", "shard_id"),
    **TABLE_OPTIONS,
)

lease_journal = Table(
    "lease_journal",
    metadata,
    Column("sequence", AutoNumber, primary_key=True, autoincrement=True),
    _identifier("consume_group", key=False),
    _identifier("logstream_sig", key=False),
    Column("kind", String(16), nullable=False),
    Column("reason", Text, nullable=False),
    _name("observer"),
    Column("recorded_at", EventTime, nullable=False),
    _identifier("shard_id", key=False, nullable=True),
    Column("edge", Integer),
    Column("from_state", String(16)),
    Column("to_state", String(16)),
    _identifier("from_owner", key=False, nullable=True),
    _identifier("to_owner", key=False, nullable=True),
    Column("epoch", BigInteger, nullable=False),
    _name("run"),
    _cursor("check_point", nullable=True),
    # The transaction that wrote the entry: how a lost reply to its COMMIT is settled.
    _name("transaction_id"),
    Index("lease_journal_by_group", "consume_group", "logstream_sig", "sequence"),
    Index("lease_journal_by_shard", "consume_group", "logstream_sig", "shard_id", "sequence"),
    Index("lease_journal_by_transaction", "transaction_id"),
    sqlite_autoincrement=True,
    **TABLE_OPTIONS,
)

batch = Table(
    "batch",
    metadata,
    _identifier("consume_group"),
    _identifier("logstream_sig"),
    _identifier("shard_id"),
    Column("sequence", BigInteger, primary_key=True, autoincrement=False),
    _cursor("start_cursor"),
    _cursor("end_cursor"),
    Column("state", String(16), nullable=False),
    Column("epoch", BigInteger, nullable=False),
    _name("run"),
    _identifier("holder", key=False),
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
    # See `lease_store.rules.event_spans`; empty where it has no output.
    Column("event_span", BigInteger),
    Index(
        "batch_by_event_time",
        "consume_group",
        "logstream_sig",
        "event_span",
        "shard_id",
        "sequence",
    ),
    # Of a row that later batches were folded into: the last of them, and how many it stands for.
    Column("last_sequence", BigInteger),
    Column("last_epoch", BigInteger),
    Column("batches", Integer, nullable=False, server_default="1"),
    **TABLE_OPTIONS,
)

_PENDING = ("consume_group", "logstream_sig", "delivered", "kind")

outbox = Table(
    "outbox",
    metadata,
    Column("sequence", AutoNumber, primary_key=True, autoincrement=True),
    _identifier("consume_group", key=False),
    _identifier("logstream_sig", key=False),
    _identifier("shard_id", key=False),
    Column("kind", String(32), nullable=False),
    _name("batch_id"),
    Column("payload", JsonText, nullable=False),
    _name("run"),
    Column("delivered", Boolean, nullable=False),
    Column("attempts", Integer, nullable=False, server_default="0"),
    Column("error", ExactText(LINE_BYTES_MAX), nullable=False, server_default=""),
    Column("recorded_at", EventTime, nullable=False, server_default="0"),
    Index("outbox_by_kind", *_PENDING, "sequence"),
    Index("outbox_by_shard", *_PENDING, "shard_id", "sequence"),
    sqlite_autoincrement=True,
    **TABLE_OPTIONS,
)

gap = Table(
    "gap",
    metadata,
    _identifier("consume_group"),
    _identifier("logstream_sig"),
    _identifier("shard_id"),
    Column("start_cursor", ExactText(CURSOR_LENGTH_MAX), primary_key=True),
    Column("end_cursor", ExactText(CURSOR_LENGTH_MAX), primary_key=True),
    Column("reason", Text, nullable=False),
    Column("recorded_at", EventTime, nullable=False),
    Column("acknowledged", Boolean, nullable=False),
    Column("skipped", Boolean, nullable=False, server_default="1"),
    Index("gap_by_acknowledgement", "consume_group", "logstream_sig", "acknowledged", "shard_id"),
    **TABLE_OPTIONS,
)

rewrite_claim = Table(
    "rewrite_claim",
    metadata,
    _identifier("consume_group"),
    _identifier("logstream_sig"),
    _identifier("shard_id"),
    # Empty where nobody is rewriting: the account of a running node may not delete rows.
    _name("run"),
    Column("kind", String(16), nullable=False),
    Column("claimed_at", EventTime, nullable=False),
    **TABLE_OPTIONS,
)

delivery_claim = Table(
    "delivery_claim",
    metadata,
    _identifier("consume_group"),
    _identifier("logstream_sig"),
    # Empty where nobody is delivering: the account of a running node may not delete rows.
    _name("worker_instance"),
    _name("incarnation"),
    Column("epoch", BigInteger, nullable=False),
    **TABLE_OPTIONS,
)

event_window = Table(
    "event_window",
    metadata,
    _identifier("consume_group"),
    _identifier("logstream_sig"),
    Column("asset", ExactText(NAME_LENGTH_MAX), primary_key=True),
    Column("window_start", EventTime, primary_key=True, autoincrement=False),
    Column("window_end", EventTime, nullable=False),
    Column("version", BigInteger, nullable=False),
    Column("generation", Integer, nullable=False),
    _name("run"),
    Column("files", JsonText, nullable=False),
    Column("records", BigInteger, nullable=False),
    Column("covered", JsonText, nullable=False),
    Column("late", BigInteger, nullable=False),
    Column("rerun", Boolean, nullable=False),
    Column("made_at", EventTime),
    Index("event_window_by_end", "consume_group", "logstream_sig", "asset", "window_end"),
    **TABLE_OPTIONS,
)

window_attempt = Table(
    "window_attempt",
    metadata,
    _identifier("consume_group"),
    _identifier("logstream_sig"),
    # Rows are used again: there are as many as attempts were ever under way at once.
    Column("slot", Integer, primary_key=True, autoincrement=False),
    # Empty where none is under way: the account of a running node may not delete rows.
    _name("attempt"),
    _name("run"),
    Column("begun_at", EventTime, nullable=False),
    **TABLE_OPTIONS,
)

shard_summary = Table(
    "shard_summary",
    metadata,
    _identifier("consume_group"),
    _identifier("logstream_sig"),
    # Empty for the journal entries that concern no shard.
    _identifier("shard_id"),
    Column("version", BigInteger, nullable=False),
    Column("journal_until", BigInteger, nullable=False),
    Column("entries", JsonText, nullable=False),
    Column("epoch", BigInteger, nullable=False),
    Column("opened", BigInteger),
    Column("opened_epoch", BigInteger),
    _name("opened_run"),
    _identifier("opened_by", key=False, nullable=True),
    Column("open", Boolean, nullable=False),
    Column("proven_until", BigInteger, nullable=False),
    Column("proven_epoch", BigInteger, nullable=False),
    Column("folded_until", BigInteger, nullable=False),
    Column("skips", JsonText, nullable=False),
    Column("violations", JsonText, nullable=False),
    # What is left of committed output that expired; empty where none did.
    Column("expired", JsonText),
    **TABLE_OPTIONS,
)

GROUP_TABLES = (
    worker_instance,
    shard_lease,
    lease_journal,
    batch,
    outbox,
    gap,
    rewrite_claim,
    delivery_claim,
    event_window,
    window_attempt,
    shard_summary,
    consumer_group,
)
