"""The order of a shard's cursors, given by their text.

| text | place |
|---|---|
| `start`, `start+1767225600` | before all records |
| `12`, `12.3`, `12.3.1` | decimal numbers, compared one after the other; `12` is before `12.1` |
| `12+1767225600` | after `12` and all cursors that begin with `12.`; the seconds do not count |
| `gone` | after all records |

Other texts have no place, and are refused as checkpoints: if a checkpoint could not be compared, it
could go back, and records would be committed twice.
"""

from __future__ import annotations

import math
import re

from dagster_leasehold.lease_store.identifiers import CURSOR_LENGTH_MAX

Place = tuple[float, ...]
"""A position in a shard, comparable within the shard."""

_FORM = re.compile(r"(?P<numbers>[0-9]+(?:\.[0-9]+)*)(?P<after>\+[0-9]+)?", re.ASCII)
_BEFORE_ALL = re.compile(r"start(?:\+[0-9]+)?", re.ASCII)


def place_of(cursor: str) -> Place | None:
    """Return the place of a cursor, or None."""
    if len(cursor) > CURSOR_LENGTH_MAX:
        return None
    if match := _FORM.fullmatch(cursor):
        numbers = (int(number) for number in match["numbers"].split("."))
        return (1, *numbers, math.inf) if match["after"] else (1, *numbers)
    if cursor == "gone":
        return (2,)
    return (0,) if _BEFORE_ALL.fullmatch(cursor) else None


def is_before(cursor: str, other: str) -> bool:
    """Return True if both cursors have a place and the first comes before the second."""
    place, other_place = place_of(cursor), place_of(other)
    return place is not None and other_place is not None and place < other_place


def in_order(start: str, end: str) -> bool:
    """Return True if both cursors have a place and the second is not before the first."""
    place, end_place = place_of(start), place_of(end)
    return place is not None and end_place is not None and place <= end_place
