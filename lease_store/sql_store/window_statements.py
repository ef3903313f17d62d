"""The statements on windows of event time; values are always bound, never composed."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import Select, Update, select, update

from dagster_leasehold.lease_store.identifiers import GroupKey
from dagster_leasehold.lease_store.sql_store.group_statements import of_group
from dagster_leasehold.lease_store.tables import event_window, window_attempt


def select_windows(
    key: GroupKey, asset: str | None, since: datetime | None, until: datetime | None
) -> Select[Any]:
    """Windows that overlap a span, by asset and start."""
    chosen = select(event_window).where(of_group(event_window, key))
    if asset is not None:
        chosen = chosen.where(event_window.c.asset == asset)
    if since is not None:
        chosen = chosen.where(event_window.c.window_end > since)
    if until is not None:
        chosen = chosen.where(event_window.c.window_start < until)
    return chosen.order_by(event_window.c.asset, event_window.c.window_start)


def select_window(key: GroupKey, asset: str, start: datetime) -> Select[Any]:
    """One window, locked until the transaction ends."""
    return (
        select(event_window)
        .where(
            of_group(event_window, key),
            event_window.c.asset == asset,
            event_window.c.window_start == start,
        )
        .with_for_update()
    )


def update_window(
    key: GroupKey, asset: str, start: datetime, seen_version: int, values: dict[str, Any]
) -> Update:
    """Another version of a window in the place of the one that was seen."""
    return (
        update(event_window)
        .where(
            of_group(event_window, key),
            event_window.c.asset == asset,
            event_window.c.window_start == start,
            event_window.c.version == seen_version,
        )
        .values(values)
    )


def select_attempts(key: GroupKey, *, lock: bool = False) -> Select[Any]:
    """All rows for attempts, those that are free included, by slot."""
    chosen = select(window_attempt).where(of_group(window_attempt, key))
    chosen = chosen.order_by(window_attempt.c.slot)
    return chosen.with_for_update() if lock else chosen


def fill_slot(key: GroupKey, slot: int, values: dict[str, Any]) -> Update:
    """An attempt in a row that is free."""
    return (
        update(window_attempt)
        .where(
            of_group(window_attempt, key),
            window_attempt.c.slot == slot,
            window_attempt.c.attempt == "",
        )
        .values(values)
    )


def free_slot(key: GroupKey, attempt: str) -> Update:
    """The row of an attempt, free for another."""
    return (
        update(window_attempt)
        .where(of_group(window_attempt, key), window_attempt.c.attempt == attempt)
        .values(attempt="", run="")
    )
