"""The mark that each tick of the step `rebalance` writes for the deployment's agents.

While Dagster's daemon is down, agents still send heartbeats, but no runs are launched for their
nodes. So each tick writes a new mark to Dagster's storage, which the daemon and the agents share.
An agent that reads no new mark registers its node as accepting no runs, and other nodes get its
shards.

The mark is written at the end of a tick. If it were written at the beginning, the first agent that
reads it could accept runs again while the tick is still planning, and the plan would give its node
the shards of all other nodes.
"""

from __future__ import annotations

import hashlib
import logging
import uuid
from collections.abc import Collection

import dagster as dg

from dagster_leasehold.lease_store.identifiers import GroupKey

_LOG = logging.getLogger(__name__)


def write_tick_mark(instance: dg.DagsterInstance, key: GroupKey) -> None:
    """Write a new mark for a group; log it if the storage fails."""
    mark = {_place_of(key): uuid.uuid4().hex}
    try:
        instance.daemon_cursor_storage.set_cursor_values(mark)
    except Exception as error:
        # Any error of the storage's driver. The tick's work remains valid.
        _LOG.warning("Dagster's storage did not store this tick's mark: %s.", type(error).__name__)


def tick_marks(instance: dg.DagsterInstance, keys: Collection[GroupKey]) -> dict[GroupKey, str]:
    """Return the last mark of each group; an empty text without one."""
    places = {key: _place_of(key) for key in keys}
    marks = instance.daemon_cursor_storage.get_cursor_values(set(places.values()))
    return {key: marks.get(place, "") for key, place in places.items()}


def _place_of(key: GroupKey) -> str:
    # MySQL compares only the first 64 characters of such a key.
    return f"leasehold/tick/{hashlib.sha256(str(key).encode()).hexdigest()[:32]}"
