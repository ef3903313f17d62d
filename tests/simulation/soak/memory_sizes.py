"""The number of entries in the containers that a sensor keeps between its ticks."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any

import dagster as dg

from dagster_leasehold.sensors.steps import Step

PACKAGE = "dagster_leasehold."
CONTAINERS = (dict, list, tuple, set, frozenset, deque)


def entries_of(sensor: Step | dg.SensorDefinition) -> int:
    """Count the entries of all containers that a step, or a sensor's function, refers to.

    Followed are closures, containers and objects of the project's own classes; a store, a source
    and a Dagster instance are none of them.
    """
    seen: set[int] = set()
    waiting: list[Any] = [sensor if isinstance(sensor, Step) else sensor._raw_fn]
    entries = 0
    while waiting:
        thing = waiting.pop()
        if id(thing) in seen:
            continue
        seen.add(id(thing))
        if isinstance(thing, CONTAINERS):
            entries += len(thing)
        waiting.extend(_parts(thing))
    return entries


def _parts(thing: Any) -> Iterator[Any]:
    if isinstance(thing, dict):
        yield from thing.values()
    elif isinstance(thing, CONTAINERS):
        yield from thing
    elif getattr(thing, "__closure__", None):
        yield from (cell.cell_contents for cell in thing.__closure__)
    elif hasattr(thing, "__self__") and hasattr(thing, "__func__"):
        yield thing.__self__
    elif type(thing).__module__.startswith(PACKAGE):
        yield from vars(thing).values() if hasattr(thing, "__dict__") else ()
        for kind in type(thing).__mro__:
            for slot in getattr(kind, "__slots__", ()):
                yield getattr(thing, slot, None)
