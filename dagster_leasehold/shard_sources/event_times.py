"""Event times outside the years 1 to 9999 in UTC: Arrow stores them, most engines cannot show them.

A producer that sends microseconds as milliseconds causes such times. The record is kept, its
`event_time` is null, and its attribute `event_time_us` holds the original time.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow as pa

MISTIMED = "event_time_us"
"""The attribute for a time outside the years 1 to 9999, in microseconds since 1970."""
FIRST, LAST = datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_FIRST_US, _LAST_US = (FIRST - _EPOCH) // _MICROSECOND, (LAST - _EPOCH) // _MICROSECOND
_MICROSECONDS_OF = {"s": 1_000_000, "ms": 1_000, "us": 1}
"""The units of Arrow that can hold a time outside these years; nanoseconds cannot."""


def moment_of(time_us: int) -> datetime | None:
    """Return microseconds since 1970 as a datetime; None outside the years 1 to 9999."""
    return _EPOCH + time_us * _MICROSECOND if _in_calendar(time_us) else None


def in_utc(moment: datetime) -> datetime:
    """Return a datetime in UTC, clamped to the first or last one that exists."""
    try:
        return moment.astimezone(UTC)
    except OverflowError:
        return FIRST if moment.year < _EPOCH.year else LAST


def _in_calendar(time_us: int) -> bool:
    return _FIRST_US <= time_us <= _LAST_US


def outside_calendar(times: Any) -> Any | None:
    """Return a mask of the times outside the years 1 to 9999; None if all are inside.

    Columns that are not timestamps have no such times.
    """
    import pyarrow as pa
    import pyarrow.compute

    # Its functions exist only at run time, so a type checker does not see them.
    pc: Any = pyarrow.compute

    kind: Any = times.type
    if not pa.types.is_timestamp(kind) or kind.unit not in _MICROSECONDS_OF:
        return None
    size = _MICROSECONDS_OF[kind.unit]
    first, last = -(-_FIRST_US // size), _LAST_US // size
    numbers: Any = times.cast(pa.int64())
    extremes = pc.min_max(numbers).as_py()
    if extremes["min"] is None or first <= extremes["min"] <= extremes["max"] <= last:
        return None
    return pc.fill_null(pc.or_(pc.less(numbers, first), pc.greater(numbers, last)), False)


def without(times: Any, mask: Any) -> Any:
    """Return an Arrow column with null where a mask is set."""
    import pyarrow as pa
    import pyarrow.compute

    pc: Any = pyarrow.compute

    return pc.if_else(mask, pa.scalar(None, times.type), times)


def storable(times: Sequence[Any]) -> tuple[Sequence[Any], list[str]]:
    """Return the times, None if outside the years 1 to 9999, and the original of each such time.

    Times are datetimes or microseconds since 1970. The text of a time inside the years is empty.
    """
    mask = [isinstance(time, int) and not _in_calendar(time) for time in times]
    inside = [None if outside else time for time, outside in zip(times, mask, strict=True)]
    return inside, [str(time) if outside else "" for time, outside in zip(times, mask, strict=True)]


def readable(records: pa.RecordBatch) -> pa.RecordBatch:
    """Return records of `record_schema()` with times outside the years 1 to 9999 as text."""
    times = records.column("event_time")
    outside = outside_calendar(times)
    if outside is None:
        return records
    import pyarrow as pa

    _, texts = storable(times.cast(pa.int64()).to_pylist())
    attributes = with_times_as_text(records.column("attributes"), texts)
    columns = {"event_time": without(times, outside), "attributes": attributes}
    for name, column in columns.items():
        records = records.set_column(records.schema.get_field_index(name), name, column)
    return records


def with_times_as_text(attributes: Any, texts: Sequence[str]) -> Any:
    """Return attributes with the original time of each record; an empty text adds none."""
    import pyarrow as pa

    maps: list[list[tuple[str, str | None]]] = []
    for pairs, text in zip(attributes.to_pylist(), texts, strict=True):
        items = [*(pairs or ())]
        if text and all(name != MISTIMED for name, _ in items):
            items.append((MISTIMED, text))
        maps.append(items)
    return pa.array(maps, attributes.type)


def mistimed_cursors(records: pa.RecordBatch | pa.Table) -> list[str]:
    """Return the cursors of records whose original time was outside the years 1 to 9999."""
    times = records.column("event_time")
    if not times.null_count:
        return []
    import pyarrow.compute

    pc: Any = pyarrow.compute

    untimed: Any = records.select(["cursor", "attributes"]).filter(pc.is_null(times))
    rows = untimed.to_pylist(maps_as_pydicts="lossy")
    return [row["cursor"] for row in rows if MISTIMED in (row["attributes"] or ())]
