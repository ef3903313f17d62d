"""The columns of each kind of row."""

from __future__ import annotations

import json
from dataclasses import asdict
from datetime import datetime
from typing import Any

from dagster_leasehold.lease_store import ledger_rows, tables
from dagster_leasehold.lease_store.columns import NAME_LENGTH_MAX
from dagster_leasehold.lease_store.group_rows import AssignmentMode, GapPolicy, Group, Node
from dagster_leasehold.lease_store.identifiers import GroupKey, NodeName, ShardId
from dagster_leasehold.lease_store.journal_rows import Gap, JournalEntry, Note, OutboxEvent
from dagster_leasehold.lease_store.publication_rows import (
    ChangeKind,
    Publication,
    TableChange,
    TableColumns,
    TableName,
)
from dagster_leasehold.lease_store.rules.isolation import suspicion_values
from dagster_leasehold.lease_store.rules.journal_proof import Opening
from dagster_leasehold.lease_store.rules.states import ShardState
from dagster_leasehold.lease_store.shard_rows import Progress, ShardLease
from dagster_leasehold.lease_store.shard_summary import ShardSummary
from dagster_leasehold.lease_store.sql_store.field_columns import Columns, Row, Ways, key_values
from dagster_leasehold.lease_store.sql_store.stored_json import (
    by_shard,
    expired_from,
    expired_values,
    file_values,
    files_from,
    optional,
    pairs,
    planned_from,
)
from dagster_leasehold.lease_store.stored_rows import DeliveryTurn, LogIdentity
from dagster_leasehold.lease_store.window_rows import EventWindow, WindowAttempt

GROUP_PREFIX = "group_"

NODE = Columns(
    Node,
    tables.worker_instance,
    named={"name": "worker_instance"},
    reads={"name": NodeName, "pinned": optional(by_shard)},
)
SHARD = Columns(ShardLease, tables.shard_lease, reads={"state": ShardState})
PROGRESS = Columns(Progress)
ENTRY = Columns(JournalEntry, tables.lease_journal, reads={"shard": optional(ShardId)})
GAP = Columns(Gap, tables.gap, key=("shard",))
EVENT = Columns(OutboxEvent, tables.outbox)
_TOTALS = Columns(
    ledger_rows.ShardTotals,
    key=("shard",),
    named={
        "batches": "committed_batches",
        "records": "committed_records",
        "bytes": "committed_bytes",
        "quarantined": "quarantined_records",
    },
)
COUNTERS = Columns(
    ledger_rows.LedgerCounters,
    tables.shard_lease,
    named={"version": "ledger_version", "rows": "ledger_rows"},
    parts={"totals": _TOTALS},
)
# MariaDB adds integers up to a decimal.
THROUGHPUT = Columns(ledger_rows.Throughput, reads={"records": int})
CLAIM = Columns(
    ledger_rows.RewriteClaim,
    tables.rewrite_claim,
    named={"at": "claimed_at"},
    reads={"kind": ledger_rows.RewriteKind},
    parts={"compacted": Columns(ledger_rows.Compacted, named={"until": "compacted_until"})},
)
ATTEMPT = Columns(WindowAttempt, tables.window_attempt, named={"at": "begun_at"})
_HOLDER_NAMED = {"node": "worker_instance"}
_HOLDER_READS: Ways = {"node": lambda name: NodeName(name) if name else None}
_HOLDER_WRITES: Ways = {"node": lambda name: name or ""}
TURN = Columns(
    DeliveryTurn,
    tables.delivery_claim,
    named=_HOLDER_NAMED,
    reads=_HOLDER_READS,
    writes=_HOLDER_WRITES,
)
LOG = Columns(LogIdentity, tables.log_identity)
WINDOW = Columns(
    EventWindow,
    tables.event_window,
    named={"start": "window_start", "end": "window_end"},
    reads={"covered": by_shard},
    writes={"covered": dict},
)
_SETTINGS = Columns(
    Group,
    without=("key", "generation"),
    reads={"assignment": AssignmentMode, "gap_policy": GapPolicy},
)
_NOTE = Columns(Note)
_STATISTICS = Columns(ledger_rows.BatchStatistics)
_BATCH = Columns(
    ledger_rows.Batch,
    tables.batch,
    parts={"statistics": _STATISTICS},
    reads={"state": ledger_rows.BatchState},
)


class _Opening:
    """The columns of a summary's newest tenure."""

    names = ("opened", "opened_epoch", "opened_run", "opened_by")

    def read(self, row: Row) -> Opening | None:
        if row["opened"] is None:
            return None
        owner = row["opened_by"] and NodeName(row["opened_by"])
        return Opening(row["opened"], row["opened_epoch"], row["opened_run"], owner)

    def values(self, value: Opening | None) -> dict[str, Any]:
        return {
            "opened": value.sequence if value else None,
            "opened_epoch": value.epoch if value else None,
            "opened_run": value.run if value else "",
            "opened_by": value.owner if value else None,
        }


class _TableColumns:
    """The columns of what a group has agreed on for its files."""

    names = ("columns_version", "table_columns")

    def read(self, row: Row) -> TableColumns:
        return TableColumns(row["columns_version"], tuple(row["table_columns"] or ()))

    def values(self, value: TableColumns) -> dict[str, Any]:
        columns = [dict(column) for column in value.columns]
        return {"columns_version": value.version, "table_columns": columns or None}


class _Table:
    """The columns of a table's name."""

    names = ("catalog_name", "table_namespace", "table_name")

    def read(self, row: Row) -> TableName | None:
        parts = [row[name] for name in self.names]
        return None if parts[-1] is None else TableName(*parts)

    def values(self, value: TableName | None) -> dict[str, Any]:
        parts = (value.catalog, value.namespace, value.name) if value else (None,) * 3
        return dict(zip(self.names, parts, strict=True))


class _Key:
    """The columns of a group."""

    names = ("consume_group", "logstream_sig")

    def read(self, row: Row) -> GroupKey:
        return GroupKey.parse(*(row[name] for name in self.names))

    def values(self, value: GroupKey) -> dict[str, Any]:
        return key_values(value)


TABLE = _Table()
PUBLICATION = Columns(
    Publication,
    tables.publication,
    without=("changes_pending",),
    named=_HOLDER_NAMED
    | {"last": "last_publication", "snapshot": "snapshot_id", "at": "published_at"},
    reads={**_HOLDER_READS, "pending": optional(planned_from)},
    writes={**_HOLDER_WRITES, "pending": optional(asdict)},
    parts={"key": _Key(), "table": TABLE, "columns": _TableColumns()},
)
CHANGE = Columns(
    TableChange,
    tables.table_change,
    named={"first": "first_batch"},
    reads={
        "kind": ChangeKind,
        "removed": lambda stored: tuple(json.loads(stored)),
        "added": files_from,
    },
    writes={"removed": list, "added": file_values},
)
_SUMMARY = Columns(
    ShardSummary,
    tables.shard_summary,
    parts={"opening": _Opening()},
    reads={
        "shard": lambda text: ShardId(text) if text else None,
        "skips": pairs,
        "violations": pairs,
        "expired": optional(expired_from),
    },
    writes={
        "shard": lambda shard: shard or "",
        "entries": dict,
        "expired": optional(expired_values),
    },
)


def group_values(group: Group) -> dict[str, Any]:
    """Return a group's settings; its generation has a statement of its own."""
    return _SETTINGS.values(group)


def group_from(row: Row) -> Group:
    """Return a group from its row."""
    key = GroupKey.parse(row["consume_group"], row["logstream_sig"])
    return _SETTINGS.read(row, key=key, generation=row["generation"])


def joined_group(row: Row) -> Group:
    """Return the group of a `pulse` row."""
    names = (name for name in row if name.startswith(GROUP_PREFIX))
    return group_from({name.removeprefix(GROUP_PREFIX): row[name] for name in names})


def note_row(
    key: GroupKey, note: Note, *, observer: str, at: datetime, transaction_id: str
) -> dict[str, Any]:
    """Return a new journal row."""
    return _NOTE.row(key, note) | {
        "observer": observer.encode()[:NAME_LENGTH_MAX].decode(errors="ignore"),
        "recorded_at": at,
        "transaction_id": transaction_id,
    }


def batch_row(key: GroupKey, batch: ledger_rows.Batch) -> dict[str, Any]:
    """Return a new ledger row."""
    return _BATCH.row(key, batch)


def batch_values(batch: ledger_rows.Batch) -> dict[str, Any]:
    """Return what a ledger row holds, its key aside."""
    return _BATCH.values(batch)


def moved_values(row: ShardLease, commit: ledger_rows.BatchCommit) -> dict[str, Any]:
    """Return the parameters that move a shard on by a batch, to the row that it then has."""
    return {
        "seen_shard": row.shard,
        "seen_owner": row.consumer_owner,
        "seen_epoch": row.consumer_epoch,
        "seen_run": row.consumer_run,
        "check_point": row.check_point,
        "watermark": row.watermark,
        "tries": row.tries,
        "suspicion": suspicion_values(row.suspicion),
        "committed_until": commit.sequence + 1,
        "more_committed_batches": 1,
        "more_committed_records": commit.statistics.written,
        "more_committed_bytes": commit.statistics.bytes or 0,
        "more_quarantined_records": commit.statistics.quarantined,
        "more_ledger_rows": 1,
    }


def batch_from(row: Row) -> ledger_rows.Batch:
    """Return a batch from its ledger row."""
    return _BATCH.read(row)


def head_from(row: Row) -> ledger_rows.LedgerHead:
    """Return a shard's head from its row and its newest ledger row."""
    number, intended = row["sequence"], row["state"] == ledger_rows.BatchState.INTENT
    if number is not None and row["last_sequence"] is not None:
        number = row["last_sequence"]
    return ledger_rows.LedgerHead(
        shard=ShardId(row["shard_id"]),
        check_point=row["check_point"],
        next_number=0 if number is None else number + (not intended),
        intent=row["run"] if intended else None,
        version=row["ledger_version"],
    )
