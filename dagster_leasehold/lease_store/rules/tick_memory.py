"""Text that one tick leaves to the next one, which may run in another process, and its reading."""

from __future__ import annotations

import json
from typing import Any, cast

from dagster_leasehold.lease_store.identifiers import IDENTIFIER_LENGTH_MAX

REMEMBERED_CHARACTERS_MAX = 1_000_000
UNCHANGED_MAX_S = 1e9
FORMAT = 1


def floor_to_tenth(seconds: float) -> float:
    """Round down to a tenth: an observer may only ever claim to have waited less."""
    return max(int(seconds * 10) / 10, 0.0)


def parse_memory(text: str) -> dict[str, Any]:
    """Return remembered text as a mapping; an empty one if it is no such text."""
    if not text or len(text) > REMEMBERED_CHARACTERS_MAX:
        return {}
    try:
        memory = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    if not isinstance(memory, dict):
        return {}
    memory = cast("dict[str, Any]", memory)
    return memory if memory.get("format") == FORMAT else {}


def recall_incarnations(text: str, place: str) -> dict[str, str]:
    """Return the incarnations that a predecessor in the same place remembered, by node.

    In another place (after a reboot, in a new container) nobody can see what became of the runs
    that were launched under them, so that the nodes begin anew there: their former incarnations
    fall silent, and what dead runs had open is freed.
    """
    memory = parse_memory(text)
    section = memory.get("incarnations")
    if memory.get("place", "") != place or not isinstance(section, dict):
        return {}
    return {
        name: incarnation
        for name, incarnation in cast("dict[str, Any]", section).items()
        if isinstance(incarnation, str) and 0 < len(incarnation) <= IDENTIFIER_LENGTH_MAX
    }


def entries(text: str, part: str) -> list[tuple[str, int, float, str]]:
    """Return one part of remembered text as name, value, seconds unchanged, and incarnation.

    Whatever is not of that form is left out.
    """
    section = parse_memory(text).get(part)
    if not isinstance(section, dict):
        return []
    valid: list[tuple[str, int, float, str]] = []
    for name, entry in cast("dict[str, Any]", section).items():
        if not isinstance(entry, list):
            continue
        entry = cast("list[Any]", entry)
        value, unchanged_s, incarnation = [*entry, None, None, None][:3]
        # A bool is an int to Python, and NaN compares as false with everything.
        if type(value) is not int or isinstance(unchanged_s, bool):
            continue
        if not isinstance(unchanged_s, int | float) or not 0 <= unchanged_s < UNCHANGED_MAX_S:
            continue
        owner = incarnation if isinstance(incarnation, str) else ""
        valid.append((name, value, float(unchanged_s), owner))
    return valid
