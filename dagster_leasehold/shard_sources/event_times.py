"""Times that a record can have: the years 1 to 9999 in UTC, which every engine can show.

A producer that sends microseconds for milliseconds gives its records times that Arrow can store and
that neither Python nor most engines can read back. Such a record keeps its place in the log. Its
`event_time` is null, and its attribute `event_time_us` holds the time that it came with.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow as pa

MISTIMED = "event_time_us"
"""The attribute that holds the microseconds since 1970 of a time outside the years 1 to 9999."""
FIRST, LAST = datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_FIRST_US, _LAST_US = (FIRST - _EPOCH) // _MICROSECOND, (LAST - _EPOCH) // _MICROSECOND
_MICROSECONDS_OF = {"s": 1_000_000, "ms": 1_000, "us": 1}
"""The units of Arrow that can hold a time outside these years; nanoseconds cannot."""


def moment_of(time_us: int) -> datetime | None:
    """Return a time in microseconds since 1970 as a moment; None outside the years 1 to 9999."""
    return _EPOCH + time_us * _MICROSECOND if _in_calendar(time_us) else None


def in_utc(moment: datetime) -> datetime:
    """Return a moment in UTC: the first or the last one there is if its offset leads beyond it."""
    try:
        return moment.astimezone(UTC)
    except OverflowError:
        return FIRST if moment.year < _EPOCH.year else LAST


def _in_calendar(time_us: int) -> bool:
    return _FIRST_US <= time_us <= _LAST_US


def outside_calendar(times: Any) -> Any | None:
    """Return a mask of the times outside the years 1 to 9999; None if there are none.

    Args:
        times: an Arrow column; one that does not hold moments has no such times.
    """
    import pyarrow as pa
    import pyarrow.compute

    # Its functions are made when it is imported, where a type checker cannot see them.
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


def without(times: Any, outside: Any) -> Any:
    """Return times with null where a mask is set."""
    import pyarrow as pa
    import pyarrow.compute

    pc: Any = pyarrow.compute

    return pc.if_else(outside, pa.scalar(None, times.type), times)


def storable(times: Sequence[Any]) -> tuple[Sequence[Any], list[str]]:
    """Return times without those outside the years 1 to 9999, and the texts of those.

    Args:
        times: moments, or microseconds since 1970, which can be more than 64 bits hold.

    Returns:
        The times, with None for each such one, and the text of each; empty for all others.
    """
    outside = [isinstance(time, int) and not _in_calendar(time) for time in times]
    rest = [None if bad else time for time, bad in zip(times, outside, strict=True)]
    return rest, [str(time) if bad else "" for time, bad in zip(times, outside, strict=True)]


def readable(records: pa.RecordBatch) -> pa.RecordBatch:
    """Return records with null for times outside the years 1 to 9999.

    Args:
        records: with the columns of `record_schema()`.
    """
    times = records.column("event_time")
    outside = outside_calendar(times)
    if outside is None:
        return records
    import pyarrow as pa

    _, texts = storable(times.cast(pa.int64()).to_pylist())
    return records.set_column(
        records.schema.get_field_index("event_time"), "event_time", without(times, outside)
    ).set_column(
        records.schema.get_field_index("attributes"),
        "attributes",
        noted(records.column("attributes"), texts),
    )


def noted(attributes: Any, texts: Sequence[str]) -> Any:
    """Return attributes with the time that each record came with; an empty text adds none."""
    import pyarrow as pa

    maps: list[list[tuple[str, str | None]]] = []
    for pairs, text in zip(attributes.to_pylist(), texts, strict=True):
        own = [*(pairs or ())]
        if text and all(name != MISTIMED for name, _ in own):
            own.append((MISTIMED, text))
        maps.append(own)
    return pa.array(maps, attributes.type)


def mistimed_cursors(records: pa.RecordBatch | pa.Table) -> list[str]:
    """Return the cursors of records that came with a time outside the years 1 to 9999."""
    times = records.column("event_time")
    if not times.null_count:
        return []
    import pyarrow.compute

    pc: Any = pyarrow.compute

    untimed: Any = records.select(["cursor", "attributes"]).filter(pc.is_null(times))
    rows = untimed.to_pylist(maps_as_pydicts="lossy")
    return [row["cursor"] for row in rows if MISTIMED in (row["attributes"] or ())]
