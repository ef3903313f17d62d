"""The mark that each tick of the step `rebalance` leaves for the agents of its deployment.

Agents beat though the daemon is down, which would keep shards without runs. So
each tick leaves a new mark in Dagster's storage, which daemon and agents share, and a node whose
group gets no new mark counts as one that takes no runs.

The mark is left at the end of a tick. Left at its beginning, the first agent to see it might take
runs again while that tick still plans, and would be given the shards of all the others.
"""

from __future__ import annotations

import hashlib
import logging
import uuid
from collections.abc import Collection

import dagster as dg

from dagster_leasehold.lease_store.identifiers import GroupKey

_LOG = logging.getLogger(__name__)


def leave_tick_mark(instance: dg.DagsterInstance, key: GroupKey) -> None:
    """Leave a new mark for a group; a storage that does not take it is logged."""
    mark = {_place_of(key): uuid.uuid4().hex}
    try:
        instance.daemon_cursor_storage.set_cursor_values(mark)
    except Exception as error:
        # Any error of the storage's driver; the tick's work is done, and it stands.
        _LOG.warning("Dagster's storage took no mark of this tick: %s.", type(error).__name__)


def tick_marks(instance: dg.DagsterInstance, keys: Collection[GroupKey]) -> dict[GroupKey, str]:
    """Return the mark of the last tick for each group; empty where no tick ever left one."""
    places = {key: _place_of(key) for key in keys}
    marks = instance.daemon_cursor_storage.get_cursor_values(set(places.values()))
    return {key: marks.get(place, "") for key, place in places.items()}


def _place_of(key: GroupKey) -> str:
    # MySQL tells only the first 64 characters of such a name apart.
    return f"leasehold/tick/{hashlib.sha256(str(key).encode()).hexdigest()[:32]}"
