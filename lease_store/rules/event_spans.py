"""Event time as a tree of spans, which finds the output of one hour by index at any age.

A batch's output lies between two event times. The tree halves time again and again, down to
slices of about a minute; a batch belongs to the smallest slice that holds both of its ends. Those
that may hold records of a window then lie in few, contiguous runs of slices: on each level of the
tree, from the slice of the window's beginning to that of its end. Batches that happen to lie
across the border of a large slice belong to that one, and are looked at in vain; only as many do
as overlap in that one moment, however many were ever written.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta

from dagster_leasehold.lease_store.ledger_rows import DataFile

UNKNOWN_SPAN = -1
"""Of output that lists a file without bounds: it may hold any time."""

_BEGIN = datetime(1, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_SLICE_BITS = 26
"""The smallest slice is 2^26 microseconds long: 67 seconds."""
_TIME_BITS = 59
"""The calendar's 9,999 years in microseconds are less than 2^59."""
_LEVEL_BITS = _TIME_BITS - _SLICE_BITS + 1


def span_of(files: Iterable[DataFile]) -> int | None:
    """Return the slice of a batch's output, as one number; None where it has none.

    Quarantined records are no output.
    """
    own = [file for file in files if not file.quarantine]
    if not own:
        return None
    firsts = [file.first_event_time for file in own if file.first_event_time is not None]
    lasts = [file.last_event_time for file in own if file.last_event_time is not None]
    if len(firsts) < len(own) or len(lasts) < len(own):
        return UNKNOWN_SPAN
    first, last = _slice(min(firsts)), _slice(max(lasts))
    level = (first ^ last).bit_length()
    return _number(level, first >> level)


def _slice(time: datetime) -> int:
    return ((time - _BEGIN) // _MICROSECOND) >> _SLICE_BITS


def _number(level: int, place: int) -> int:
    return (level << _LEVEL_BITS) | place
