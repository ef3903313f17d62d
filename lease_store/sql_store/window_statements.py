"""The statements on windows of event time; values are always bound, never composed."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import Insert, Select, Update, insert, select, update

from lease_store.identifiers import GroupKey
from lease_store.sql_store.statements import of_group
from lease_store.tables import event_window


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


def insert_window(values: dict[str, Any]) -> Insert:
    """A window's first row; its key refuses a second one."""
    return insert(event_window).values(values)


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
