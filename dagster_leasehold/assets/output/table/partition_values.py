"""Divides rows into partitions, with the values that Iceberg defines for each transform.

Spark's workers call it when they write files, so it needs only Arrow and NumPy. Values have the
form of the ledger and the manifests: days and microseconds since 1970 are numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from dagster_leasehold.assets.errors import TransformError
from dagster_leasehold.assets.partition_fields import SHARD_COLUMN, TIME_COLUMN, PartitionField
from dagster_leasehold.lease_store.errors import shown
from dagster_leasehold.shard_sources.event_times import outside_calendar, without

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa

Value = str | int | bool | None
Partition = tuple[tuple[str, Value], ...]
"""The values of fields, by their texts; empty for rows of several partitions."""
VALUE_LENGTH_MAX = 256
"""The longest text of a partition, because the ledger stores it for each file."""
_DAY_US, _HOUR_US = 86_400_000_000, 3_600_000_000
_EPOCH = 1970


def partitioned(
    rows: pa.RecordBatch, fields: Sequence[PartitionField]
) -> Iterator[tuple[Partition, pa.RecordBatch]]:
    """Yield the rows of each partition, in order; the rows have the types of a table.

    A column that the rows lack is null. The result lacks the shard. It also lacks the fields of an
    event time without a time zone, which a table does not use as event time.

    Raises:
        TransformError: a column cannot be partitioned in this way.
    """
    import numpy as np
    import pyarrow as pa

    names: list[str] = []
    columns: list[pa.Array] = []
    for field in fields:
        values = None if str(field) == SHARD_COLUMN else _values(field, rows)
        if values is not None:
            names.append(str(field))
            columns.append(values)
    codes = np.zeros(rows.num_rows, np.int64)
    for column in columns:
        encoded = column.dictionary_encode(null_encoding="encode")
        own = encoded.indices.to_numpy(zero_copy_only=False)
        codes = np.unique(codes * len(encoded.dictionary) + own, return_inverse=True)[1]
    order = np.argsort(codes, kind="stable")
    starts = np.flatnonzero(np.diff(codes[order], prepend=-1))
    if len(starts) > 1:
        rows = rows.take(pa.array(order))
    for start, end in pairwise([*starts, len(order)]):
        first = int(order[start])
        values = [column[first].as_py() for column in columns]
        long = any(isinstance(each, str) and len(each) > VALUE_LENGTH_MAX for each in values)
        part = () if long else tuple(zip(names, values, strict=True))
        yield part, rows.slice(start, end - start)


def _values(field: PartitionField, rows: pa.RecordBatch) -> pa.Array | None:
    """Return the partition value of each row; None if the table does not have the field."""
    import pyarrow as pa

    at = rows.schema.get_field_index(field.column)
    if at < 0:
        return pa.nulls(rows.num_rows, pa.int32())
    column = rows.column(at)
    if field.column == TIME_COLUMN and field.of_source:
        if not (pa.types.is_timestamp(column.type) and column.type.tz):
            return None
        outside = outside_calendar(column)
        column = column if outside is None else without(column, outside)
    for is_kind, transform in _TRANSFORMS[field.transform]:
        if getattr(pa.types, is_kind)(column.type):
            return transform(column, field.width)
    raise TransformError(
        f"Column {shown(field.column)} is {column.type}, which a table cannot partition by "
        f"{shown(str(field))}: partition by another column, or return another type."
    )


def _numbers(column: pa.Array, kind: Any = None) -> tuple[np.ndarray[Any, Any], pa.Array]:
    """Return the numbers of a column, with 0 for null, and the mask of its nulls."""
    import pyarrow as pa

    whole = column.cast(kind).cast(pa.int64()) if kind is not None else column.cast(pa.int64())
    return whole.fill_null(0).to_numpy(zero_copy_only=False), whole.is_null()


def _with_nulls(values: np.ndarray[Any, Any], nulls: pa.Array, kind: pa.DataType) -> pa.Array:
    import pyarrow as pa

    return pa.array(values, mask=nulls.to_numpy(zero_copy_only=False)).cast(kind)


def _identity(column: pa.Array, _: int) -> pa.Array:
    return column


def _whole_number(column: pa.Array, _: int) -> pa.Array:
    """Return days or microseconds since 1970 as numbers."""
    import pyarrow as pa

    return column.cast(pa.int32() if pa.types.is_date32(column.type) else pa.int64())


def _truncated_number(column: pa.Array, width: int) -> pa.Array:
    numbers, nulls = _numbers(column)
    return _with_nulls(numbers - numbers % width, nulls, column.type)


def _truncated_text(column: pa.Array, width: int) -> pa.Array:
    import pyarrow.compute

    pc: Any = pyarrow.compute
    return pc.utf8_slice_codeunits(column, 0, width)


def _bucket_of_number(column: pa.Array, buckets: int) -> pa.Array:
    """Return the buckets of numbers, which Iceberg hashes as eight bytes each."""
    import numpy as np
    import pyarrow as pa

    plain = column if pa.types.is_integer(column.type) else _whole_number(column, 0)
    numbers, nulls = _numbers(plain)
    data = np.ascontiguousarray(numbers.astype("<i8")).view(np.uint8)
    starts = np.arange(0, len(data), 8)
    hashes = murmur3(data, starts, np.full(len(starts), 8))
    return _with_nulls((hashes & 0x7FFFFFFF) % buckets, nulls, pa.int32())


def _bucket_of_bytes(column: pa.Array, buckets: int) -> pa.Array:
    import numpy as np
    import pyarrow as pa

    nulls = column.is_null()
    whole = column.cast(pa.binary()).cast(pa.large_binary()).fill_null(b"")
    _, offsets, content = whole.buffers()
    ends = np.frombuffer(offsets, np.int64)[whole.offset : whole.offset + len(whole) + 1]
    data = np.frombuffer(content, np.uint8) if content else np.zeros(0, np.uint8)
    hashes = murmur3(data, ends[:-1], np.diff(ends))
    return _with_nulls((hashes & 0x7FFFFFFF) % buckets, nulls, pa.int32())


def murmur3(
    data: np.ndarray[Any, Any], starts: np.ndarray[Any, Any], lengths: np.ndarray[Any, Any]
) -> np.ndarray[Any, Any]:
    """Return the 32-bit Murmur3 hashes, with seed 0, of many pieces of some bytes."""
    import numpy as np

    def mixed(block: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        block = block * np.uint32(0xCC9E2D51)
        return (block << 15 | block >> 17) * np.uint32(0x1B873593)

    hashes = np.zeros(len(starts), np.uint32)
    blocks = lengths // 4
    rows = np.arange(len(starts))
    for number in range(int(blocks.max(initial=0))):
        rows = rows[blocks[rows] > number]
        at = starts[rows] + 4 * number
        block = sum(data[at + byte].astype(np.uint32) << (8 * byte) for byte in range(4))
        own = hashes[rows] ^ mixed(np.asarray(block, np.uint32))
        hashes[rows] = (own << 13 | own >> 19) * np.uint32(5) + np.uint32(0xE6546B64)
    tails = np.zeros(len(starts), np.uint32)
    for byte in range(3):
        rows = np.flatnonzero(lengths % 4 > byte)
        at = starts[rows] + 4 * blocks[rows] + byte
        tails[rows] |= data[at].astype(np.uint32) << (8 * byte)
    hashes ^= mixed(tails)
    hashes ^= lengths.astype(np.uint32)
    hashes ^= hashes >> 16
    hashes *= np.uint32(0x85EBCA6B)
    hashes ^= hashes >> 13
    hashes *= np.uint32(0xC2B2AE35)
    return hashes ^ hashes >> 16


def _years(column: pa.Array, _: int) -> pa.Array:
    import pyarrow as pa
    import pyarrow.compute

    pc: Any = pyarrow.compute
    return pc.subtract(pc.year(column), _EPOCH).cast(pa.int32())


def _months(column: pa.Array, _: int) -> pa.Array:
    import pyarrow as pa
    import pyarrow.compute

    pc: Any = pyarrow.compute
    years = pc.multiply(pc.subtract(pc.year(column), _EPOCH), 12)
    return pc.add(years, pc.subtract(pc.month(column), 1)).cast(pa.int32())


def _periods(column: pa.Array, length_us: int) -> pa.Array:
    import pyarrow as pa

    numbers, nulls = _numbers(column, pa.timestamp("us", column.type.tz))
    return _with_nulls(numbers // length_us, nulls, pa.int32())


Ways = tuple[tuple[str, Callable[[Any, int], Any]], ...]
_SAME: Ways = (("is_string", _identity), ("is_boolean", _identity), ("is_integer", _identity))
_MOMENTS: Ways = (("is_date32", _whole_number), ("is_timestamp", _whole_number))
_NUMBERS: Ways = tuple(
    (kind, _bucket_of_number) for kind in ("is_integer", "is_date32", "is_timestamp", "is_time64")
)
_TRANSFORMS: Mapping[str, Ways] = {
    "identity": (*_SAME, *_MOMENTS),
    "bucket": (("is_string", _bucket_of_bytes), ("is_binary", _bucket_of_bytes), *_NUMBERS),
    "truncate": (("is_string", _truncated_text), ("is_integer", _truncated_number)),
    "year": (("is_timestamp", _years), ("is_date32", _years)),
    "month": (("is_timestamp", _months), ("is_date32", _months)),
    "day": (
        ("is_timestamp", lambda column, _: _periods(column, _DAY_US)),
        ("is_date32", _whole_number),
    ),
    "hour": (("is_timestamp", lambda column, _: _periods(column, _HOUR_US)),),
}
"""For each transform: Arrow's predicates on column types, and the function for each."""
