"""The tables of the lease store. The first two carry the LogHub client's own names and columns.

There are no foreign keys on purpose: InnoDB would lock the group's row in share mode for every
journal or ledger row inserted, and the group's row is the lock that orders changes of ownership.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import (
    BigInteger,
    Boolean,
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
    NAME_LENGTH_MAX,
    AutoNumber,
    EventTime,
    ExactText,
    JsonText,
    count_column,
    cursor_column,
    grammar_checks,
    group_key,
    identifier_column,
    name_column,
    times,
)
from dagster_leasehold.lease_store.errors import LINE_BYTES_MAX
from dagster_leasehold.lease_store.identifiers import CURSOR_LENGTH_MAX

metadata = MetaData()

TABLE_OPTIONS: dict[str, Any] = {
    "mysql_engine": "InnoDB",
    "mysql_charset": "utf8mb4",
    "mysql_collate": "utf8mb4_bin",
}


consumer_group = Table(
    "consumer_group",
    metadata,
    *group_key(),
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
    *times(),
    *grammar_checks("consumer_group", "consume_group", "logstream_sig"),
    **TABLE_OPTIONS,
)

worker_instance = Table(
    "loghub_client_worker_instance",
    metadata,
    *group_key(),
    identifier_column("worker_instance"),
    Column("lease_id", BigInteger, nullable=False),
    name_column("incarnation"),
    name_column("address"),
    Column("source_count", Integer),
    Column("node_id", Integer),
    Column("pinned", JsonText),
    Column("accepts_runs", Boolean, nullable=False),
    *times(),
    *grammar_checks("worker_instance", "worker_instance"),
    **TABLE_OPTIONS,
)

shard_lease = Table(
    "loghub_client_shard_lease",
    metadata,
    *group_key(),
    identifier_column("shard_id"),
    Column("lease_id", BigInteger, nullable=False),
    identifier_column("lease_owner", key=False, nullable=True),
    identifier_column("consumer_owner", key=False, nullable=True),
    cursor_column("check_point", nullable=True),
    Column("state", String(16), nullable=False),
    Column("consumer_epoch", BigInteger, nullable=False),
    name_column("consumer_run"),
    Column("handoff_eta_s", Double),
    Column("parents", JsonText, nullable=False),
    name_column("hash_begin"),
    name_column("hash_end"),
    Column("read_only", Boolean, nullable=False),
    Column("subscribable", Boolean, nullable=False),
    Column("watermark", EventTime),
    cursor_column("bootstrap", nullable=True),
    Column("gone_parents", JsonText),
    # Rises whenever committed rows of its ledger are changed or removed.
    count_column("ledger_version"),
    # What was ever committed to it: these only rise, and no reader has to add the ledger up.
    count_column("committed_batches"),
    count_column("committed_records"),
    count_column("committed_bytes"),
    count_column("quarantined_records"),
    *times(),
    Index("shard_lease_by_owner", "consume_group", "logstream_sig", "consumer_owner"),
    *grammar_checks("shard_lease", "shard_id"),
    **TABLE_OPTIONS,
)

lease_journal = Table(
    "lease_journal",
    metadata,
    Column("sequence", AutoNumber, primary_key=True, autoincrement=True),
    identifier_column("consume_group", key=False),
    identifier_column("logstream_sig", key=False),
    Column("kind", String(16), nullable=False),
    Column("reason", Text, nullable=False),
    name_column("observer"),
    Column("recorded_at", EventTime, nullable=False),
    identifier_column("shard_id", key=False, nullable=True),
    Column("edge", Integer),
    Column("from_state", String(16)),
    Column("to_state", String(16)),
    identifier_column("from_owner", key=False, nullable=True),
    identifier_column("to_owner", key=False, nullable=True),
    Column("epoch", BigInteger, nullable=False),
    name_column("run"),
    cursor_column("check_point", nullable=True),
    # The transaction that wrote the entry: how a lost reply to its COMMIT is settled.
    name_column("transaction_id"),
    Index("lease_journal_by_group", "consume_group", "logstream_sig", "sequence"),
    Index("lease_journal_by_shard", "consume_group", "logstream_sig", "shard_id", "sequence"),
    Index("lease_journal_by_transaction", "transaction_id"),
    sqlite_autoincrement=True,
    **TABLE_OPTIONS,
)

batch = Table(
    "batch",
    metadata,
    *group_key(),
    identifier_column("shard_id"),
    Column("sequence", BigInteger, primary_key=True, autoincrement=False),
    cursor_column("start_cursor"),
    cursor_column("end_cursor"),
    Column("state", String(16), nullable=False),
    Column("epoch", BigInteger, nullable=False),
    name_column("run"),
    identifier_column("holder", key=False),
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
    identifier_column("consume_group", key=False),
    identifier_column("logstream_sig", key=False),
    identifier_column("shard_id", key=False),
    Column("kind", String(32), nullable=False),
    name_column("batch_id"),
    Column("payload", JsonText, nullable=False),
    name_column("run"),
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
    *group_key(),
    identifier_column("shard_id"),
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
    *group_key(),
    identifier_column("shard_id"),
    # Empty where nobody is rewriting: the account of a running node may not delete rows.
    name_column("run"),
    Column("kind", String(16), nullable=False),
    Column("claimed_at", EventTime, nullable=False),
    # Numbers of batches: those before are in full files, or were looked at by a compaction.
    count_column("compacted_until"),
    count_column("looked_until"),
    **TABLE_OPTIONS,
)

delivery_claim = Table(
    "delivery_claim",
    metadata,
    *group_key(),
    # Empty where nobody is delivering: the account of a running node may not delete rows.
    name_column("worker_instance"),
    name_column("incarnation"),
    Column("epoch", BigInteger, nullable=False),
    **TABLE_OPTIONS,
)

event_window = Table(
    "event_window",
    metadata,
    *group_key(),
    Column("asset", ExactText(NAME_LENGTH_MAX), primary_key=True),
    Column("window_start", EventTime, primary_key=True, autoincrement=False),
    Column("window_end", EventTime, nullable=False),
    Column("version", BigInteger, nullable=False),
    Column("generation", Integer, nullable=False),
    name_column("run"),
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
    *group_key(),
    # Rows are used again: there are as many as attempts were ever under way at once.
    Column("slot", Integer, primary_key=True, autoincrement=False),
    # Empty where none is under way: the account of a running node may not delete rows.
    name_column("attempt"),
    name_column("run"),
    Column("begun_at", EventTime, nullable=False),
    **TABLE_OPTIONS,
)

shard_summary = Table(
    "shard_summary",
    metadata,
    *group_key(),
    # Empty for the journal entries that concern no shard.
    identifier_column("shard_id"),
    Column("version", BigInteger, nullable=False),
    Column("journal_until", BigInteger, nullable=False),
    Column("entries", JsonText, nullable=False),
    Column("epoch", BigInteger, nullable=False),
    Column("opened", BigInteger),
    Column("opened_epoch", BigInteger),
    name_column("opened_run"),
    identifier_column("opened_by", key=False, nullable=True),
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
