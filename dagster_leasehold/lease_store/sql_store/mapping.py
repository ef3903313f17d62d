"""Convert rows of tables to frozen values and back, by the names of their columns."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, fields
from datetime import datetime
from enum import Enum
from functools import lru_cache
from typing import Any, Generic, Protocol, TypeVar

import sqlalchemy as sa

from dagster_leasehold.lease_store import ledger_rows, tables
from dagster_leasehold.lease_store.columns import NAME_LENGTH_MAX
from dagster_leasehold.lease_store.group_rows import AssignmentMode, GapPolicy, Group, Node
from dagster_leasehold.lease_store.identifiers import GroupKey, NodeName, ShardId
from dagster_leasehold.lease_store.journal_rows import Gap, JournalEntry, Note, OutboxEvent
from dagster_leasehold.lease_store.ledger_rows import DataFile
from dagster_leasehold.lease_store.publication_rows import (
    ChangeKind,
    PlannedPublication,
    Publication,
    PublishedRange,
    TableChange,
    TableColumns,
    TableName,
)
from dagster_leasehold.lease_store.rules.isolation import Suspicion
from dagster_leasehold.lease_store.rules.states import ShardState
from dagster_leasehold.lease_store.shard_rows import Progress, ShardLease
from dagster_leasehold.lease_store.shard_summary import End, Expired, Opening, ShardSummary
from dagster_leasehold.lease_store.stored_rows import (
    KEYS,
    Above,
    Below,
    DeliveryLock,
    LogIdentity,
    Plus,
)
from dagster_leasehold.lease_store.times import stored_time, time_text
from dagster_leasehold.lease_store.window_rows import EventWindow, WindowAttempt

FILE_TIMES = ("first_event_time", "last_event_time")
GROUP_PREFIX = "group_"
REASON_LENGTH_MAX = 1_000
_NAMES_KEPT = 8_192

Row = Mapping[Any, Any]
Ways = Mapping[str, Callable[[Any], Any]]
Value = TypeVar("Value")


def optional(way: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return the same way for a column that can be null."""
    return lambda stored: None if stored is None else way(stored)


def shard_ids(stored: list[str] | None) -> tuple[ShardId, ...]:
    """Return the shards of a list."""
    return tuple(map(ShardId, stored or ()))


def by_shard(stored: Mapping[str, Any]) -> dict[ShardId, Any]:
    """Return values by shard."""
    return {ShardId(shard): value for shard, value in stored.items()}


def pairs(stored: list[list[str]]) -> tuple[tuple[str, ...], ...]:
    """Return pairs, which JSON has as lists."""
    return tuple(map(tuple, stored))


def file_values(files: Iterable[DataFile]) -> list[dict[str, Any]]:
    """Return files as the ledger's JSON holds them; what is not known of times is left out."""
    # An hour has thousands of files: pendulum would take longer for their times than the database
    # for their rows, and they are not read here.
    values = [asdict(file) for file in files]
    for each in values:
        if each["untimed"] is None:
            del each["untimed"]
        for name in FILE_TIMES:
            time = each.pop(name)
            if time is not None:
                each[name] = time.isoformat()
    return values


def files_from(stored: str | list[dict[str, Any]]) -> tuple[DataFile, ...]:
    """Return files from the ledger's JSON, or from its text where that is not decoded yet."""
    rows = json.loads(stored) if isinstance(stored, str) else stored
    return tuple(DataFile(**row | _file_times(row)) for row in rows)


def _file_times(row: Mapping[str, str]) -> dict[str, Any]:
    return {name: datetime.fromisoformat(row[name]) for name in FILE_TIMES if name in row}


def expired_values(expired: Expired) -> dict[str, Any]:
    """Return expired output as a summary's JSON holds it."""
    return asdict(expired.last) | {
        "batches": expired.batches,
        "records": expired.records,
        "events_since": expired.events_since and time_text(expired.events_since),
        "events_until": expired.events_until and time_text(expired.events_until),
    }


def expired_from(values: Mapping[str, Any]) -> Expired:
    """Return expired output from a summary's JSON."""
    since, until = values["events_since"], values["events_until"]
    return Expired(
        last=End(values["number"], values["cursor"], values["epoch"]),
        batches=values["batches"],
        records=values["records"],
        events_since=since and stored_time(since),
        events_until=until and stored_time(until),
    )


def suspicion_values(suspicion: Suspicion | None) -> dict[str, Any] | None:
    """Return a suspicion as the shard's row stores it."""
    if suspicion is None:
        return None
    at = suspicion.error_at
    return asdict(suspicion) | {"error_at": None if at is None else at.isoformat()}


def suspicion_from(stored: Mapping[str, Any] | None) -> Suspicion | None:
    """Return what `suspicion_values` was made of."""
    if stored is None:
        return None
    at = stored.get("error_at")
    others = {name: value for name, value in stored.items() if name != "error_at"}
    return Suspicion(**others, error_at=None if at is None else datetime.fromisoformat(at))


def planned_from(values: Mapping[str, Any]) -> PlannedPublication:
    """Return a publication from the JSON of a pending one."""
    ranges = (each | {"shard": ShardId(each["shard"])} for each in values["ranges"])
    lists: dict[str, Any] = {
        "ranges": tuple(PublishedRange(**each) for each in ranges),
        "changes": tuple(values["changes"]),
    }
    return PlannedPublication(**{**values, **lists})


COLUMNS: dict[type, Columns[Any]] = {}
"""The columns of each kind of row."""


class Part(Protocol):
    """A field that is made of several columns."""

    @property
    def names(self) -> Sequence[str]:
        """The names of the columns."""
        ...

    def read(self, row: Row) -> Any:
        """Return the field of a row."""
        ...

    def values(self, value: Any) -> dict[str, Any]:
        """Return the content of a field's columns."""
        ...


class Columns(Generic[Value]):
    """The columns that hold the fields of one kind of value.

    Args:
        kind: the dataclass.
        key: its fields that belong to the row's key, behind the group.
        without: its fields that have no column of their own; the reader adds them.
        named: the columns of fields, where their names differ.
        reads: turns a column's content into the field, where they differ.
        writes: turns the field into its column's content, likewise.
        table: the only table of the rows of this kind.
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
        each = fields(kind)  # pyright: ignore[reportArgumentType]
        self._parts = parts or {}
        names = [field.name for field in each if field.name not in {*without, *self._parts}]
        self._by_place = len(names) == len(each) and not any(field.kw_only for field in each)
        self._kind: Callable[..., Value] = kind
        self._reads = [(name, columns.get(name, name), reads.get(name)) for name in names]
        self._writes = [(name, columns.get(name, name), writes.get(name)) for name in names]
        self._key = {columns.get(name, name) for name in key or KEYS.get(kind, ())}
        self._names = columns
        self._ways = {name: way for name, _, way in self._writes}
        self._ways_in = {name: way for name, _, way in self._reads}
        own = (column for _, column, _ in self._reads)
        of_parts = (name for part in self._parts.values() for name in part.names)
        self.names = list(dict.fromkeys([*own, *of_parts]))
        if table is not None:
            self.table = table
            self.order = KEYS[kind]
            self.selected = [_text(table.c[name]) for name in self.names]
            COLUMNS[kind] = self

    def read(self, row: Row, **given: Any) -> Value:
        """Return the value of a row."""
        for name, column, way in self._reads:
            given[name] = row[column] if way is None else way(row[column])
        for name, part in self._parts.items():
            given[name] = part.read(row)
        return self._kind(**given)

    def read_all(self, rows: Iterable[Sequence[Any]]) -> Iterator[Value]:
        """Return the values of rows that begin with the columns `selected`.

        A group has a hundred thousand rows: they are read by their places, not by their names.
        """
        kind, ways = self._kind, [way for _, _, way in self._reads]
        if not self._by_place:
            yield from (self.read(dict(zip(self.names, row, strict=False))) for row in rows)
            return
        for row in rows:
            pairs = zip(ways, row, strict=False)
            yield kind(*[stored if way is None else way(stored) for way, stored in pairs])

    def values(self, value: Value) -> dict[str, Any]:
        """Return the columns of a value's row without its key."""
        return {name: each for name, each in self._all(value) if name not in self._key}

    def row(self, key: GroupKey, value: Value) -> dict[str, Any]:
        """Return the columns of a new row."""
        return key_values(key) | dict(self._all(value))

    def place(self, value: Value) -> dict[str, Any]:
        """Return the key of a value, by field, as it is in its columns."""
        return {name: self.bound(name, getattr(value, name)) for name in self.order}

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

    def field(self, name: str, stored: Any) -> Any:
        """Return the value of a field from its column's content."""
        way = self._ways_in.get(name)
        return stored if way is None else way(stored)

    def column(self, name: str) -> sa.Column[Any]:
        """Return the column of a field."""
        return self.table.c[self._names.get(name, name)]

    def bound(self, name: str, value: Any) -> Any:
        """Return the content of a field's column."""
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
        place = [(self.column(name), value) for name, value in self.place(last).items()]
        return [
            sa.and_(
                *(column == value for column, value in place[:at]),
                place[at][0] < place[at][1] if newest_first else place[at][0] > place[at][1],
            )
            for at in reversed(range(len(place)))
        ]

    def changed(self, changes: Mapping[str, Any]) -> dict[str, Any]:
        """Return changes of fields as changes of columns."""
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


# A ledger names the same shards and nodes in all of its rows.
_SHARD, _NODE = lru_cache(_NAMES_KEPT)(ShardId), lru_cache(_NAMES_KEPT)(NodeName)
# These hold for the fields of all kinds, where a kind does not say otherwise.
_COLUMNS = {"shard": "shard_id", "start": "start_cursor", "end": "end_cursor", "at": "recorded_at"}
_READS: Ways = {
    "shard": _SHARD,
    "holder": _NODE,
    "files": files_from,
    "facts": lambda facts: facts or {},
    "suspicion": suspicion_from,
    **dict.fromkeys(("parents", "gone_parents"), shard_ids),
    **dict.fromkeys(("from_state", "to_state"), optional(ShardState)),
    **dict.fromkeys(("lease_owner", "consumer_owner", "from_owner", "to_owner"), optional(_NODE)),
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
    reads={"name": _NODE, "pinned": optional(by_shard)},
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
    named={"start": "window_start", "end": "window_end"},
    reads={"covered": by_shard},
    writes={"covered": dict},
)
_SETTINGS = Columns(
    Group,
    without=("key", "generation"),
    reads={"assignment": AssignmentMode, "gap_policy": GapPolicy},
)
GROUP_NAMES = (*_SETTINGS.names, "consume_group", "logstream_sig", "generation")
"""The columns that a group is made of."""
_NOTE = Columns(Note)
_STATISTICS = Columns(ledger_rows.BatchStatistics)
BATCH = Columns(
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
    """The columns that a group has agreed on for its files."""

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
