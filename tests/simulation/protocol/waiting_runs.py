"""Runs that follow their shards: the pace of a seed, their waits, and the requests of others.

A following run does not end at the end of the log. It waits there, and has to react to each request
to release a shard or to end. Every wait is checked against the requests at its last check; the
number of that promise is I15.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from dagster_leasehold.lease_store.identifiers import ShardId
from dagster_leasehold.lease_store.member import Member
from dagster_leasehold.lease_store.rules.liveness import Clock
from dagster_leasehold.lease_store.rules.states import ShardState
from tests.simulation.protocol.configuration import FollowingPace
from tests.simulation.protocol.stage import Stage

WISH_RATE = 0.002
"""The probability that a run is asked to end, per store call."""
ANSWER_S = 1.0
LOOKS_MAX = 6
"""The most checks that a run needs to release a shard if replies are lost."""
LEAST_WAIT_S = 0.001
"""The shortest sleep: a timer is never early."""


@dataclass(frozen=True, slots=True)
class Wishes:
    """The requests that a run has not carried out yet.

    Attributes:
        take: shards of its node to open.
        let_go: shards to release.
        finish: end as soon as no record is due.
        stop: end at the next checkpoint.
    """

    take: tuple[ShardId, ...] = ()
    let_go: frozenset[ShardId] = frozenset()
    finish: bool = False
    stop: bool = False


class Follower(Protocol):
    """A run that follows its shards, as far as its waits concern it."""

    @property
    def name(self) -> str:
        """The run's unique id."""
        ...

    @property
    def heartbeat(self) -> Member:
        """The beats that keep its node alive."""
        ...

    @property
    def clock(self) -> Clock:
        """The host's monotonic clock."""
        ...

    @property
    def stop_requested(self) -> Callable[[], bool]:
        """A function that returns True if the run was asked to stop."""
        ...


@dataclass(eq=False)
class Waits:
    """The waits of one run, and the requests of others.

    Attributes:
        run: the run that waits.
        pace: the pace of its group.
        sleep: puts the run to sleep for seconds of its host's clock.
        stage: the stage, for the rows of the store and for violations.
        awaited: shards that it has not tried to open yet.
        finish: True once it was asked to end as soon as no record is due.
        stop: True once it was asked to end at its checkpoint.
    """

    run: Follower
    pace: FollowingPace
    sleep: Callable[[float], None]
    stage: Stage
    awaited: set[ShardId] = field(default_factory=set[ShardId])
    finish: bool = False
    stop: bool = False
    _take: list[ShardId] = field(default_factory=list[ShardId])
    _let_go: set[ShardId] = field(default_factory=set[ShardId])
    _looked_s: float = 0.0
    _must_end: str = ""
    _asked_for: Counter[ShardId] = field(default_factory=Counter[ShardId])
    _held: set[ShardId] | None = None

    @property
    def ending(self) -> bool:
        """True once it was asked to end."""
        return self.finish or self.stop

    def offer(self, shards: Sequence[ShardId]) -> None:
        """Ask the run to open further shards of its node."""
        self._take += shards
        self.awaited |= set(shards)

    def ask_back(self, shard: ShardId) -> None:
        """Ask the run to release a shard."""
        self._let_go.add(shard)

    def look(self) -> Wishes:
        """Return the requests, as a run reads them at each check."""
        run = self.run
        self._looked_s = run.clock()
        self._must_end = ""
        if not run.heartbeat.trusted:
            self._must_end = "its lease is not to be relied on"
        elif run.stop_requested():
            self._must_end = "its host is to leave"
        elif self.stop:
            self._must_end = "its definition is not the newest"
        self._look_at_shards()
        wishes = Wishes(tuple(self._take), frozenset(self._let_go), self.finish, self.stop)
        self._take.clear()
        self._let_go.clear()
        self.awaited.clear()
        return wishes

    def wait(self, seconds: float) -> None:
        """Let the run wait, unless a request is open."""
        stage, run = self.stage, self.run
        stage.waits["waited"] += 1
        if self._held is None:
            rows = stage.store.snapshot(stage.key).shards
            self._held = {lease.shard for lease in rows if lease.consumer_run == run.name}
        now_s = run.clock()
        if self._must_end:
            stage.violated(f"I15: {run.name} waits, although {self._must_end}")
        if now_s + seconds > max(now_s, self._looked_s + ANSWER_S) + LEAST_WAIT_S:
            unseen_s = now_s + seconds - self._looked_s
            stage.violated(f"I15: {run.name} looks at nothing for {unseen_s:.1f} s while it waits")
        for shard, looks in self._asked_for.items():
            if looks > LOOKS_MAX:
                stage.violated(
                    f"I15: {run.name} waits, and has shard {shard} open, which it was asked for"
                )
        self.sleep(max(seconds, LEAST_WAIT_S))

    def _look_at_shards(self) -> None:
        """Count for each shard the consecutive checks at which the run should have released it."""
        stage = self.stage
        snapshot = stage.store.snapshot(stage.key)
        rows = [lease for lease in snapshot.shards if lease.consumer_run == self.run.name]
        leaving = {lease.shard for lease in rows if lease.state is ShardState.TRANSFER}
        asked_for = {lease.shard for lease in rows} if snapshot.group.paused else leaving
        if self._held is not None:
            met = {
                "hand-over": bool(leaving - self._asked_for.keys()),
                "pause": bool(rows) and snapshot.group.paused,
                "loss": bool(self._held - {lease.shard for lease in rows}),
                self._must_end: bool(self._must_end),
            }
            stage.waits.update(what for what, happened in met.items() if happened)
            self._held = None
        self._asked_for = Counter({shard: self._asked_for[shard] + 1 for shard in asked_for})


class WishesByChance:
    """Asks following runs to end, at random.

    Args:
        stage: the stage.
        waits: returns the waits of the runs that follow now.
    """

    def __init__(self, stage: Stage, waits: Callable[[], list[Waits]]) -> None:
        self._stage = stage
        self._waits = waits

    def step(self) -> None:
        """Ask, or do nothing: one more store call is about to be made."""
        stage, chance = self._stage, self._stage.chance
        if stage.pace is None or stage.healed or chance.random() >= WISH_RATE:
            return
        waiting = self._waits()
        if not waiting:
            return
        if chance.random() < 0.5:
            chance.choice(waiting).finish = True
            return
        # A new definition is for the runs of all nodes.
        for waits in waiting:
            waits.stop = True
