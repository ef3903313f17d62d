"""Rows of one group in one transaction in memory, and the transactions of the store in memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import (
    Callable,
    Collection,
    Iterable,
    Iterator,
    Mapping,
    MutableMapping,
    Sequence,
)
from copy import copy
from dataclasses import dataclass, field, fields, replace
from datetime import datetime
from functools import partial
from itertools import islice
from operator import attrgetter, eq, gt, lt
from threading import RLock
from typing import Any, Generic, TypeVar

from typing_extensions import override

from dagster_leasehold.lease_store.group_rows import Group, Node, Pulse
from dagster_leasehold.lease_store.identifiers import GroupKey, NodeName, ShardId, StreamName
from dagster_leasehold.lease_store.journal_rows import (
    EventKind,
    JournalEntry,
    Note,
    OutboxEvent,
    WaitingEvents,
)
from dagster_leasehold.lease_store.ledger_rows import (
    Batch,
    BatchCommit,
    BatchState,
    LedgerCounters,
    LedgerHead,
    ShardTotals,
    Throughput,
)
from dagster_leasehold.lease_store.outcomes import Beaten, BeatRefused, Changed
from dagster_leasehold.lease_store.publication_rows import (
    PointerMove,
    Publication,
    ShardLag,
    TableChange,
    TableName,
    TablePointer,
)
from dagster_leasehold.lease_store.rules.ledger import next_in_line
from dagster_leasehold.lease_store.rules.refusals import unknown_group
from dagster_leasehold.lease_store.rules.transitions import Step
from dagster_leasehold.lease_store.rules.withdrawal import NUMBERS_END
from dagster_leasehold.lease_store.shard_rows import Progress, ShardLease
from dagster_leasehold.lease_store.stored_rows import (
    KEYS,
    NO_GROUP,
    NUMBERED,
    Above,
    Below,
    Plus,
    given,
)
from dagster_leasehold.lease_store.times import utc_now

Outcome = TypeVar("Outcome")
Shard = TypeVar("Shard")
Value = TypeVar("Value")


class ByShard(MutableMapping[tuple[Shard, int], Value], Generic[Shard, Value]):
    """Numbered rows by shard: an operation on one shard reads only that shard's rows."""

    __slots__ = ("_shards",)

    def __init__(self) -> None:
        self._shards: dict[Shard, dict[int, Value]] = {}

    @override
    def __getitem__(self, key: tuple[Shard, int]) -> Value:
        shard, number = key
        rows = self._shards.get(shard)
        if rows is None:
            raise KeyError(key)
        return rows[number]

    @override
    def __setitem__(self, key: tuple[Shard, int], row: Value) -> None:
        shard, number = key
        self._shards.setdefault(shard, {})[number] = row

    @override
    def __delitem__(self, key: tuple[Shard, int]) -> None:
        shard, number = key
        del self._shards[shard][number]

    @override
    def __iter__(self) -> Iterator[tuple[Shard, int]]:
        return ((shard, number) for shard, rows in self._shards.items() for number in rows)

    @override
    def __len__(self) -> int:
        return sum(map(len, self._shards.values()))

    def of(self, shard: Shard) -> list[Value]:
        """Return the rows of one shard, by number."""
        rows = self._shards.get(shard, {})
        return [rows[number] for number in sorted(rows)]

    def newest(self, shard: Shard) -> Value | None:
        """Return the row of a shard with the highest number, or None."""
        rows = self._shards.get(shard)
        return rows[max(rows)] if rows else None

    def all(self) -> list[Value]:
        """Return all rows, by shard and number."""
        return [row for shard in self._shards for row in self.of(shard)]

    def __copy__(self) -> ByShard[Shard, Value]:
        copied = ByShard[Shard, Value]()
        copied._shards = {shard: dict(rows) for shard, rows in self._shards.items()}
        return copied


@dataclass(slots=True)
class GroupRows:
    """All rows of one group, by kind and key. Rows are frozen, so a shallow copy is a backup."""

    group: Group
    beat_times: dict[NodeName, datetime] = field(default_factory=dict[NodeName, datetime])
    generations: dict[ShardId, int] = field(default_factory=dict[ShardId, int])
    tables: dict[type, MutableMapping[Any, Any]] = field(
        default_factory=lambda: {
            kind: ByShard[Any, Any]() if kind in (Batch, JournalEntry) else {} for kind in KEYS
        }
    )

    @property
    def nodes(self) -> MutableMapping[NodeName, Node]:
        return self.tables[Node]

    @property
    def shards(self) -> MutableMapping[ShardId, ShardLease]:
        return self.tables[ShardLease]

    @property
    def batches(self) -> ByShard[ShardId, Batch]:
        return self.tables[Batch]  # pyright: ignore[reportReturnType]

    @property
    def journal(self) -> ByShard[ShardId | None, JournalEntry]:
        return self.tables[JournalEntry]  # pyright: ignore[reportReturnType]

    @property
    def outbox(self) -> MutableMapping[int, OutboxEvent]:
        return self.tables[OutboxEvent]

    @property
    def counters(self) -> MutableMapping[ShardId, LedgerCounters]:
        return self.tables[LedgerCounters]

    def copy(self) -> GroupRows:
        """Return a copy of the rows as they are now."""
        tables = {kind: copy(rows) for kind, rows in self.tables.items()}
        return GroupRows(self.group, dict(self.beat_times), dict(self.generations), tables)


@dataclass(slots=True)
class AllRows:
    """All rows of a store in memory."""

    clock: Callable[[], datetime]
    groups: dict[GroupKey, GroupRows] = field(default_factory=dict[GroupKey, GroupRows])
    pointers: dict[TableName, TablePointer] = field(default_factory=dict[TableName, TablePointer])
    sequence: int = 0

    def next_sequence(self) -> int:
        """Return the next number of rows."""
        self.sequence += 1
        return self.sequence


class MemoryTransactions:
    """The transactions of a store in memory; each operation runs alone, under one lock."""

    def __init__(self, clock: Callable[[], datetime] = utc_now) -> None:
        self._clock = clock
        self._lock = RLock()
        self._all = AllRows(clock)
        self.statements: Counter[str] = Counter()

    @property
    def _groups(self) -> dict[GroupKey, GroupRows]:
        return self._all.groups

    @property
    def _pointers(self) -> dict[TableName, TablePointer]:
        return self._all.pointers

    def backup(self) -> object:
        """Return all rows as they are now, for `restore`."""
        with self._lock:
            return {key: rows.copy() for key, rows in self._groups.items()}, dict(self._pointers)

    def restore(self, backup: object) -> None:
        """Restore a backup, like a database that lost its last commits."""
        assert isinstance(backup, tuple)
        groups, pointers = backup
        with self._lock:
            self._all.groups = {key: rows.copy() for key, rows in groups.items()}
            self._all.pointers = dict(pointers)

    def close(self) -> None:
        """Do nothing, because a store in memory has no connections."""

    def _reading(
        self, kind: str, key: GroupKey | None, work: Callable[[RowsInMemory], Outcome]
    ) -> Outcome:
        return self._writing(kind, key, work)

    def _writing(
        self,
        kind: str,
        key: GroupKey | None,
        work: Callable[[RowsInMemory], Outcome],
        *,
        mark: Callable[[RowsInMemory], bool] | None = None,
    ) -> Outcome:
        del mark  # no reply is lost here
        with self._lock:
            self.statements[kind] += 1
            rows = RowsInMemory(self._all, key or NO_GROUP)
            try:
                outcome = work(rows)
            except BaseException:
                rows.undo()
                raise
            if rows.abandoned:
                rows.undo()
            return outcome


class RowsInMemory:
    """The rows of one group; `lease_store.sql_store.rows_in_sql` describes the methods.

    Every write adds its inverse to `_inverses`, to undo operations that raise or abandon.
    """

    def __init__(self, all_rows: AllRows, key: GroupKey) -> None:
        self.key = key
        self.abandoned = False
        self._all = all_rows
        self._bumped = False
        self._inverses: list[Callable[[], object]] = []

    def abandon(self, outcome: Outcome) -> Outcome:
        self.abandoned = True
        return outcome

    def undo(self) -> None:
        """Undo all writes."""
        while self._inverses:
            self._inverses.pop()()

    # -- rows of any kind -----------------------------------------------------------------------

    def select(
        self,
        kind: type[Value],
        /,
        *,
        newest_first: bool = False,
        limit: int | None = None,
        after: Value | None = None,
        lock: bool = False,
        **conditions: Any,
    ) -> Iterator[Value]:
        del lock
        rows = _meeting(self._candidates(kind, conditions), conditions)
        place = _order(kind)
        if len(rows) > 1:
            rows.sort(key=place, reverse=newest_first)
        if after is not None:
            last = place(after)
            beyond = lt if newest_first else gt
            rows = [row for row in rows if beyond(place(row), last)]
        return islice(rows, limit)

    def first(self, kind: type[Value], /, *, lock: bool = False, **conditions: Any) -> Value | None:
        return next(self.select(kind, lock=lock, **conditions), None)

    def values(
        self,
        kind: type,
        /,
        *fields: str,
        newest_first: bool = False,
        offset: int | None = None,
        limit: int | None = None,
        **conditions: Any,
    ) -> list[Any]:
        rows = self.select(kind, newest_first=newest_first, **conditions)
        end = None if limit is None else (offset or 0) + limit
        return [attrgetter(*fields)(row) for row in islice(rows, offset, end)]

    def add(self, *values: Any) -> None:
        for value in values:
            if isinstance(value, NUMBERED):
                sequence, at = self._all.next_sequence(), self._all.clock()
                self._put(replace(value, sequence=sequence, at=at))
            else:
                self._put(value)

    def write(self, *values: Any, **seen: Any) -> None:
        del seen
        for value in values:
            self._put(value)

    def change(self, kind: type, changes: Mapping[str, Any], /, **conditions: Any) -> int:
        rows = list(self.select(kind, **conditions))
        for row in rows:
            values = {
                name: getattr(row, name) + value.value if isinstance(value, Plus) else value
                for name, value in changes.items()
            }
            changed = replace(row, **values)
            if _place(changed) != _place(row):
                self._remove(self._table(kind), _place(row))
            self._put(changed)
        return len(rows)

    def delete(self, kind: type, /, **conditions: Any) -> int:
        rows = list(self.select(kind, **conditions))
        for row in rows:
            self._remove(self._table(kind), _place(row))
        return len(rows)

    def _table(self, kind: type) -> MutableMapping[Any, Any]:
        return self._state.tables[kind]

    def _candidates(self, kind: type, conditions: Mapping[str, Any]) -> Iterable[Any]:
        """Return all rows that meet the conditions, and few others."""
        table, shard = self._table(kind), conditions.get("shard")
        if isinstance(table, ByShard):
            if "shard" not in conditions:
                return table.all()
            shards = shard if isinstance(shard, set | frozenset) else [shard]
            number = conditions.get("sequence")
            if isinstance(number, int):
                return [row for each in shards if (row := table.get((each, number)))]
            return [row for each in shards for row in table.of(each)]
        (key, *more) = KEYS[kind] or (None,)
        if key is not None and not more and isinstance(conditions.get(key), str | int):
            row = table.get(conditions[key])
            return [] if row is None else [row]
        return table.values()

    def _put(self, value: Any) -> None:
        self._set(self._table(type(value)), _place(value), value)
        if isinstance(value, Node):
            self._set(self._state.beat_times, value.name, self._all.clock())
        if isinstance(value, ShardLease) and value.shard not in self._state.counters:
            self._put(LedgerCounters(value.shard, 0, 0, 0, 0, ShardTotals(value.shard)))
        if isinstance(value, ShardLease) and self._bumped:
            self._set(self._state.generations, value.shard, self.group().generation)

    def _set(self, table: MutableMapping[Any, Any], place: Any, value: Any) -> None:
        before = table.get(place)
        if before is None:
            self._inverses.append(lambda: table.pop(place))
        else:
            self._inverses.append(lambda: table.__setitem__(place, before))
        table[place] = value

    def _remove(self, table: MutableMapping[Any, Any], place: Any) -> None:
        before = table.pop(place, None)
        if before is not None:
            self._inverses.append(lambda: table.__setitem__(place, before))

    # -- the store and its groups ---------------------------------------------------------------

    @property
    def _state(self) -> GroupRows:
        if self.key not in self._all.groups:
            raise unknown_group(self.key)
        return self._all.groups[self.key]

    def group(self, *, lock: bool = False) -> Group:
        del lock
        return self._state.group

    def bump(self) -> None:
        before = self._state.group
        self.change_group(replace(before, generation=before.generation + 1))
        self._bumped = True

    def change_group(self, group: Group) -> None:
        state, before = self._state, self._state.group
        self._inverses.append(lambda: setattr(state, "group", before))
        state.group = group

    def store_identity(self) -> str | None:
        return None

    def add_store_identity(self, identity: str) -> str:
        return identity

    def groups(self, stream: StreamName | None, *, lock: bool = False) -> list[Group]:
        del lock
        groups = [state.group for state in self._all.groups.values()]
        selected = [group for group in groups if stream in (None, group.key.stream)]
        return sorted(selected, key=lambda group: (group.key.stream, group.key.group))

    def add_group(self, group: Group) -> None:
        self._set(self._all.groups, group.key, GroupRows(group))

    def delete_group(self) -> None:
        self._remove(self._all.groups, self.key)

    # -- the journal ----------------------------------------------------------------------------

    def journal(self, notes: Iterable[Note], observer: str) -> None:
        for note in notes:
            values = {field.name: getattr(note, field.name) for field in fields(note)}
            sequence, at = self._all.next_sequence(), self._all.clock()
            self._put(JournalEntry(**values, sequence=sequence, observer=observer, at=at))

    def journalled(self) -> bool:
        return True

    # -- nodes ----------------------------------------------------------------------------------

    def members(self) -> set[NodeName]:
        return {name for name, node in self._state.nodes.items() if node.member}

    def pulse(self, node: NodeName | None) -> Pulse:
        nodes = self.select(Node) if node is None else self.select(Node, name=node)
        return Pulse(self.group(), tuple(nodes))

    def beat(self, node: NodeName, incarnation: str) -> Beaten | BeatRefused:
        state = self._all.groups.get(self.key)
        row = state.nodes.get(node) if state is not None else None
        if row is None or not incarnation or row.incarnation != incarnation:
            return BeatRefused()
        self._put(replace(row, lease_id=row.lease_id + 1))
        return Beaten(row.lease_id + 1)

    def beat_ages(self) -> dict[NodeName, float]:
        state, now = self._all.groups.get(self.key), self._all.clock()
        if state is None:
            return {}
        members = sorted(self.members())
        return {node: (now - state.beat_times[node]).total_seconds() for node in members}

    # -- shards ---------------------------------------------------------------------------------

    def each_shard(self, *, lock: bool = False) -> Iterator[ShardLease]:
        return self.select(ShardLease, lock=lock)

    def changed_shards(self, since: int) -> Iterator[ShardLease]:
        numbers = self._state.generations
        return (row for row in self.each_shard() if numbers.get(row.shard, 0) > since)

    def shards(
        self, names: Collection[ShardId], *, lock: bool = False
    ) -> dict[ShardId, ShardLease]:
        del lock
        table = self._state.shards
        return {name: table[name] for name in sorted(names) if name in table}

    def shards_of(self, node: NodeName) -> list[ShardId]:
        rows = self._state.shards.values()
        return [row.shard for row in rows if node in (row.consumer_owner, row.lease_owner)]

    def progress(self, nodes: Collection[NodeName]) -> Iterator[Progress]:
        return (Progress.of(row) for row in self.each_shard() if row.consumer_owner in nodes)

    def review(self, names: Collection[ShardId]) -> tuple[bool, dict[ShardId, ShardLease]]:
        return self.group().paused, self.shards(names)

    def carry_out(self, steps: Collection[Step], observer: str) -> Changed:
        self.add(*(step.after for step in steps))
        self.journal([note for step in steps for note in step.notes], observer)
        return Changed(tuple(step.after.shard for step in steps))

    # -- the ledger -----------------------------------------------------------------------------

    def newest(self, shards: Collection[ShardId]) -> dict[ShardId, Batch]:
        rows = {shard: self._state.batches.newest(shard) for shard in shards}
        return {shard: row for shard, row in rows.items() if row is not None}

    def heads(self, shards: Collection[ShardId]) -> Iterator[LedgerHead]:
        newest = self.newest(shards)
        for row in self.shards(shards).values():
            number, intent = next_in_line(newest.get(row.shard))
            run = intent.run if intent else None
            version = self._state.counters[row.shard].version
            yield LedgerHead(row.shard, row.check_point, number, run, version)

    def throughput(self, since: Mapping[ShardId, int]) -> Iterator[Throughput]:
        for shard in sorted(since):
            own = range(since[shard], NUMBERS_END)
            late = [*self.select(Batch, shard=shard, sequence=own, state=BatchState.COMMITTED)]
            times = [batch.committed_at for batch in late if batch.committed_at]
            counted = (batch.statistics for batch in late)
            read = (each.written if each.records is None else each.records for each in counted)
            if times:
                yield Throughput(shard, len(late), sum(read), min(times), max(times))

    def numbered(self, numbers: Mapping[ShardId, int]) -> dict[ShardId, Batch]:
        rows = {shard: self._state.batches.get((shard, numbers[shard])) for shard in numbers}
        return {shard: row for shard, row in rows.items() if row is not None}

    def move_checkpoints(
        self, moved: Collection[ShardLease], commits: Sequence[BatchCommit]
    ) -> None:
        self.add(*moved)
        for commit in commits:
            counters = self._state.counters[commit.tenure.shard]
            self._put(counters.after(commit.sequence, commit.statistics))

    # -- the table ------------------------------------------------------------------------------

    def publication(self) -> Publication | None:
        own, left = self.first(Publication), self.first(TableChange, published=False)
        return own and replace(own, changes_pending=left is not None)

    def publishers(self, table: TableName) -> Iterator[Publication]:
        groups = self._all.groups.values()
        each = (row for state in groups for row in state.tables[Publication].values())
        return (row for row in each if row.table == table)

    def waiting(self, limit: int) -> Iterator[LedgerCounters]:
        waiting = [each for each in self.select(LedgerCounters) if each.numbers_left]
        return islice(sorted(waiting, key=lambda each: -each.numbers_left), limit)

    def held(self) -> Iterator[LedgerCounters]:
        return iter([each for each in self.select(LedgerCounters) if each.hold is not None])

    def committed_from(self, places: Mapping[ShardId, tuple[int, int]]) -> Iterator[Batch]:
        for shard, (since, limit) in places.items():
            own = given(shard=shard, sequence=range(since, NUMBERS_END), state=BatchState.COMMITTED)
            yield from self.select(Batch, limit=limit, **own)

    def lags(self, places: Mapping[ShardId, tuple[int, int]]) -> Iterator[ShardLag]:
        for shard, (start, limit) in places.items():
            rows = [*self.committed_from({shard: (start, limit)})]
            batches = sum(row.batches for row in rows)
            records = sum(row.statistics.written for row in rows)
            times = [row.committed_at for row in rows if row.committed_at]
            if times:
                more = len(rows) == limit
                yield ShardLag(shard, start, batches, records, min(times), more)

    def move_cursors(self, cursors: Mapping[ShardId, int]) -> None:
        for shard, until in cursors.items():
            self._put(replace(self._state.counters[shard], published_until=until))

    def pointer(self, table: TableName) -> TablePointer | None:
        return self._all.pointers.get(table)

    def add_pointer(self, pointer: TablePointer) -> None:
        self._set(self._all.pointers, pointer.table, pointer)

    def remove_pointer(self, table: TableName) -> None:
        self._remove(self._all.pointers, table)

    def move_pointer(self, table: TableName, move: PointerMove) -> bool:
        there = self.pointer(table)
        if there is None or there.location != move.before:
            return False
        self._set(self._all.pointers, table, TablePointer(table, move.after, move.before))
        return True

    # -- the outbox -----------------------------------------------------------------------------

    def waiting_events(self, kind: EventKind) -> Iterator[WaitingEvents]:
        waiting: dict[ShardId, WaitingEvents] = {}
        for event in self.select(OutboxEvent, kind=kind, delivered=False):
            own = waiting.get(event.shard, WaitingEvents(event.shard, 0, event))
            waiting[event.shard] = WaitingEvents(event.shard, own.count + 1, own.oldest)
        return iter([waiting[shard] for shard in sorted(waiting)])


def _place(value: Any) -> Any:
    if isinstance(value, Batch | JournalEntry):
        return value.shard, value.sequence
    names = KEYS[type(value)]
    return attrgetter(*names)(value) if names else ()


def _order(kind: type) -> Callable[[Any], Any]:
    names = KEYS[kind]

    def place(row: Any) -> list[Any]:
        return ["" if (value := getattr(row, name)) is None else value for name in names]

    return place


def _meeting(rows: Iterable[Value], conditions: Mapping[str, Any]) -> list[Value]:
    for name, value in conditions.items():
        holds = _test(value)
        rows = [row for row in rows if holds(getattr(row, name))]
    return list(rows)


def _test(value: Any) -> Callable[[Any], bool]:
    """Return the test of a field for a condition with this value."""
    match value:
        case range():
            return lambda field: value.start <= field < value.stop
        case set() | frozenset():
            return value.__contains__
        case Above():
            return lambda field: field is not None and field > value.value
        case Below():
            return lambda field: field is not None and field < value.value
        case _:
            return partial(eq, value)
