"""Records on their way into an Arrow batch: columns are lists until then, with no object each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from dagster_leasehold.lease_store.identifiers import ShardId
from dagster_leasehold.shard_sources.event_times import noted, readable, storable
from dagster_leasehold.shard_sources.source import record_schema

if TYPE_CHECKING:
    import pyarrow as pa

V = TypeVar("V")
RECORDS_MAX = 8192
BYTES_MAX = 4 * 1024 * 1024


class RecordColumns:
    """The columns of one batch, to be appended to, each by as many records.

    Attributes:
        cursors: texts, or offsets.
        times: event times, as they are or in microseconds since 1970.
        keys: bytes, or None.
        values: bytes, or None.
        bytes: the size of the values so far.
    """

    def __init__(self, shard: ShardId) -> None:
        self._shard = shard
        self.cursors: list[Any] = []
        self.times: list[Any] = []
        self.keys: list[bytes | None] = []
        self.values: list[bytes | None] = []
        self.bytes = 0
        # A map for each record, as Arrow lays them out: it is slow at taking them from dicts.
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
        """Append values, and count their bytes."""
        self.values += values
        self.bytes += sum(len(value) for value in values if value)

    def add_attributes(self, attributes: Mapping[str, str | None]) -> None:
        """Append the attributes of one record."""
        self._names += attributes
        self._texts += attributes.values()
        self._map_ends.append(len(self._names))

    def add_no_attributes(self, records: int) -> None:
        """Append empty attributes for so many records."""
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
            noted(attributes, texts) if texts else attributes,
        ]
        return readable(pa.record_batch(columns, schema=schema))


def by_name(pairs: Sequence[tuple[str, V]]) -> dict[str, V]:
    """Return values by name, all of those with one name.

    The last has the name itself, as for the services' own clients; those before it have `name#1`,
    `name#2` and so on, without the names that other values have.
    """
    values = dict(pairs)
    if len(values) == len(pairs):
        return values
    following = Counter(name for name, _ in pairs)
    numbers = dict.fromkeys(following, 0)
    result: dict[str, V] = {}
    for name, value in pairs:
        following[name] -= 1
        own = name
        while following[name] and own in values:
            numbers[name] += 1
            own = f"{name}#{numbers[name]}"
        result[own] = value
    return result
