"""Checks for values that every reader of a table can read.

These are times in the years 1 to 9999, and maps with unique keys. Arrow and Parquet allow others,
but Python has no time outside these years, and DuckDB refuses a column if one map repeats a key.
"""

from __future__ import annotations

from functools import lru_cache, reduce
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow as pa

_DAYS = -719_162, 2_932_896
"""The first day of the year 1 and the last day of the year 9999, counted from 1970."""
_PER_DAY = {"s": 86_400, "ms": 86_400_000, "us": 86_400_000_000}
"""The units that can represent times outside these years; nanoseconds cannot."""


def unreadable(values: Any) -> Any | None:
    """Return a mask of the values that some reader cannot read; None if there are none.

    `values` is an Arrow array of any type, including nested ones.
    """
    import pyarrow.compute

    pc: Any = pyarrow.compute

    if not len(values) or not _can_be_unreadable(values.type):
        return None
    mask = _unreadable(values)
    return mask if mask is not None and pc.any(mask).as_py() else None


@lru_cache(maxsize=1024)
def _can_be_unreadable(kind: pa.DataType) -> bool:
    import pyarrow as pa

    if isinstance(kind, pa.BaseExtensionType):
        return _can_be_unreadable(kind.storage_type)
    if isinstance(kind, pa.DictionaryType):
        return _can_be_unreadable(kind.value_type)
    if pa.types.is_map(kind) or pa.types.is_date(kind):
        return True
    if pa.types.is_nested(kind):
        return any(_can_be_unreadable(kind.field(at).type) for at in range(kind.num_fields))
    return isinstance(kind, pa.TimestampType) and kind.unit in _PER_DAY


def _unreadable(values: Any) -> Any | None:
    """Return a mask without nulls, or None if all values are readable."""
    import pyarrow as pa

    kind = values.type
    if isinstance(kind, pa.BaseExtensionType):
        return unreadable(values.storage)
    if isinstance(kind, pa.DictionaryType):
        return unreadable(values.dictionary_decode())
    if pa.types.is_struct(kind):
        return _either([unreadable(child) for child in values.flatten()])
    if pa.types.is_nested(kind):
        return _unreadable_lists(values)
    per_day = 1 if pa.types.is_date32(kind) else _PER_DAY[getattr(kind, "unit", "ms")]
    return _outside(values, _DAYS[0] * per_day, (_DAYS[1] + 1) * per_day - 1)


def _outside(values: Any, first: int, last: int) -> Any | None:
    import pyarrow as pa
    import pyarrow.compute

    pc: Any = pyarrow.compute

    numbers = values.cast(pa.int32() if values.type.bit_width == 32 else pa.int64())
    bounds = pc.min_max(numbers).as_py()
    if bounds["min"] is None or first <= bounds["min"] <= bounds["max"] <= last:
        return None
    return pc.fill_null(pc.or_(pc.less(numbers, first), pc.greater(numbers, last)), False)


def _unreadable_lists(values: Any) -> Any | None:
    import numpy as np
    import pyarrow as pa

    is_map = pa.types.is_map(values.type)
    if not is_map and not isinstance(values.type, pa.ListType):
        values = values.cast(pa.list_(values.type.value_field))
    ends: Any = values.offsets.to_numpy()
    lengths = np.diff(ends)
    rows = pa.array(np.repeat(np.arange(len(values), dtype=np.int64), lengths))
    parts = (values.keys, values.items) if is_map else (values.values,)
    inner = [part.slice(ends[0], ends[-1] - ends[0]) for part in parts]
    masks = [mask for mask in map(unreadable, inner) if mask is not None]
    marked = [_among(values, rows.filter(mask)) for mask in masks]
    if is_map and len(rows) and lengths.max() > 1:
        marked.append(_among(values, _rows_of_repeated(inner[0], rows)))
    return _either(marked)


def _rows_of_repeated(keys: Any, rows: Any) -> Any:
    """Return the rows that repeat a key."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute

    pc: Any = pyarrow.compute

    if pa.types.is_nested(keys.type):
        keys = pa.array([repr(key) for key in keys.to_pylist()], pa.string())
    words = keys.dictionary_encode()
    both = pc.add(
        pc.multiply(rows, len(words.dictionary)), words.indices.cast(pa.int64()).fill_null(0)
    )
    if pc.count_distinct(both).as_py() == len(both):
        return rows.slice(0, 0)
    counted = pc.value_counts(both)
    repeated = counted.field("values").filter(pc.greater(counted.field("counts"), 1))
    return pa.array(np.unique(repeated.to_numpy() // len(words.dictionary)))


def _among(values: Any, rows: Any) -> Any:
    """Return a mask of these rows, without nulls."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute

    pc: Any = pyarrow.compute

    mask = np.zeros(len(values), np.bool_)
    mask[rows.to_numpy()] = True
    return pc.and_(pa.array(mask), values.is_valid())


def _either(masks: list[Any]) -> Any | None:
    import pyarrow.compute

    pc: Any = pyarrow.compute

    masks = [mask for mask in masks if mask is not None]
    return reduce(pc.or_, masks) if masks else None
