"""Times for people: the wall clock, and ISO 8601 text read and written by pendulum."""

from __future__ import annotations

from datetime import UTC, datetime


def parse_time(text: str) -> datetime | None:
    """Return an ISO 8601 date or time as a moment in UTC; None where the text is neither.

    Without an offset it means UTC, and a date alone its first moment. A bare number is never a
    time, although ISO 8601 would take some for one: it is far more often a cursor.
    """
    import pendulum

    if text.isdecimal():
        return None
    try:
        parsed = pendulum.parse(text, exact=True)
    except (ValueError, TypeError, OverflowError):
        return None  # the last two come from texts that look like an interval
    if isinstance(parsed, pendulum.DateTime):
        try:
            moment = parsed.in_timezone("UTC")
        except OverflowError:
            return None  # its offset puts it outside the years 1 to 9999
        return datetime.combine(moment.date(), moment.time(), UTC)
    if isinstance(parsed, pendulum.Date):
        return datetime(parsed.year, parsed.month, parsed.day, tzinfo=UTC)
    return None


def stored_time(text: str) -> datetime:
    """Return the moment that `time_text` has written, in UTC.

    Raises:
        ValueError: the text is no time.
    """
    moment = parse_time(text)
    if moment is None:
        raise ValueError("the text is no time")
    return moment


def time_text(moment: datetime) -> str:
    """Return a time in ISO 8601 with its own offset, or with none where it has no time zone."""
    import pendulum

    return pendulum.instance(moment, tz=None).isoformat()


def utc_now() -> datetime:
    """Return the wall clock's time in UTC, for dates that people read; it decides nothing."""
    return datetime.now(UTC)
