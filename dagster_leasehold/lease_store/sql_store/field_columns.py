"""The columns of a table and the fields of a frozen value, in both directions, by their names."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields
from enum import Enum
from typing import Any, Generic, Protocol, TypeVar

import sqlalchemy as sa

from dagster_leasehold.lease_store.identifiers import GroupKey, NodeName, ShardId
from dagster_leasehold.lease_store.rules.isolation import suspicion_from, suspicion_values
from dagster_leasehold.lease_store.rules.states import ShardState
from dagster_leasehold.lease_store.sql_store.stored_json import (
    file_values,
    files_from,
    optional,
    shard_ids,
)
from dagster_leasehold.lease_store.stored_rows import KEYS, Above, Below, Plus

REASON_LENGTH_MAX = 1_000

Row = Mapping[Any, Any]
Ways = Mapping[str, Callable[[Any], Any]]
Value = TypeVar("Value")


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

    def values(self, value: Value) -> dict[str, Any]:
        """Return what the row of a value holds, its key aside."""
        return {name: each for name, each in self._all(value) if name not in self._key}

    def row(self, key: GroupKey, value: Value) -> dict[str, Any]:
        """Return what a new row holds."""
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
        place = [(self.column(name), value) for name, value in self.place(last).items()]
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


# These hold for the fields of all kinds, where a kind does not say otherwise.
_COLUMNS = {"shard": "shard_id", "start": "start_cursor", "end": "end_cursor", "at": "recorded_at"}
_READS: Ways = {
    "shard": ShardId,
    "holder": NodeName,
    "files": files_from,
    "facts": lambda facts: facts or {},
    "suspicion": suspicion_from,
    **dict.fromkeys(("parents", "gone_parents"), shard_ids),
    **dict.fromkeys(("from_state", "to_state"), optional(ShardState)),
    **dict.fromkeys(
        ("lease_owner", "consumer_owner", "from_owner", "to_owner"), optional(NodeName)
    ),
}
_WRITES: Ways = {
    "files": file_values,
    "facts": lambda facts: dict(facts) or None,
    "suspicion": suspicion_values,
    "gone_parents": lambda parents: parents or None,
    "reason": lambda reason: reason[:REASON_LENGTH_MAX],
}
