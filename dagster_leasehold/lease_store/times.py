"""Times for people: the wall clock, and ISO 8601 text."""

from __future__ import annotations

from datetime import UTC, datetime
from functools import partial


def parse_time(text: str) -> datetime | None:
    """Return an ISO 8601 date or time in UTC, or None for other texts.

    The default offset is UTC. A bare number is not a time, because it is usually a cursor.
    """
    import pendulum

    if text.isdecimal():
        return None
    try:
        parsed = pendulum.parse(text, exact=True)
    except (ValueError, TypeError, OverflowError):
        return None  # the last two are raised for texts like an interval
    if isinstance(parsed, pendulum.DateTime):
        try:
            moment = parsed.in_timezone("UTC")
        except OverflowError:
            return None  # in UTC it is outside the years 1 to 9999
        return datetime.combine(moment.date(), moment.time(), UTC)
    if isinstance(parsed, pendulum.Date):
        return datetime(parsed.year, parsed.month, parsed.day, tzinfo=UTC)
    return None


def stored_time(text: str) -> datetime:
    """Return the time in a text of `time_text`, in UTC; raise ValueError for other texts."""
    moment = parse_time(text)
    if moment is None:
        raise ValueError("the text is not a time")
    return moment


def time_text(moment: datetime) -> str:
    """Return a time in ISO 8601 with its offset, if it has a time zone."""
    import pendulum

    return pendulum.instance(moment, tz=None).isoformat()


utc_now = partial(datetime.now, UTC)
"""The wall clock's time in UTC, for people only."""
