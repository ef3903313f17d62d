"""The watch of a soak, checked after every step; a broken promise is a finding, a sentence.

* Exactly once: commits of a shard follow each other without a gap that is not recorded (I3).
* No live node is evicted, and no sensor raises an error.
* Every batch reaches the hook and Dagster.
* `progress_watch`: each shard with unread records progresses, or a sentence says why not.
* `hours_watch`: every complete hour is computed, every late record counted.
* `growth_watch`: the cost of a tick, and the memory of processes, do not grow with age.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from dagster_leasehold.lease_store.identifiers import GroupKey, NodeName, ShardId
from dagster_leasehold.lease_store.outcomes import Changed
from tests.simulation.soak.findings import Figures, Findings, Place, Since
from tests.simulation.soak.growth_watch import GrowthWatch
from tests.simulation.soak.hours_watch import HoursWatch
from tests.simulation.soak.progress_watch import ProgressWatch

if TYPE_CHECKING:
    from tests.simulation.soak.dagster_double import DagsterDouble
    from tests.simulation.soak.world import World

DELIVERY_LIMIT_S = 900.0
"""The longest time until a batch has reached the hook and Dagster, with a wait for a retry."""


class Watch:
    """Checks one world; `findings` are sentences."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._findings = Findings(world.shape, world.time)
        self._since = Since()
        self.figures = Figures()
        self.progress = ProgressWatch(world, self._findings)
        self.hours = HoursWatch(world, self._findings, self.figures)
        self.growth = GrowthWatch(world, self._findings, self.figures)
        self._covered: dict[Place, str] = {}
        self._next: dict[GroupKey, dict[ShardId, int]] = defaultdict(dict)
        self._unhooked: dict[tuple[GroupKey, str], float] = {}
        self._last_run: dict[Place, str] = {}

    @property
    def findings(self) -> list[str]:
        """The findings so far."""
        return list(self._findings.sentences.values())

    def next_numbers(self, key: GroupKey) -> Mapping[ShardId, int]:
        """Return for each shard the number of the batch after its last."""
        return self._next[key]

    # -- the store ------------------------------------------------------------------------------

    def after(
        self, verb: str, args: tuple[Any, ...], options: Mapping[str, Any], outcome: object
    ) -> None:
        """Take note of a verb that took effect."""
        if verb == "commit":
            for commit in args[0]:
                if isinstance(outcome[commit.tenure.shard], Changed):  # type: ignore[index]
                    self._committed(commit)
        elif verb == "open_tenure":
            self.progress.opened(args[0], args[1])
        elif verb == "open_tenures":
            for shard in args[1]:
                self.progress.opened(args[0], shard)
        elif verb == "evict" and isinstance(outcome, Changed):
            self._evicted(args[0], args[1])
        elif verb == "record_gap" and options.get("skip", True):
            self.figures.gaps += 1
            place = args[0].key, args[0].shard
            self._cover(place, options["start"], options["end"])
        elif verb == "put_window" and isinstance(outcome, Changed):
            self.hours.put(args[1])

    def _committed(self, commit: Any) -> None:
        key, shard = commit.tenure.key, commit.tenure.shard
        if commit.sequence < self._next[key].get(shard, 0):
            return  # sent again after a lost reply
        self.growth.committed()
        self._next[key][shard] = commit.sequence + 1
        self._cover((key, shard), commit.start, commit.end)
        if self._last_run.get((key, shard)) == commit.tenure.run:
            self.figures.followed += 1
        self._last_run[key, shard] = commit.tenure.run
        if commit.hooked:
            self._unhooked[key, f"{shard}.{commit.sequence}"] = self._world.time.now_s

    def _cover(self, place: Place, start: str, end: str) -> None:
        before = self._covered.get(place, "0")
        if start != before:
            self._findings.find(
                ("once", place),
                f"shard {place[1]} of {place[0]} continued at {start} after {before}: records were "
                "skipped or read twice",
            )
        self._covered[place] = end

    def _evicted(self, key: GroupKey, node: NodeName) -> None:
        if any(deployment.alive(node) for deployment in self._world.deployments):
            self._findings.find(("evicted", node), f"node {node} of {key} is alive and was evicted")

    # -- hooks, the daemon ----------------------------------------------------------------------

    def hooked(self, key: GroupKey, batch_id: str) -> None:
        """Record a batch for which the hook of its stream was called."""
        self.figures.hooked += 1
        self._unhooked.pop((key, batch_id), None)

    def tick_failed(self, deployment: DagsterDouble, sensor: str, error: Exception) -> None:
        """Record a sensor that raised an error instead of reporting it."""
        self._findings.find(
            ("tick", sensor, type(error)),
            f"the whole tick of {sensor} of {deployment.name} stood still: it raised "
            f"{type(error).__name__}: {error}",
        )

    def look_for_open_shards(self, name: str) -> None:
        """Note shards of a paused group that a run still has open: no run may wait with them."""
        key = self._world.keys[name]
        snapshot = self._world.snapshot(key)
        for lease in snapshot.shards if snapshot else ():
            if lease.consumer_run:
                self._findings.find(
                    ("asked", key),
                    f"run {lease.consumer_run} of {key} waits with shard {lease.shard}, though "
                    "its group has been paused",
                )

    # -- looks ----------------------------------------------------------------------------------

    def look(self) -> None:
        """Check everything that has to progress; called after each step."""
        self.progress.due = set()
        if not self._world.store.down:
            for name in self._world.logs:
                self.progress.look(name)
        self._look_at_hooks()
        self.hours.look()

    def look_at_all_that_grows(self) -> None:
        """Check sizes, outbox and history; called from time to time."""
        self.growth.look_at_sizes()
        self._look_at_outbox()
        self.growth.look_at_history()

    def _look_at_hooks(self) -> None:
        world = self._world
        excused = world.hook_fails or world.store.down
        excused = excused or not any(each.daemon_up for each in world.deployments)
        waiting = not excused and bool(self._unhooked)
        oldest = next(iter(self._unhooked), None)
        waited_s = self._since.held_s(("hook",), world.time.now_s, holds=waiting, state=oldest)
        if waited_s > DELIVERY_LIMIT_S:
            self._findings.find(
                "hook",
                f"on_commit was not called for {len(self._unhooked)} batches: the oldest, "
                f"{oldest}, has not moved for {waited_s:.0f} s",
            )

    def _look_at_outbox(self) -> None:
        """Check the outbox: its run or the step `outbox` reports every batch to Dagster."""
        world = self._world
        up = all(deployment.daemon_up for deployment in world.deployments)
        for name, key in world.keys.items():
            if world.snapshot(key) is None:
                continue
            pending = world.store.store.pending_events(key)
            oldest = pending[0] if pending else None
            waiting = oldest is not None and up
            number = oldest.sequence if oldest else 0
            waited_s = self._since.held_s(
                ("outbox", key), world.time.now_s, holds=waiting, state=number
            )
            if waited_s > DELIVERY_LIMIT_S + world.quiet_s and oldest is not None:
                self._findings.find(
                    ("outbox", key),
                    f"Dagster was not told of batch {oldest.batch_id} of {name} for "
                    f"{waited_s:.0f} s",
                )
