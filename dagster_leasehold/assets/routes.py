"""Routes: the names that send records to tables of their own, beside the stream's table.

A name comes from a column of the records, and becomes part of the names of files and tables. So
it is parsed first. Spark's workers import this module, so it needs no library.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from dagster_leasehold.lease_store.errors import InvalidSetting, shown

ROUTE = r"[a-z0-9_]{1,64}"
ROUTE_COLUMN = "route"
"""The column that a route's function fills."""
STREAM_ONLY, QUARANTINE = "stream", "quarantine"
"""The values of `unknown_routes` that are not the name of a route."""
_ROUTE = re.compile(ROUTE)
_IN_FILE_NAME = re.compile(rf"\.[^./]*-route_({ROUTE})\.parquet\Z")

RouteFunction = Callable[[Any], Any]
"""Returns the route of each row of an Arrow table."""


def parsed_route(name: str | None) -> str:
    """Return the name of a route in lower case; empty if it is not a valid name."""
    lower = (name or "").lower()
    return lower if _ROUTE.fullmatch(lower) else ""


def route_suffix(route: str) -> str:
    """Return the end of the rest in the name of a route's file."""
    return f"-route_{route}" if route else ""


def route_of(path: str) -> str:
    """Return the route of the records in a file, from its name; empty for none."""
    match = _IN_FILE_NAME.search(path)
    return match[1] if match else ""


def check_unknown_routes(value: str) -> None:
    """Check the setting `unknown_routes`.

    Raises:
        InvalidSetting: it is neither `stream`, `quarantine` nor the name of a route.
    """
    if not _ROUTE.fullmatch(value):
        raise InvalidSetting(
            f"unknown_routes is {shown(value)}: use stream, quarantine, or the name of a route, "
            "which has up to 64 lower-case letters, digits and underscores."
        )


@dataclass(frozen=True, slots=True)
class Routing:
    """The rule by which a task divides the rows of a batch by route.

    Attributes:
        column: the column with the names.
        routes: the routes that the stream already has.
        room: the most routes that a task can add.
        fallback: the route of records with an unknown route; empty for none.
        quarantines: True if these records go to quarantine instead.
    """

    column: str
    routes: frozenset[str] = frozenset()
    room: int = 0
    fallback: str = ""
    quarantines: bool = False
