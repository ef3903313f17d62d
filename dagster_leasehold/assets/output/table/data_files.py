"""Converts between files of the ledger and manifest entries, without reading the files.

The bounds come from the writer. A file is in a partition if all its records are. The records of a
file belong to one shard; they belong to one day if their event times are known and on that day. The
writer divides records into files by the other fields, and stores the field values. A file of
several partitions gets the spec that has only the shard, and readers exclude it by its bounds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from dagster_leasehold.assets.output.attempts import shard_and_batches
from dagster_leasehold.assets.output.table.partition_values import Partition
from dagster_leasehold.assets.output.table.schemas import (
    field_text,
    shard_field,
    sort_orders,
    time_field,
)
from dagster_leasehold.assets.partition_fields import SHARD_COLUMN
from dagster_leasehold.assets.partition_fields import PartitionField as Field
from dagster_leasehold.lease_store.identifiers import ShardId
from dagster_leasehold.lease_store.ledger_rows import DataFile as LedgerFile

if TYPE_CHECKING:
    from pyiceberg.manifest import DataFile
    from pyiceberg.partitioning import PartitionField, PartitionSpec
    from pyiceberg.schema import Schema
    from pyiceberg.table.metadata import TableMetadata
    from pyiceberg.typedef import Record

_UNKNOWN = object()
"""The value of a field for a file whose records may have several values."""


@dataclass(slots=True)
class FileForm:
    """Creates the manifest entries of one table.

    Attributes:
        specs: the specs for files, in order of preference.
        root: the location of the output, which precedes the paths of the ledger.
        orders: the numbers of the table's sort orders, by their texts.
    """

    schema: Schema
    specs: Sequence[PartitionSpec]
    root: str
    orders: Mapping[str, int] = field(default_factory=dict[str, int])
    _shard_id: int | None = field(init=False)
    _time_id: int | None = field(init=False)
    _texts: dict[int, str] = field(default_factory=dict[int, str], init=False)

    def __post_init__(self) -> None:
        shard, time = shard_field(self.schema), time_field(self.schema)
        self._shard_id = None if shard is None else shard.field_id
        self._time_id = None if time is None else time.field_id

    def location(self, path: str) -> str:
        """Return the location of a file of the ledger."""
        return f"{self.root}/{path}"

    def data_file(self, shard: ShardId, file: LedgerFile) -> DataFile:
        """Return the entry of a file of records."""
        from pyiceberg.manifest import DataFile, DataFileContent, FileFormat

        spec, partition = self._partition(shard, file)
        entry = DataFile.from_args(
            content=DataFileContent.DATA,
            file_path=self.location(file.path),
            file_format=FileFormat.PARQUET,
            partition=partition,
            record_count=file.records,
            file_size_in_bytes=file.bytes,
            sort_order_id=self.orders.get(file.sorted_by),
            equality_ids=None,
            key_metadata=None,
            **self._statistics(shard, file),
        )
        entry.spec_id = spec.spec_id
        return entry

    def _statistics(self, shard: ShardId, file: LedgerFile) -> dict[str, Any]:
        from pyiceberg.conversions import to_bytes
        from pyiceberg.types import TimestamptzType

        counts: dict[int, int | bytes] = {}
        nulls: dict[int, int | bytes] = {}
        lower: dict[int, int | bytes] = {}
        upper: dict[int, int | bytes] = {}
        if self._shard_id is not None:
            counts[self._shard_id], nulls[self._shard_id] = file.records, 0
            lower[self._shard_id] = upper[self._shard_id] = shard.encode()
        if self._time_id is not None:
            if file.untimed is not None:
                counts[self._time_id], nulls[self._time_id] = file.records, file.untimed
            if file.first_event_time is not None and file.last_event_time is not None:
                lower[self._time_id] = to_bytes(TimestamptzType(), file.first_event_time)
                upper[self._time_id] = to_bytes(TimestamptzType(), file.last_event_time)
        return {
            "value_counts": counts,
            "null_value_counts": nulls,
            "lower_bounds": lower,
            "upper_bounds": upper,
        }

    def _partition(self, shard: ShardId, file: LedgerFile) -> tuple[PartitionSpec, Record]:
        """Return the first spec with all records of a file in one partition, and the partition."""
        from pyiceberg.typedef import Record

        own = dict(file.partition)
        for spec in self.specs:
            values = [
                own[text] if (text := self._text(part)) in own else self._value(part, shard, file)
                for part in spec.fields
            ]
            if _UNKNOWN not in values:
                return spec, Record(*values)
        raise AssertionError("The last spec fits every file.")

    def _text(self, part: PartitionField) -> str:
        if part.field_id not in self._texts:
            self._texts[part.field_id] = field_text(self.schema, part)
        return self._texts[part.field_id]

    def _value(self, part: PartitionField, shard: ShardId, file: LedgerFile) -> object:
        """Return the common value of all records of a file for a field of the source."""
        from pyiceberg.transforms import IdentityTransform
        from pyiceberg.utils.datetime import datetime_to_micros

        if part.source_id == self._shard_id and isinstance(part.transform, IdentityTransform):
            return str(shard)
        if part.source_id != self._time_id or not _is_time(part):
            return _UNKNOWN

        first, last = file.first_event_time, file.last_event_time
        if first is None or last is None or file.untimed != 0:
            return _UNKNOWN
        source = self.schema.find_field(part.source_id)
        transform = part.transform.transform(source.field_type)
        begin, end = transform(datetime_to_micros(first)), transform(datetime_to_micros(last))
        return begin if begin == end else _UNKNOWN


def _is_time(part: PartitionField) -> bool:
    """Return True if a field has years, months, days or hours."""
    return str(part.transform) in ("year", "month", "day", "hour")


def ledger_file(
    metadata: TableMetadata, root: str, entry: DataFile
) -> tuple[ShardId | None, LedgerFile]:
    """Return the shard and the ledger's form of a manifest entry.

    The shard is None for a file of another program with an unknown shard or several shards.

    Args:
        metadata: the newest metadata of the table.
        root: the location of the output.
    """
    from pyiceberg.conversions import from_bytes
    from pyiceberg.types import LongType
    from pyiceberg.utils.datetime import micros_to_timestamptz

    schema = metadata.schema()
    lower, upper = entry.lower_bounds or {}, entry.upper_bounds or {}
    path = entry.file_path.removeprefix(f"{root}/")
    named = shard_and_batches(path.rsplit("/", 1)[-1])
    shard, column = named[0] if named else None, shard_field(schema)
    if column is not None and (first := lower.get(column.field_id)) is not None:
        shard = ShardId(first.decode()) if first == upper.get(column.field_id) else None
    time = time_field(schema)
    begin = end = None
    untimed: int | None = entry.record_count
    if time is not None:
        begin, end = (
            None if bound is None else micros_to_timestamptz(from_bytes(LongType(), bound))
            for bound in (lower.get(time.field_id), upper.get(time.field_id))
        )
        untimed = (entry.null_value_counts or {}).get(time.field_id)
    records, size = entry.record_count, entry.file_size_in_bytes
    file = LedgerFile(
        path, records, size, first_event_time=begin, last_event_time=end, untimed=untimed
    )
    orders = {number: text for text, number in sort_orders(metadata).items()}
    sorted_by = orders.get(entry.sort_order_id or 0, "")
    return shard, replace(file, partition=_partition_of(metadata, entry), sorted_by=sorted_by)


def _partition_of(metadata: TableMetadata, entry: DataFile) -> Partition:
    """Return the values of an entry's partition; empty if shard and times determine them."""
    schema, fields = metadata.schema(), metadata.specs()[entry.spec_id].fields
    texts = [field_text(schema, part) for part in fields]
    if all(Field.parse(text).of_source for text in texts):
        return ()
    values = [(text, entry.partition[at]) for at, text in enumerate(texts)]
    return tuple(each for each in values if each[0] != SHARD_COLUMN)
