"""The wall clock, for dates that people read; nothing is ever decided by it."""

from __future__ import annotations

from datetime import UTC, datetime


def utc_now() -> datetime:
    """Return the present time in UTC."""
    return datetime.now(UTC)
