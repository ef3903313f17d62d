"""Between the columns of tables and frozen values, in both directions, by their names."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, fields
from datetime import datetime
from enum import Enum
from typing import Any, Generic, Protocol, TypeVar

import sqlalchemy as sa

from dagster_leasehold.lease_store import ledger_rows, tables
from dagster_leasehold.lease_store.columns import NAME_LENGTH_MAX
from dagster_leasehold.lease_store.group_rows import AssignmentMode, GapPolicy, Group, Node
from dagster_leasehold.lease_store.identifiers import GroupKey, NodeName, ShardId
from dagster_leasehold.lease_store.journal_rows import Gap, JournalEntry, Note, OutboxEvent
from dagster_leasehold.lease_store.rules.isolation import suspicion_from, suspicion_values
from dagster_leasehold.lease_store.rules.journal_proof import End, Opening
from dagster_leasehold.lease_store.rules.states import ShardState
from dagster_leasehold.lease_store.shard_rows import Progress, ShardLease
from dagster_leasehold.lease_store.shard_summary import Expired, ShardSummary
from dagster_leasehold.lease_store.stored_rows import (
    KEYS,
    Above,
    Below,
    DeliveryTurn,
    LogIdentity,
    Plus,
)
from dagster_leasehold.lease_store.times import stored_time, time_text
from dagster_leasehold.lease_store.window_rows import EventWindow, WindowAttempt

GROUP_PREFIX = "group_"
REASON_LENGTH_MAX = 1_000
FILE_TIMES = ("first_event_time", "last_event_time")

Row = Mapping[Any, Any]
Ways = Mapping[str, Callable[[Any], Any]]
Value = TypeVar("Value")


COLUMNS: dict[type, Columns[Any]] = {}
"""The columns of each kind of row."""


class Part(Protocol):
    """A field that is made of several columns."""

    def read(self, row: Row) -> Any:
        """Return the field of a row."""
        ...

    def values(self, value: Any) -> dict[str, Any]:
        """Return what is in the columns of a field."""
        ...


class Columns(Generic[Value]):
    """The columns that hold the fields of one kind of value.

    Args:
        kind: the dataclass.
        key: its fields that belong to the row's key, behind the group.
        without: its fields that have no column of their own; whoever reads gives them.
        named: the columns of fields, where their names differ.
        reads: makes a field of what is in its column, where they differ.
        writes: makes what is in the column of a field, likewise.
        table: the table of the rows of this kind, of which there is one.
        parts: makes a field of several columns, and several columns of it.
    """

    def __init__(
        self,
        kind: type[Value],
        table: sa.Table | None = None,
        *,
        key: tuple[str, ...] = (),
        without: tuple[str, ...] = (),
        named: Mapping[str, str] | None = None,
        reads: Ways | None = None,
        writes: Ways | None = None,
        parts: Mapping[str, Part] | None = None,
    ) -> None:
        columns = {**_COLUMNS, **(named or {})}
        reads, writes = {**_READS, **(reads or {})}, {**_WRITES, **(writes or {})}
        each = (field.name for field in fields(kind))  # pyright: ignore[reportArgumentType]
        self._parts = parts or {}
        names = [name for name in each if name not in {*without, *self._parts}]
        self._kind: Callable[..., Value] = kind
        self._reads = [(name, columns.get(name, name), reads.get(name)) for name in names]
        self._writes = [(name, columns.get(name, name), writes.get(name)) for name in names]
        self._key = {columns.get(name, name) for name in key or KEYS.get(kind, ())}
        self._names = columns
        self._ways = {name: way for name, _, way in self._writes}
        self.names = [column for _, column, _ in self._reads]
        if table is not None:
            self.table = table
            self.order = KEYS[kind]
            own = table.c if self._parts else (table.c[name] for name in self.names)
            self.selected = [_text(column) for column in own]
            COLUMNS[kind] = self

    def read(self, row: Row, **given: Any) -> Value:
        """Return the value of a row."""
        for name, column, way in self._reads:
            given[name] = row[column] if way is None else way(row[column])
        for name, part in self._parts.items():
            given[name] = part.read(row)
        return self._kind(**given)

    def values(self, value: Value) -> dict[str, Any]:
        """Return what the row of a value holds, its key aside."""
        return {name: each for name, each in self._all(value) if name not in self._key}

    def row(self, key: GroupKey, value: Value) -> dict[str, Any]:
        """Return what a new row holds."""
        return key_values(key) | dict(self._all(value))

    def _all(self, value: Value) -> Iterable[tuple[str, Any]]:
        for name, column, way in self._writes:
            each = getattr(value, name)
            if way is not None:
                each = way(each)
            elif isinstance(each, Enum):
                each = each.value
            yield column, each
        for name, part in self._parts.items():
            yield from part.values(getattr(value, name)).items()

    def column(self, name: str) -> sa.Column[Any]:
        """Return the column of a field."""
        return self.table.c[self._names.get(name, name)]

    def bound(self, name: str, value: Any) -> Any:
        """Return what a field's value is in its column."""
        way = self._ways.get(name)
        return way(value) if way else value.value if isinstance(value, Enum) else value

    def where(self, key: GroupKey, conditions: Mapping[str, Any]) -> sa.ColumnElement[bool]:
        """Return the rows of a group that meet the conditions of `lease_store.stored_rows`."""
        of_key = (self.table.c[name] == value for name, value in key_values(key).items())
        return sa.and_(*of_key, *(self._condition(*each) for each in conditions.items()))

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
        """Return the rows after one in the order of keys, as conditions one after the other."""
        place = [(self.column(name), self.bound(name, getattr(last, name))) for name in self.order]
        return [
            sa.and_(
                *(column == value for column, value in place[:at]),
                place[at][0] < place[at][1] if newest_first else place[at][0] > place[at][1],
            )
            for at in reversed(range(len(place)))
        ]

    def changed(self, changes: Mapping[str, Any]) -> dict[str, Any]:
        """Return changes of fields as those of columns."""
        return {
            self.column(name).name: self.column(name) + value.value
            if isinstance(value, Plus)
            else self.bound(name, value)
            for name, value in changes.items()
        }


def key_values(key: GroupKey) -> dict[str, Any]:
    """Return the first two columns of every key."""
    return {"consume_group": key.group, "logstream_sig": key.stream}


def _text(column: sa.Column[Any]) -> sa.ColumnElement[Any]:
    """Return a column, or its text where the JSON is decoded when the transaction is over."""
    decoded = column.name not in ("files", "removed", "added")
    return column if decoded else sa.type_coerce(column, sa.Text).label(column.name)


def _optional(way: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda stored: None if stored is None else way(stored)


def _shard_ids(stored: list[str] | None) -> tuple[ShardId, ...]:
    return tuple(map(ShardId, stored or ()))


def _by_shard(stored: Mapping[str, Any]) -> dict[ShardId, Any]:
    return {ShardId(shard): value for shard, value in stored.items()}


def _pairs(stored: list[list[str]]) -> tuple[tuple[str, ...], ...]:
    return tuple(map(tuple, stored))


def file_values(files: Iterable[ledger_rows.DataFile]) -> list[dict[str, Any]]:
    """Return files as the ledger's JSON holds them; what is not known of times is left out."""
    # An hour has thousands of files: pendulum would take longer for their times than the database
    # for their rows, and nobody reads them here.
    values = [asdict(file) for file in files]
    for each in values:
        if each["untimed"] is None:
            del each["untimed"]
        for name in FILE_TIMES:
            time = each.pop(name)
            if time is not None:
                each[name] = time.isoformat()
    return values


def files_from(stored: str | list[dict[str, Any]]) -> tuple[ledger_rows.DataFile, ...]:
    """Return files from the ledger's JSON, or from its text where that is not decoded yet."""
    rows = json.loads(stored) if isinstance(stored, str) else stored
    return tuple(ledger_rows.DataFile(**row | _file_times(row)) for row in rows)


def _file_times(row: Mapping[str, str]) -> dict[str, Any]:
    return {name: datetime.fromisoformat(row[name]) for name in FILE_TIMES if name in row}


def _expired_values(expired: Expired) -> dict[str, Any]:
    return asdict(expired.last) | {
        "batches": expired.batches,
        "records": expired.records,
        "events_since": expired.events_since and time_text(expired.events_since),
        "events_until": expired.events_until and time_text(expired.events_until),
    }


def _expired_from(values: Mapping[str, Any]) -> Expired:
    since, until = values["events_since"], values["events_until"]
    return Expired(
        last=End(values["number"], values["cursor"], values["epoch"]),
        batches=values["batches"],
        records=values["records"],
        events_since=since and stored_time(since),
        events_until=until and stored_time(until),
    )


# These hold for the fields of all kinds, where a kind does not say otherwise.
_COLUMNS = {"shard": "shard_id", "start": "start_cursor", "end": "end_cursor", "at": "recorded_at"}
_READS: Ways = {
    "shard": ShardId,
    "holder": NodeName,
    "files": files_from,
    "facts": lambda facts: facts or {},
    "suspicion": suspicion_from,
    **dict.fromkeys(("parents", "gone_parents"), _shard_ids),
    **dict.fromkeys(("from_state", "to_state"), _optional(ShardState)),
    **dict.fromkeys(
        ("lease_owner", "consumer_owner", "from_owner", "to_owner"), _optional(NodeName)
    ),
}
_WRITES: Ways = {
    "files": file_values,
    "facts": lambda facts: dict(facts) or None,
    "suspicion": suspicion_values,
    "gone_parents": lambda parents: parents or None,
    "reason": lambda reason: reason[:REASON_LENGTH_MAX],
}

NODE = Columns(
    Node,
    tables.worker_instance,
    named={"name": "worker_instance"},
    reads={"name": NodeName, "pinned": _optional(_by_shard)},
)
SHARD = Columns(ShardLease, tables.shard_lease, reads={"state": ShardState})
PROGRESS = Columns(Progress)
ENTRY = Columns(JournalEntry, tables.lease_journal, reads={"shard": _optional(ShardId)})
GAP = Columns(Gap, tables.gap, key=("shard",))
EVENT = Columns(OutboxEvent, tables.outbox)
TOTALS = Columns(
    ledger_rows.ShardTotals,
    tables.shard_lease,
    named={
        "batches": "committed_batches",
        "records": "committed_records",
        "bytes": "committed_bytes",
        "quarantined": "quarantined_records",
    },
)
# MariaDB adds integers up to a decimal.
THROUGHPUT = Columns(ledger_rows.Throughput, reads={"records": int})
CLAIM = Columns(
    ledger_rows.RewriteClaim,
    tables.rewrite_claim,
    named={"at": "claimed_at"},
    reads={"kind": ledger_rows.RewriteKind},
)
COMPACTED = Columns(ledger_rows.Compacted, named={"until": "compacted_until"})
ATTEMPT = Columns(WindowAttempt, tables.window_attempt, named={"at": "begun_at"})
TURN = Columns(
    DeliveryTurn,
    tables.delivery_claim,
    named={"node": "worker_instance"},
    reads={"node": lambda name: NodeName(name) if name else None},
    writes={"node": lambda name: name or ""},
)
LOG = Columns(LogIdentity, tables.log_identity)
WINDOW = Columns(
    EventWindow,
    tables.event_window,
    named={"start": "window_start", "end": "window_end"},
    reads={"covered": _by_shard},
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


_SUMMARY = Columns(
    ShardSummary,
    tables.shard_summary,
    parts={"opening": _Opening()},
    reads={
        "shard": lambda text: ShardId(text) if text else None,
        "skips": _pairs,
        "violations": _pairs,
        "expired": _optional(_expired_from),
    },
    writes={
        "shard": lambda shard: shard or "",
        "entries": dict,
        "expired": _optional(_expired_values),
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


def output_values(
    files: tuple[ledger_rows.DataFile, ...], statistics: ledger_rows.BatchStatistics
) -> dict[str, Any]:
    """Return the columns of a ledger row that describe the batch's output."""
    return {"files": file_values(files)} | _STATISTICS.values(statistics)


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


def event_row(key: GroupKey, event: OutboxEvent, at: datetime) -> dict[str, Any]:
    """Return a new event's row; `at` is for the judgement of its age once it is delivered."""
    return key_values(key) | EVENT.values(event) | {"delivered": False, "recorded_at": at}


def summary_values(summary: ShardSummary) -> dict[str, Any]:
    """Return what a summary's row holds, its key aside."""
    return _SUMMARY.values(summary)


def summary_from(row: Row) -> ShardSummary:
    """Return a summary from its row."""
    return _SUMMARY.read(row)
