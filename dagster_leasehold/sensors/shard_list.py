"""The step that copies a source's shard list to the lease tables and to Dagster's partitions.

It also reports observations of the log, with shard bounds and unread records.
"""

import hashlib
import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import datetime
from functools import partial

import dagster as dg

from dagster_leasehold.assets.deployment import Deployment
from dagster_leasehold.assets.log_asset import log_observation
from dagster_leasehold.assets.partitions import definition_name
from dagster_leasehold.assets.shard_stream import ShardStream
from dagster_leasehold.lease_store import failpoints
from dagster_leasehold.lease_store.errors import GroupExists, UnknownGroup
from dagster_leasehold.lease_store.rules.failing_steps import FailingSteps
from dagster_leasehold.lease_store.rules.liveness import Clock, steady_clock
from dagster_leasehold.lease_store.shard_rows import ShardListing
from dagster_leasehold.lease_store.store import GroupsAndShards
from dagster_leasehold.lease_store.times import utc_now
from dagster_leasehold.sensors import EVERY_THIRD_LOOP_S
from dagster_leasehold.sensors.steps import Outcome, Step, Tick
from dagster_leasehold.shard_sources.lag import lags_of, unread_times

TICKS_BETWEEN_REPEATS = 4
OBSERVE_EVERY_S = 300.0
"""The shortest time between two observations of a stream's log, in seconds."""


@dataclass(slots=True)
class _LastSync:
    digest: str = ""
    ticks: int = 0


@dataclass(slots=True)
class LogWatch:
    """The observations of a stream's log. They are rare, since Dagster stores all of them."""

    stream: ShardStream
    deployment: Deployment
    clock: Clock
    now: Callable[[], datetime] = utc_now
    _due_s: float = float("-inf")
    _last: str = ""

    def observations(self) -> list[dg.AssetObservation]:
        """Return an observation if the log has changed, at most one in `OBSERVE_EVERY_S`."""
        if self.clock() < self._due_s:
            return []
        # Set first, so that a slow observation is not repeated in the next tick.
        self._due_s = self.clock() + OBSERVE_EVERY_S
        source, leases = (
            self.stream.source,
            self.deployment.store().snapshot(self.stream.key).shards,
        )
        lags = lags_of(source, leases)
        ages = lags.seconds(unread_times(source, lags.behind), self.now())
        observed = log_observation(self.stream, leases, lags, ages)
        digest = hashlib.sha256(repr(observed.metadata).encode()).hexdigest()
        if digest == self._last:
            return []
        self._last = digest
        return [observed]


def create_missing_group(store: GroupsAndShards, stream: ShardStream, *, timeout_s: float) -> bool:
    """Create a stream's group as declared; return False if it already exists."""
    try:
        store.create_group(stream.new_group(timeout_s))
    except GroupExists:
        return False
    return True


def sync_listing(
    store: GroupsAndShards, stream: ShardStream, listing: list[ShardListing], *, timeout_s: float
) -> str:
    """Copy a shard list to the lease tables, and create the group if it does not exist.

    The declaration sets the group's settings only when the group is created. Later, `leasehold
    group update` changes them.
    """
    observer = f"{definition_name(stream)}_shard_list"
    note = ""
    try:
        synced = store.sync_shards(stream.key, listing, observer=observer)
    except UnknownGroup:
        made = create_missing_group(store, stream, timeout_s=timeout_s)
        note = f"the consumer group {stream.key} was just created; "
        if made:
            note = f"created the consumer group {stream.key}; "
        synced = store.sync_shards(stream.key, listing, observer=observer)
    return f"{note}{len(synced.added)} shards added to the group, {len(synced.changed)} changed"


def shard_list_step(
    stream: ShardStream, deployment: Deployment, clock: Clock = steady_clock
) -> Step:
    """Return the step `shard_list`; `clock` returns monotonic seconds.

    It writes the shards and their parents to the lease tables, and adds a partition per shard to
    Dagster. It never removes a partition.
    """
    memory = _LastSync()
    steps = FailingSteps(clock)
    watch = LogWatch(stream, deployment, clock)

    def sync(listing: list[ShardListing]) -> str:
        digest = _digest(listing)
        memory.ticks += 1
        # An unchanged list is also copied at times, since the lease tables can come from an older
        # backup.
        if digest == memory.digest and memory.ticks < TICKS_BETWEEN_REPEATS:
            return f"{len(listing)} shards, unchanged"
        timeout_s = deployment.timing.timeout_s
        result = sync_listing(deployment.store(), stream, listing, timeout_s=timeout_s)
        memory.digest, memory.ticks = digest, 0
        return result

    def work(tick: Tick) -> Outcome:
        steps.begin()
        instance = tick.instance
        listing = stream.source.list_shards()
        # Dagster stores partitions, so they can be added while the lease tables are unavailable.
        write = partial(sync, listing)
        result = steps.attempt("writing the lease tables", write, "", at_once=True)
        # Skipped after a failed write, since the observation reads the same tables.
        observed = steps.attempt("observing the log", watch.observations, []) if result else []
        for event in observed:
            instance.report_runless_asset_event(event)
        partitioned = set(instance.get_dynamic_partitions(stream.name))
        missing = [row.shard for row in listing if row.shard not in partitioned]
        if missing:
            failpoints.reach("before_partitions")
            instance.add_dynamic_partitions(stream.name, missing)
        parts = [part for part in (result, *steps.notes) if part]
        line = f"{'; '.join(parts)}; {len(missing)} missing partitions added."
        return Outcome(line, trouble=bool(steps.notes))

    return Step(stream, "shard_list", work, EVERY_THIRD_LOOP_S)


def _digest(listing: list[ShardListing]) -> str:
    text = json.dumps([asdict(row) for row in listing], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()
