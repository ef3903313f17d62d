"""Progress: each shard with unread records progresses, or a sentence says why not (I11, I14)."""

from __future__ import annotations

from collections.abc import Hashable
from typing import TYPE_CHECKING

from dagster_leasehold.lease_store.identifiers import GroupKey, ShardId
from dagster_leasehold.lease_store.rules.states import ShardState
from dagster_leasehold.lease_store.shard_rows import ShardLease
from tests.simulation.soak.findings import TICK_S, Findings, Place, Since
from tests.simulation.soak.run_double import REFUSED

if TYPE_CHECKING:
    from tests.simulation.soak.world import World

STALL_LIMIT_S = 600.0
TIMEOUT_S = 20.0
PROGRESS_LIMIT_S = STALL_LIMIT_S + TIMEOUT_S + 2 * TICK_S
UNOWNED_LIMIT_S = 180.0
RETRY_LIMIT_S = 600.0
SHOWN_CHARACTERS_MAX = 300


class ProgressWatch:
    """Checks shards.

    Attributes:
        due: the shards that have to progress now.
    """

    def __init__(self, world: World, findings: Findings) -> None:
        self._world = world
        self._findings = findings
        self._since = Since()
        self._opened: dict[Place, float] = {}
        self.due: set[Place] = set()

    def opened(self, key: GroupKey, shard: ShardId) -> None:
        """Take note of a run that tries a shard."""
        self._opened[key, shard] = self._world.time.now_s

    def look(self, name: str) -> None:
        """Check every shard of a stream."""
        world, log = self._world, self._world.logs[name]
        key = world.keys[name]
        snapshot = world.snapshot(key)
        if snapshot is None:
            return
        leases = {lease.shard: lease for lease in snapshot.shards}
        held = {gap.shard for gap in world.store.store.gaps(key) if not gap.acknowledged}
        for shard in log.shards:
            lease = leases.get(shard)
            over = lease is not None and lease.state is ShardState.OVER
            left = log.unread(shard, lease.check_point if lease else None)
            unfinished = log.shards[shard].closed and not over
            if over or not (left or unfinished):
                self._since.forget((key, shard))
                continue
            excuse = self._excuse(name, snapshot.group.paused, lease, shard in held)
            self._look_at_shard(name, (key, shard), lease, left, excuse)

    def _excuse(self, name: str, paused: bool, lease: ShardLease | None, held: bool) -> str:
        """Return why a shard need not get on now; nothing where it has to."""
        world = self._world
        if not any(deployment.daemon_up for deployment in world.deployments):
            return "daemon"
        if world.logs[name].down:
            return world.logs[name].down
        if paused:
            return "paused"
        if lease is not None and lease.state is ShardState.WAIT:
            return "parents"
        if held:
            return "holds at gaps"
        if lease is not None and lease.shard in world.moods(name).failing:
            return REFUSED
        return ""

    def _look_at_shard(
        self, name: str, place: Place, lease: ShardLease | None, left: int, excuse: str
    ) -> None:
        now_s, (key, shard) = self._world.time.now_s, place
        progress = lease and (lease.check_point, lease.state is ShardState.WAIT)
        stood_s = self._since.held_s(("stood", place), now_s, holds=not excuse, state=progress)
        if not excuse and ("stood", place) not in self._findings.sentences:
            self.due.add(place)
        if stood_s > PROGRESS_LIMIT_S:
            state = f"{lease.state}, owner {lease.consumer_owner}" if lease else "not listed"
            self._findings.find(
                ("stood", place),
                f"shard {shard} of {key} stood still for {stood_s:.0f} s with {left} unread "
                f"records ({state}); its sensors say: {self.last_words(name)}",
            )
        unowned = lease is not None and lease.state is ShardState.NOT_ALLOC and not excuse
        if self._since.held_s(("owner", place), now_s, holds=unowned) > UNOWNED_LIMIT_S:
            self._findings.find(("owner", place), f"shard {shard} of {key} had no owner for long")
        # Callers of an unavailable store report that, and nothing else.
        state: Hashable = (excuse, self._world.store.down_until_s)
        excused_s = self._since.held_s(("excuse", place), now_s, holds=bool(excuse), state=state)
        state = self._opened.get(place)
        failing = excuse == REFUSED
        untried_s = self._since.held_s(("tried", place), now_s, holds=failing, state=state)
        if excuse in ("", "daemon", "parents") or excused_s <= PROGRESS_LIMIT_S:
            return
        if excuse.rstrip(".") not in self._sayings(name):
            self._findings.find(
                ("silent", place, excuse),
                f"shard {shard} of {key} stalls and nobody says why ({excuse}); its sensors "
                f"say: {self.last_words(name)}",
            )
        if untried_s > RETRY_LIMIT_S + self._world.quiet_s:
            self._findings.find(
                ("untried", place),
                f"shard {shard} of {key}, which fails, was not tried again for {untried_s:.0f} s",
            )

    def last_words(self, name: str) -> str:
        """Return the last words of a stream's rebalance sensors, and of its last failed run."""
        return self._sayings(name, ending="_rebalance")[:SHOWN_CHARACTERS_MAX]

    def _sayings(self, name: str, *, ending: str = "") -> str:
        """Return the last words of a stream's sensors, and of its last failed run."""
        texts = [
            text
            for deployment in self._world.deployments
            for sensor, text in deployment.messages.items()
            if sensor.startswith(f"{name}_") and sensor.endswith(ending)
        ]
        texts += [deployment.failures.get(name, "") for deployment in self._world.deployments]
        return " | ".join(text for text in texts if text)
