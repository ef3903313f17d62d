"""The tables of the lease store; two have the LogHub client's own names and columns.

There are no foreign keys, because InnoDB would lock the group's row in share mode for every
inserted journal or ledger row, and that row's lock orders changes of ownership.
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

from dagster_leasehold.lease_store.columns import (
    NAME_LENGTH_MAX,
    AutoNumber,
    EventTime,
    JsonText,
    count_column,
    cursor_column,
    exact_text,
    grammar_checks,
    group_key,
    identifier_column,
    name_column,
    times,
)
from dagster_leasehold.lease_store.errors import LINE_BYTES_MAX
from dagster_leasehold.lease_store.identifiers import CURSOR_LENGTH_MAX

LOCATION_LENGTH_MAX = 1_000
metadata = sa.MetaData()

TABLE_OPTIONS: dict[str, Any] = {
    "mysql_engine": "InnoDB",
    "mysql_charset": "utf8mb4",
    "mysql_collate": "utf8mb4_bin",
}


consumer_group = sa.Table(
    "consumer_group",
    metadata,
    *group_key(),
    sa.Column("ordered", sa.Boolean, nullable=False),
    sa.Column("timeout_s", sa.Double, nullable=False),
    sa.Column("handoff_limit_s", sa.Double, nullable=False),
    sa.Column("assignment", sa.String(16), nullable=False),
    sa.Column("initial_position", sa.String(64), nullable=False),
    sa.Column("node_cap", sa.Integer),
    sa.Column("weighted", sa.Boolean, nullable=False),
    sa.Column("paused", sa.Boolean, nullable=False),
    sa.Column("gap_policy", sa.String(8), nullable=False, server_default="hold"),
    sa.Column("generation", sa.BigInteger, nullable=False),
    *times(),
    *grammar_checks("consumer_group", "consume_group", "logstream_sig"),
    **TABLE_OPTIONS,
)

worker_instance = sa.Table(
    "loghub_client_worker_instance",
    metadata,
    *group_key(),
    identifier_column("worker_instance"),
    sa.Column("lease_id", sa.BigInteger, nullable=False),
    name_column("incarnation"),
    name_column("address"),
    sa.Column("source_count", sa.Integer),
    sa.Column("node_id", sa.Integer),
    sa.Column("pinned", JsonText),
    sa.Column("accepts_runs", sa.Boolean, nullable=False),
    sa.Column("release_version", sa.String(64), nullable=False, server_default=""),
    *times(),
    *grammar_checks("worker_instance", "worker_instance"),
    **TABLE_OPTIONS,
)

shard_lease = sa.Table(
    "loghub_client_shard_lease",
    metadata,
    *group_key(),
    identifier_column("shard_id"),
    sa.Column("lease_id", sa.BigInteger, nullable=False),
    identifier_column("lease_owner", key=False, nullable=True),
    identifier_column("consumer_owner", key=False, nullable=True),
    cursor_column("check_point", nullable=True),
    sa.Column("state", sa.String(16), nullable=False),
    sa.Column("consumer_epoch", sa.BigInteger, nullable=False),
    name_column("consumer_run"),
    sa.Column("handoff_eta_s", sa.Double),
    sa.Column("parents", JsonText, nullable=False),
    name_column("hash_begin"),
    name_column("hash_end"),
    sa.Column("read_only", sa.Boolean, nullable=False),
    sa.Column("subscribable", sa.Boolean, nullable=False),
    sa.Column("watermark", EventTime),
    cursor_column("bootstrap", nullable=True),
    sa.Column("gone_parents", JsonText),
    # Failed tenures in a row at the checkpoint, and their findings about its records.
    count_column("tries"),
    sa.Column("suspicion", JsonText),
    # The group's generation at its last change of listing, state or owner.
    count_column("generation"),
    # Incremented when committed rows of its ledger are changed or removed.
    count_column("ledger_version"),
    # Numbers of batches: before the first, all are committed; before the second, published.
    count_column("committed_until"),
    count_column("published_until"),
    # Batches before this number are published without checks, as an operator chose.
    count_column("unchecked_until"),
    # A hold on the publication: of the batches from a number on, by a check that a batch failed.
    sa.Column("held_from", sa.BigInteger),
    sa.Column("held_batch", sa.BigInteger),
    name_column("held_by", nullable=True),
    sa.Column("hold_reason", sa.Text),
    sa.Column("held_at", EventTime),
    # Totals of all commits; they never decrease.
    count_column("committed_batches"),
    count_column("committed_records"),
    count_column("committed_bytes"),
    count_column("quarantined_records"),
    count_column("ledger_rows"),
    *times(),
    sa.Index("shard_lease_by_owner", "consume_group", "logstream_sig", "consumer_owner"),
    sa.Index("shard_lease_by_next_owner", "consume_group", "logstream_sig", "lease_owner"),
    sa.Index("shard_lease_by_generation", "consume_group", "logstream_sig", "generation"),
    *grammar_checks("shard_lease", "shard_id"),
    **TABLE_OPTIONS,
)

lease_journal = sa.Table(
    "lease_journal",
    metadata,
    sa.Column("sequence", AutoNumber, primary_key=True, autoincrement=True),
    identifier_column("consume_group", key=False),
    identifier_column("logstream_sig", key=False),
    sa.Column("kind", sa.String(16), nullable=False),
    sa.Column("reason", sa.Text, nullable=False),
    name_column("observer"),
    sa.Column("recorded_at", EventTime, nullable=False),
    identifier_column("shard_id", key=False, nullable=True),
    sa.Column("edge", sa.Integer),
    sa.Column("from_state", sa.String(16)),
    sa.Column("to_state", sa.String(16)),
    identifier_column("from_owner", key=False, nullable=True),
    identifier_column("to_owner", key=False, nullable=True),
    sa.Column("epoch", sa.BigInteger, nullable=False),
    name_column("run"),
    cursor_column("check_point", nullable=True),
    sa.Column("facts", JsonText),
    # The transaction that wrote the entry, to check its outcome after a lost reply.
    name_column("transaction_id"),
    sa.Index("lease_journal_by_group", "consume_group", "logstream_sig", "sequence"),
    sa.Index("lease_journal_by_shard", "consume_group", "logstream_sig", "shard_id", "sequence"),
    sa.Index("lease_journal_by_transaction", "transaction_id"),
    sqlite_autoincrement=True,
    **TABLE_OPTIONS,
)

batch = sa.Table(
    "batch",
    metadata,
    *group_key(),
    identifier_column("shard_id"),
    sa.Column("sequence", sa.BigInteger, primary_key=True, autoincrement=False),
    cursor_column("start_cursor"),
    cursor_column("end_cursor"),
    sa.Column("state", sa.String(16), nullable=False),
    sa.Column("epoch", sa.BigInteger, nullable=False),
    name_column("run"),
    identifier_column("holder", key=False),
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
    # The last batch that was folded into the row, and the number of its batches.
    sa.Column("last_sequence", sa.BigInteger),
    sa.Column("last_epoch", sa.BigInteger),
    sa.Column("batches", sa.Integer, nullable=False, server_default="1"),
    **TABLE_OPTIONS,
)

_PENDING = ("consume_group", "logstream_sig", "delivered", "kind")

outbox = sa.Table(
    "outbox",
    metadata,
    sa.Column("sequence", AutoNumber, primary_key=True, autoincrement=True),
    identifier_column("consume_group", key=False),
    identifier_column("logstream_sig", key=False),
    identifier_column("shard_id", key=False),
    sa.Column("kind", sa.String(32), nullable=False),
    name_column("batch_id"),
    sa.Column("payload", JsonText, nullable=False),
    name_column("run"),
    sa.Column("delivered", sa.Boolean, nullable=False),
    sa.Column("attempts", sa.Integer, nullable=False, server_default="0"),
    sa.Column("error", exact_text(LINE_BYTES_MAX), nullable=False, server_default=""),
    sa.Column("recorded_at", EventTime, nullable=False, server_default="0"),
    sa.Index("outbox_by_kind", *_PENDING, "sequence"),
    sa.Index("outbox_by_shard", *_PENDING, "shard_id", "sequence"),
    sqlite_autoincrement=True,
    **TABLE_OPTIONS,
)

gap = sa.Table(
    "gap",
    metadata,
    *group_key(),
    identifier_column("shard_id"),
    sa.Column("start_cursor", exact_text(CURSOR_LENGTH_MAX), primary_key=True),
    sa.Column("end_cursor", exact_text(CURSOR_LENGTH_MAX), primary_key=True),
    sa.Column("reason", sa.Text, nullable=False),
    sa.Column("recorded_at", EventTime, nullable=False),
    sa.Column("acknowledged", sa.Boolean, nullable=False),
    sa.Column("skipped", sa.Boolean, nullable=False, server_default="1"),
    sa.Index(
        "gap_by_acknowledgement", "consume_group", "logstream_sig", "acknowledged", "shard_id"
    ),
    **TABLE_OPTIONS,
)

rewrite_claim = sa.Table(
    "rewrite_claim",
    metadata,
    *group_key(),
    identifier_column("shard_id"),
    # Empty while no run is rewriting: the account of a node cannot delete rows.
    name_column("run"),
    sa.Column("kind", sa.String(16), nullable=False),
    sa.Column("claimed_at", EventTime, nullable=False),
    # Numbers of batches: before the first, all are compacted; before the second, examined.
    count_column("compacted_until"),
    count_column("looked_until"),
    **TABLE_OPTIONS,
)

delivery_claim = sa.Table(
    "delivery_claim",
    metadata,
    *group_key(),
    # Empty while no node is delivering: the account of a node cannot delete rows.
    name_column("worker_instance"),
    name_column("incarnation"),
    sa.Column("epoch", sa.BigInteger, nullable=False),
    **TABLE_OPTIONS,
)

event_window = sa.Table(
    "event_window",
    metadata,
    *group_key(),
    sa.Column("asset", exact_text(NAME_LENGTH_MAX), primary_key=True),
    sa.Column("window_start", EventTime, primary_key=True, autoincrement=False),
    sa.Column("window_end", EventTime, nullable=False),
    sa.Column("version", sa.BigInteger, nullable=False),
    sa.Column("generation", sa.Integer, nullable=False),
    name_column("run"),
    sa.Column("files", JsonText, nullable=False),
    sa.Column("records", sa.BigInteger, nullable=False),
    sa.Column("covered", JsonText, nullable=False),
    sa.Column("late", sa.BigInteger, nullable=False),
    sa.Column("rerun", sa.Boolean, nullable=False),
    sa.Column("made_at", EventTime),
    sa.Index("event_window_by_end", "consume_group", "logstream_sig", "asset", "window_end"),
    **TABLE_OPTIONS,
)

window_attempt = sa.Table(
    "window_attempt",
    metadata,
    *group_key(),
    # Rows are reused, so their number is the most attempts that ran at once.
    sa.Column("slot", sa.Integer, primary_key=True, autoincrement=False),
    # Empty if no attempt is in progress: the account of a node cannot delete rows.
    name_column("attempt"),
    name_column("run"),
    sa.Column("begun_at", EventTime, nullable=False),
    **TABLE_OPTIONS,
)

shard_summary = sa.Table(
    "shard_summary",
    metadata,
    *group_key(),
    # Empty for the journal entries without a shard.
    identifier_column("shard_id"),
    sa.Column("version", sa.BigInteger, nullable=False),
    sa.Column("journal_until", sa.BigInteger, nullable=False),
    sa.Column("entries", JsonText, nullable=False),
    sa.Column("epoch", sa.BigInteger, nullable=False),
    sa.Column("opened", sa.BigInteger),
    sa.Column("opened_epoch", sa.BigInteger),
    name_column("opened_run"),
    identifier_column("opened_by", key=False, nullable=True),
    sa.Column("open", sa.Boolean, nullable=False),
    sa.Column("proven_until", sa.BigInteger, nullable=False),
    sa.Column("proven_epoch", sa.BigInteger, nullable=False),
    sa.Column("folded_until", sa.BigInteger, nullable=False),
    sa.Column("skips", JsonText, nullable=False),
    sa.Column("violations", JsonText, nullable=False),
    # The summary of expired output; empty if none has expired.
    sa.Column("expired", JsonText),
    **TABLE_OPTIONS,
)

publication = sa.Table(
    "publication",
    metadata,
    *group_key(),
    # Empty while no node is publishing: the account of a node cannot delete rows.
    name_column("worker_instance"),
    name_column("incarnation"),
    name_column("run"),
    # 0 until the first publication; until then only the columns are known.
    sa.Column("epoch", sa.BigInteger, nullable=False),
    name_column("catalog_name", nullable=True),
    name_column("table_namespace", nullable=True),
    name_column("table_name", nullable=True),
    count_column("columns_version"),
    sa.Column("table_columns", JsonText),
    count_column("number"),
    sa.Column("snapshot_id", sa.BigInteger),
    sa.Column("published_at", EventTime),
    name_column("last_publication", nullable=True),
    sa.Column("records", sa.BigInteger),
    sa.Column("pending", JsonText),
    sa.Column("failures", JsonText),
    sa.Index("publication_by_table", "catalog_name", "table_namespace", "table_name", unique=True),
    **TABLE_OPTIONS,
)

table_change = sa.Table(
    "table_change",
    metadata,
    sa.Column("sequence", AutoNumber, primary_key=True, autoincrement=True),
    identifier_column("consume_group", key=False),
    identifier_column("logstream_sig", key=False),
    identifier_column("shard_id", key=False),
    sa.Column("kind", sa.String(16), nullable=False),
    sa.Column("first_batch", sa.BigInteger, nullable=False),
    sa.Column("removed", JsonText, nullable=False),
    sa.Column("added", JsonText, nullable=False),
    sa.Column("published", sa.Boolean, nullable=False),
    sa.Column("recorded_at", EventTime, nullable=False),
    sa.Index("table_change_pending", "consume_group", "logstream_sig", "published", "sequence"),
    sqlite_autoincrement=True,
    **TABLE_OPTIONS,
)

log_identity = sa.Table(
    "log_identity",
    metadata,
    *group_key(),
    sa.Column("identity", exact_text(255), nullable=False),
    **TABLE_OPTIONS,
)

store_identity = sa.Table(
    "store_identity",
    metadata,
    sa.Column("number", sa.SmallInteger, primary_key=True, autoincrement=False),
    sa.Column("identity", sa.String(36), nullable=False),
    **TABLE_OPTIONS,
)

# The next two are Iceberg's SQL catalog, as its clients expect it.
iceberg_tables = sa.Table(
    "iceberg_tables",
    metadata,
    sa.Column("catalog_name", sa.String(NAME_LENGTH_MAX), primary_key=True),
    sa.Column("table_namespace", sa.String(NAME_LENGTH_MAX), primary_key=True),
    sa.Column("table_name", sa.String(NAME_LENGTH_MAX), primary_key=True),
    sa.Column("metadata_location", sa.String(LOCATION_LENGTH_MAX)),
    sa.Column("previous_metadata_location", sa.String(LOCATION_LENGTH_MAX)),
    sa.Column("iceberg_type", sa.String(5)),
    **TABLE_OPTIONS,
)

iceberg_namespace_properties = sa.Table(
    "iceberg_namespace_properties",
    metadata,
    sa.Column("catalog_name", sa.String(NAME_LENGTH_MAX), primary_key=True),
    sa.Column("namespace", sa.String(NAME_LENGTH_MAX), primary_key=True),
    sa.Column("property_key", sa.String(NAME_LENGTH_MAX), primary_key=True),
    sa.Column("property_value", sa.String(LOCATION_LENGTH_MAX), nullable=False),
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
    publication,
    table_change,
    log_identity,
    consumer_group,
)
COPIED_TABLES = (*GROUP_TABLES, store_identity, iceberg_tables, iceberg_namespace_properties)
