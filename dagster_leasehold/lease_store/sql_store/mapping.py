"""The conversion of table rows to frozen values and back."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from datetime import datetime
from enum import Enum
from functools import lru_cache, partial
from typing import Any, Generic, TypeVar

import msgspec
import sqlalchemy as sa

from dagster_leasehold.lease_store import ledger_rows, tables
from dagster_leasehold.lease_store.columns import NAME_LENGTH_MAX
from dagster_leasehold.lease_store.group_rows import AssignmentMode, GapPolicy, Group, Node
from dagster_leasehold.lease_store.identifiers import (
    GroupKey,
    GroupName,
    NodeName,
    ShardId,
    StreamName,
)
from dagster_leasehold.lease_store.journal_rows import Gap, JournalEntry, Note, OutboxEvent
from dagster_leasehold.lease_store.ledger_rows import DataFile
from dagster_leasehold.lease_store.publication_rows import (
    ChangeKind,
    CheckFailure,
    PlannedPublication,
    Publication,
    TableChange,
    TableColumns,
    TableName,
)
from dagster_leasehold.lease_store.rules.isolation import Suspicion
from dagster_leasehold.lease_store.rules.states import ShardState
from dagster_leasehold.lease_store.shard_rows import Progress, ShardLease
from dagster_leasehold.lease_store.shard_summary import Expired, Opening, ShardSummary
from dagster_leasehold.lease_store.stored_rows import (
    KEYS,
    Above,
    Below,
    DeliveryLock,
    LogIdentity,
    Plus,
)
from dagster_leasehold.lease_store.window_rows import EventWindow, WindowAttempt

REASON_LENGTH_MAX = 1_000
_NAMES_KEPT = 8_192

Row = Mapping[Any, Any]
Conversions = Mapping[str, Callable[[Any], Any]]
Value = TypeVar("Value")


def optional(conversion: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return a conversion that keeps None."""
    return lambda stored: None if stored is None else conversion(stored)


def loaded(name: str, stored: str | None) -> Any:
    """Return the value of a field from its column's JSON or null."""
    kind = _JSON[name]
    if stored is None:
        return kind() if name in _EMPTY_IS_NULL else None
    if stored == "[]":
        return ()  # the parents of most shards
    return msgspec.convert(json.loads(stored), kind, dec_hook=lambda type_, value: type_(value))


def dumped(name: str, value: Any) -> str | None:
    """Return the JSON of a field for its column, or null."""
    if value is None or (name in _EMPTY_IS_NULL and not value):
        return None
    # json can write every Python string; msgspec cannot.
    return json.dumps(msgspec.to_builtins(value, enc_hook=str), separators=(",", ":"))


COLUMNS: dict[type, Columns[Any]] = {}
"""The columns of each kind of row."""


class Columns(Generic[Value]):
    """The columns of one kind of value.

    Args:
        key: its fields in the row's key, after the group.
        without: its fields without a column; the caller of `read` adds them.
        named: the columns of fields with other names.
        reads: the conversions from columns to fields, if they differ.
        writes: the conversions from fields to columns.
        parts: the columns of fields with several columns.
        absent: for a part, the columns of None; the first one is not null for a value.
    """

    def __init__(
        self,
        kind: type[Value],
        table: sa.Table | None = None,
        *,
        key: tuple[str, ...] = (),
        without: tuple[str, ...] = (),
        named: Mapping[str, str] | None = None,
        reads: Conversions | None = None,
        writes: Conversions | None = None,
        parts: Mapping[str, Columns[Any]] | None = None,
        absent: Mapping[str, Any] | None = None,
    ) -> None:
        columns = {**_COLUMNS, **(named or {})}
        reads, writes = {**_READS, **(reads or {})}, {**_WRITES, **(writes or {})}
        reads |= {name: partial(loaded, name) for name in _JSON}
        writes |= {name: partial(dumped, name) for name in _JSON}
        each = fields(kind)  # pyright: ignore[reportArgumentType]
        self._parts = parts or {}
        self._absent = absent or {}
        self._marker = next(iter(self._absent), None)
        names = [field.name for field in each if field.name not in {*without, *self._parts}]
        self._by_place = len(names) == len(each) and not any(field.kw_only for field in each)
        self._kind: Callable[..., Value] = kind
        self._reads = [(name, columns.get(name, name), reads.get(name)) for name in names]
        self._writes = [(name, columns.get(name, name), writes.get(name)) for name in names]
        self.key_names = {columns.get(name, name) for name in key or KEYS.get(kind, ())}
        self._names = columns
        self._writers = {name: conversion for name, _, conversion in self._writes}
        self._readers = {name: conversion for name, _, conversion in self._reads}
        own = (column for _, column, _ in self._reads)
        of_parts = (name for part in self._parts.values() for name in part.names)
        self.names = list(dict.fromkeys([*own, *of_parts]))
        if table is not None:
            self.table = table
            self.order = KEYS[kind]
            self.selected = [table.c[name] for name in self.names]
            COLUMNS[kind] = self

    def read(self, row: Row, **given: Any) -> Value:
        """Return the value of a row."""
        for name, column, conversion in self._reads:
            given[name] = row[column] if conversion is None else conversion(row[column])
        for name, part in self._parts.items():
            missing = part._marker is not None and row[part._marker] is None
            given[name] = None if missing else part.read(row)
        return self._kind(**given)

    def read_all(self, rows: Iterable[Sequence[Any]]) -> Iterator[Value]:
        """Return the values of rows that begin with the columns `selected`.

        Rows are read by position, not by name: a group can have a hundred thousand.
        """
        kind, conversions = self._kind, [conversion for _, _, conversion in self._reads]
        if not self._by_place:
            yield from (self.read(dict(zip(self.names, row, strict=False))) for row in rows)
            return
        for row in rows:
            pairs = zip(conversions, row, strict=False)
            yield kind(
                *[
                    stored if conversion is None else conversion(stored)
                    for conversion, stored in pairs
                ]
            )

    def values(self, value: Value) -> dict[str, Any]:
        """Return the columns of a value without its key."""
        return {name: each for name, each in self._all(value) if name not in self.key_names}

    def row(self, key: GroupKey, value: Value) -> dict[str, Any]:
        """Return the columns of a new row."""
        return key_values(key) | dict(self._all(value))

    def place(self, value: Value) -> dict[str, Any]:
        """Return the key of a value by field, as contents of columns."""
        return {name: self.bound(name, getattr(value, name)) for name in self.order}

    def _all(self, value: Value) -> Iterable[tuple[str, Any]]:
        for name, column, conversion in self._writes:
            each = getattr(value, name)
            if conversion is not None:
                each = conversion(each)
            elif isinstance(each, Enum):
                each = each.value
            yield column, each
        for name, part in self._parts.items():
            own = getattr(value, name)
            yield from (part._absent if own is None else part.values(own)).items()

    def field(self, name: str, stored: Any) -> Any:
        """Return the value of a field from its column's content."""
        conversion = self._readers.get(name)
        return stored if conversion is None else conversion(stored)

    def column(self, name: str) -> sa.Column[Any]:
        """Return the column of a field."""
        return self.table.c[self._names.get(name, name)]

    def bound(self, name: str, value: Any) -> Any:
        """Return the content of a field's column."""
        conversion = self._writers.get(name)
        return (
            conversion(value) if conversion else value.value if isinstance(value, Enum) else value
        )

    def where(self, key: GroupKey, conditions: Mapping[str, Any]) -> sa.ColumnElement[bool]:
        """Return the rows of a group that meet the conditions of `lease_store.stored_rows`."""
        own = (self._condition(*each) for each in conditions.items())
        return sa.and_(of_group(self.table, key), *own)

    def _condition(self, name: str, value: Any) -> sa.ColumnElement[bool]:
        column = self.column(name)
        match value:
            case range():
                return sa.and_(column >= value.start, column < value.stop)
            case set() | frozenset():
                return column.in_(sorted(self.bound(name, each) for each in value))
            case Above():
                return column > value.value
            case Below():
                return column < value.value
            case bool():
                return column.is_(value)
            case _:
                return column == self.bound(name, value)

    def beyond(self, last: Value, *, newest_first: bool) -> list[sa.ColumnElement[bool]]:
        """Return the conditions of the rows after one, in the order of keys."""
        place = [(self.column(name), value) for name, value in self.place(last).items()]
        return [
            sa.and_(
                *(column == value for column, value in place[:at]),
                place[at][0] < place[at][1] if newest_first else place[at][0] > place[at][1],
            )
            for at in reversed(range(len(place)))
        ]

    def changed(self, changes: Mapping[str, Any]) -> dict[str, Any]:
        """Return the changes of columns for changes of fields."""
        return {
            self.column(name).name: self.column(name) + value.value
            if isinstance(value, Plus)
            else self.bound(name, value)
            for name, value in changes.items()
        }


def key_values(key: GroupKey) -> dict[str, Any]:
    """Return the first two columns of every key."""
    return {"consume_group": key.group, "logstream_sig": key.stream}


@lru_cache(_NAMES_KEPT)
def of_group(table: sa.Table, key: GroupKey) -> sa.ColumnElement[bool]:
    """Return the condition for the rows of a group."""
    return sa.and_(*(table.c[name] == value for name, value in key_values(key).items()))


# The rows of a ledger repeat the same shards and nodes.
_SHARD, _NODE = lru_cache(_NAMES_KEPT)(ShardId), lru_cache(_NAMES_KEPT)(NodeName)
# The defaults for all kinds.
_COLUMNS = {"shard": "shard_id", "start": "start_cursor", "end": "end_cursor", "at": "recorded_at"}
_JSON: Mapping[str, Any] = {
    "added": tuple[DataFile, ...],
    "columns": tuple[dict[str, Any], ...],
    "covered": dict[ShardId, int],
    "entries": dict[str, int],
    "expired": Expired,
    "facts": dict[str, Any],
    "failures": tuple[CheckFailure, ...],
    "files": tuple[DataFile, ...],
    "gone_parents": tuple[ShardId, ...],
    "parents": tuple[ShardId, ...],
    "payload": dict[str, Any],
    "pending": PlannedPublication,
    "pinned": dict[ShardId, str | None],
    "removed": tuple[str, ...],
    "skips": tuple[tuple[str, str], ...],
    "suspicion": Suspicion,
    "violations": tuple[tuple[str, str], ...],
}
"""The types of the fields whose columns are JSON."""
_EMPTY_IS_NULL = ("columns", "facts", "failures", "gone_parents")
_READS: Conversions = {
    "shard": _SHARD,
    "holder": _NODE,
    **dict.fromkeys(("from_state", "to_state"), optional(ShardState)),
    **dict.fromkeys(("lease_owner", "consumer_owner", "from_owner", "to_owner"), optional(_NODE)),
}
_WRITES: Conversions = {"reason": lambda reason: reason[:REASON_LENGTH_MAX]}


NODE = Columns(
    Node, tables.worker_instance, named={"name": "worker_instance"}, reads={"name": _NODE}
)
_STATES = {state.value: state for state in ShardState}
SHARD = Columns(ShardLease, tables.shard_lease, reads={"state": _STATES.__getitem__})
PROGRESS = Columns(Progress)
ENTRY = Columns(JournalEntry, tables.lease_journal, reads={"shard": optional(_SHARD)})
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
_HOLD = Columns(
    ledger_rows.PublicationHold,
    named={
        "start": "held_from",
        "batch": "held_batch",
        "check": "held_by",
        "reason": "hold_reason",
        "at": "held_at",
    },
    absent=dict.fromkeys(("held_from", "held_batch", "held_by", "hold_reason", "held_at")),
)
COUNTERS = Columns(
    ledger_rows.LedgerCounters,
    tables.shard_lease,
    named={"version": "ledger_version", "rows": "ledger_rows"},
    parts={"totals": _TOTALS, "hold": _HOLD},
)
# The sum of integers is a decimal in MariaDB.
THROUGHPUT = Columns(ledger_rows.Throughput, reads={"records": int})
CLAIM = Columns(
    ledger_rows.RewriteClaim,
    tables.rewrite_claim,
    named={"at": "claimed_at"},
    reads={"kind": ledger_rows.RewriteKind},
    parts={
        "compacted": Columns(
            ledger_rows.Compacted,
            named={"until": "compacted_until", "examined_until": "looked_until"},
        )
    },
)
ATTEMPT = Columns(WindowAttempt, tables.window_attempt, named={"at": "begun_at"})
_HOLDER_NAMED = {"node": "worker_instance"}
_HOLDER_READS: Conversions = {"node": lambda name: NodeName(name) if name else None}
_HOLDER_WRITES: Conversions = {"node": lambda name: name or ""}
LOCK = Columns(
    DeliveryLock,
    tables.delivery_claim,
    named=_HOLDER_NAMED,
    reads=_HOLDER_READS,
    writes=_HOLDER_WRITES,
)
LOG = Columns(LogIdentity, tables.log_identity)
WINDOW = Columns(
    EventWindow,
    tables.event_window,
    named={"start": "window_start", "end": "window_end", "computed_at": "made_at"},
)
_NOTE = Columns(Note)
_STATISTICS = Columns(ledger_rows.BatchStatistics)
BATCH = Columns(
    ledger_rows.Batch,
    tables.batch,
    parts={"statistics": _STATISTICS},
    reads={"state": ledger_rows.BatchState},
)


_OPENING = Columns(
    Opening,
    named={
        "sequence": "opened",
        "epoch": "opened_epoch",
        "run": "opened_run",
        "owner": "opened_by",
    },
    reads={"owner": optional(_NODE)},
    absent={"opened": None, "opened_epoch": None, "opened_run": "", "opened_by": None},
)
_TABLE_COLUMNS = Columns(
    TableColumns, named={"version": "columns_version", "columns": "table_columns"}
)
TABLE = Columns(
    TableName,
    named={"catalog": "catalog_name", "namespace": "table_namespace", "name": "table_name"},
    absent={"table_name": None, "catalog_name": None, "table_namespace": None},
)
_KEY = Columns(
    GroupKey,
    named={"group": "consume_group", "stream": "logstream_sig"},
    reads={
        "group": lru_cache(_NAMES_KEPT)(GroupName),
        "stream": lru_cache(_NAMES_KEPT)(StreamName),
    },
)
GROUP = Columns(
    Group,
    key=("consume_group", "logstream_sig", "generation"),
    parts={"key": _KEY},
    reads={"assignment": AssignmentMode, "gap_policy": GapPolicy},
)
PUBLICATION = Columns(
    Publication,
    tables.publication,
    without=("changes_pending",),
    named=_HOLDER_NAMED
    | {"last": "last_publication", "snapshot": "snapshot_id", "at": "published_at"},
    reads=_HOLDER_READS,
    writes=_HOLDER_WRITES,
    parts={"key": _KEY, "table": TABLE, "columns": _TABLE_COLUMNS},
)
CHANGE = Columns(
    TableChange, tables.table_change, named={"first": "first_batch"}, reads={"kind": ChangeKind}
)
_SUMMARY = Columns(
    ShardSummary,
    tables.shard_summary,
    parts={"opening": _OPENING},
    reads={"shard": lambda text: ShardId(text) if text else None},
    writes={"shard": lambda shard: shard or ""},
)


def note_row(
    key: GroupKey, note: Note, *, observer: str, at: datetime, transaction_id: str
) -> dict[str, Any]:
    """Return a new journal row."""
    return _NOTE.row(key, note) | {
        "observer": observer.encode()[:NAME_LENGTH_MAX].decode(errors="ignore"),
        "recorded_at": at,
        "transaction_id": transaction_id,
    }


def moved_values(row: ShardLease, commit: ledger_rows.BatchCommit) -> dict[str, Any]:
    """Return the parameters that move a shard's checkpoint by a batch."""
    return {
        "seen_shard": row.shard,
        "seen_owner": row.consumer_owner,
        "seen_epoch": row.consumer_epoch,
        "seen_run": row.consumer_run,
        "check_point": row.check_point,
        "watermark": row.watermark,
        "tries": row.tries,
        "suspicion": SHARD.bound("suspicion", row.suspicion),
        "committed_until": commit.sequence + 1,
        "more_committed_batches": 1,
        "more_committed_records": commit.statistics.written,
        "more_committed_bytes": commit.statistics.bytes or 0,
        "more_quarantined_records": commit.statistics.quarantined,
        "more_ledger_rows": 1,
    }


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
