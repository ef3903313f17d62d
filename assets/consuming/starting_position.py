"""Where a shard without a checkpoint begins, as a group's settings say it."""

from __future__ import annotations

from datetime import datetime

from dagster_leasehold.lease_store.errors import InvalidSetting, shown
from dagster_leasehold.shard_sources.positions import parse_position
from dagster_leasehold.shard_sources.source import Position


def initial_position(text: str) -> Position | datetime:
    """The place that a group's `initial_position` names.

    Raises:
        InvalidSetting: it is not `begin`, `end` or an ISO 8601 time.
    """
    position = parse_position(text)
    if position is None:
        raise InvalidSetting(
            f"The initial position is {shown(text)}: use 'begin', 'end' or a time such as "
            "2026-01-31T08:00:00+00:00."
        )
    return position
