"""Places in a shard as people write them: `begin`, `end`, or a time."""

from __future__ import annotations

from datetime import UTC, datetime

from dagster_leasehold.shard_sources.source import Position


def parse_time(text: str) -> datetime | None:
    """An ISO 8601 date or time as a moment in UTC; None where the text is neither.

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
        moment = parsed.in_timezone("UTC")
        return datetime.combine(moment.date(), moment.time(), UTC)
    if isinstance(parsed, pendulum.Date):
        return datetime(parsed.year, parsed.month, parsed.day, tzinfo=UTC)
    return None


def parse_position(text: str) -> Position | datetime | None:
    """The place that `begin`, `end` or a time names; None where the text is none of these."""
    if text in (Position.BEGIN, Position.END):
        return Position(text)
    return parse_time(text)
