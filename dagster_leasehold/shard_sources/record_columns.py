"""Arrow batches of records, built from one list per column: an object per record would be slow."""

from __future__ import annotations

import base64
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from dagster_leasehold.lease_store.identifiers import ShardId
from dagster_leasehold.shard_sources.event_times import readable, storable, with_times_as_text
from dagster_leasehold.shard_sources.source import record_schema

if TYPE_CHECKING:
    import pyarrow as pa

T = TypeVar("T")
V = TypeVar("V")
RECORDS_MAX = 8192
BYTES_MAX = 4 * 1024 * 1024


class RecordColumns:
    """The columns of one batch; add the same number of records to each.

    Attributes:
        cursors: texts or offsets.
        times: datetimes, or microseconds since 1970.
        bytes: the size of the values.
    """

    def __init__(self, shard: ShardId) -> None:
        self._shard = shard
        self.cursors: list[Any] = []
        self.times: list[Any] = []
        self.keys: list[bytes | None] = []
        self.values: list[bytes | None] = []
        self.bytes = 0
        # Arrow's own layout of a map column; building it from dictionaries is slow.
        self._names: list[str] = []
        self._texts: list[str | None] = []
        self._map_ends = [0]

    def __len__(self) -> int:
        return len(self.cursors)

    @property
    def full(self) -> bool:
        """True if the batch is large enough."""
        return len(self) >= RECORDS_MAX or self.bytes >= BYTES_MAX

    def add_values(self, values: list[bytes | None]) -> None:
        """Append values and count their bytes."""
        self.values += values
        self.bytes += sum(len(value) for value in values if value)

    def add_attributes(self, attributes: Mapping[str, str | None]) -> None:
        """Append the attributes of one record."""
        self._names += attributes
        self._texts += attributes.values()
        self._map_ends.append(len(self._names))

    def add_no_attributes(self, records: int) -> None:
        """Append empty attributes for this number of records."""
        self._map_ends += [len(self._names)] * records

    def batch(self) -> pa.RecordBatch:
        """Return the records as `record_schema()`."""
        import pyarrow as pa

        schema = record_schema()
        kind, texts = schema.field("event_time").type, list[str]()
        try:
            times = pa.array(self.times, kind)
        except OverflowError:
            storable_times, texts = storable(self.times)
            times = pa.array(storable_times, kind)
        attributes = pa.MapArray.from_arrays(
            pa.array(self._map_ends, pa.int32()),
            pa.array(self._names, pa.string()),
            pa.array(self._texts, pa.string()),
        )
        columns = [
            pa.repeat(pa.scalar(str(self._shard)), len(self)),
            pa.array(self.cursors).cast(pa.string()),
            times,
            pa.array(self.keys, pa.binary()),
            pa.array(self.values, pa.binary()),
            with_times_as_text(attributes, texts) if texts else attributes,
        ]
        return readable(pa.record_batch(columns, schema=schema))


def batches_of(
    shard: ShardId, items: Iterable[T], add: Callable[[RecordColumns, T], None]
) -> Iterator[pa.RecordBatch]:
    """Yield the records of a service's messages in batches; `add` appends one message."""
    columns = RecordColumns(shard)
    for item in items:
        add(columns, item)
        if columns.full:
            yield columns.batch()
            columns = RecordColumns(shard)
    if len(columns):
        yield columns.batch()


def named_text(name: str, value: bytes) -> tuple[str, str]:
    """Return a name and its value as text: base64 and a name with `_base64` if it is not UTF-8."""
    try:
        return name, value.decode()
    except UnicodeDecodeError:
        return f"{name}_base64", base64.b64encode(value).decode()


def by_name(pairs: Sequence[tuple[str, V]]) -> dict[str, V]:
    """Return all values by name, even if several share one.

    As in the services' own clients, the last value keeps the name. The values before it get
    `name#1`, `name#2` and so on, except names that other values have.
    """
    values = dict(pairs)
    if len(values) == len(pairs):
        return values
    remaining = Counter(name for name, _ in pairs)
    numbers = dict.fromkeys(remaining, 0)
    result: dict[str, V] = {}
    for name, value in pairs:
        remaining[name] -= 1
        unique = name
        while remaining[name] and unique in values:
            numbers[name] += 1
            unique = f"{name}#{numbers[name]}"
        result[unique] = value
    return result
