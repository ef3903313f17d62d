"""A world for a soak: logs, a lease store, one or two deployments, and their incidents.

Time moves in steps. While work is due (records are unread, a run is working, an incident just
happened) a step is a tick of 5 s, as the daemon's. Otherwise it is as long as `quiet_s`. The
skipped ticks are those in which every live process would only have beaten, and their beats are
replaced by one.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Any

from dagster_leasehold.assets.commit_hook import CommittedBatch
from dagster_leasehold.assets.shard_stream import ShardStream
from dagster_leasehold.assets.windows.hourly_asset import HourlyAsset, LateAction, LatePolicy
from dagster_leasehold.lease_store.errors import UnknownGroup
from dagster_leasehold.lease_store.group_rows import GapPolicy, Snapshot
from dagster_leasehold.lease_store.identifiers import GroupKey
from dagster_leasehold.lease_store.memory_store import MemoryStore
from dagster_leasehold.lease_store.rules.event_frontier import HOUR
from dagster_leasehold.lease_store.rules.states import ShardState
from dagster_leasehold.lease_store.store import LeaseStore
from dagster_leasehold.shard_sources.source import Limits
from tests.simulation.soak.dagster_double import DagsterDouble
from tests.simulation.soak.findings import TICK_S
from tests.simulation.soak.run_double import Moods
from tests.simulation.soak.synthetic_log import SyntheticLog
from tests.simulation.soak.virtual_time import VirtualTime
from tests.simulation.soak.watch import Watch
from tests.simulation.soak.watched_store import WatchedStore

BEGAN = datetime(2020, 1, 1, tzinfo=UTC)
"""The virtual wall clock at second 0: long ago, so that Dagster knows every hour's partition."""
ALERT_S = 60.0
"""For how long after an incident steps are short."""
LEAD_S = 30.0
"""How long before an incident steps are short."""
SIZES_EVERY = 200
DAY_S = 86_400.0
MONTH_S = 30 * DAY_S
RECORDS_PER_APPEND = 10
STEADY_APPENDS, STEADY_S = 9, 25.0
"""The appends while runs follow, and the time between two of them: more than a commit interval."""


class Shape(StrEnum):
    """The ways in which nodes are deployed."""

    EMBEDDED = "embedded"
    AGENTS = "agents"
    TWO = "two deployments"


@dataclass(frozen=True)
class Pace:
    """The coarsening of a soak.

    Attributes:
        quiet_s: the longest step.
        traffic_s: how often each shard gets records.
        quiet_appends: after how many appends the shards get records one after the other for a
            while, so that runs follow them; 0 for never.
    """

    quiet_s: float = 21_600.0
    traffic_s: float = 43_200.0
    quiet_appends: int = 12

    def pause_s(self, number: int) -> float:
        """Return the time from an append to the next one, in seconds."""
        if not self.quiet_appends:
            return self.traffic_s
        at = number % (self.quiet_appends + STEADY_APPENDS)
        return self.traffic_s if at < self.quiet_appends else STEADY_S


@dataclass(frozen=True)
class Incident:
    """Something that happens at a moment, in virtual seconds."""

    at_s: float
    name: str
    action: Callable[[World], object]


@dataclass
class World:
    """One shape of deployment over years.

    `orders` has hours, splits and most of the incidents; `parcels` is the stream one shard of
    which fails for ever.
    """

    shape: Shape
    folder: Path
    time: VirtualTime
    pace: Pace = field(default_factory=Pace)
    seed: int = 0
    orders: int = 4
    parcels: int = 3
    failing: bool = True
    new_store: Callable[[Callable[[], datetime]], LeaseStore] = MemoryStore

    def __post_init__(self) -> None:
        self.chance = random.Random(self.seed)
        self.since = BEGAN
        self.hook_fails = False
        self.incidents: list[str] = []
        self.say: Callable[[str], object] = lambda _: None
        self._alert_until_s = ALERT_S
        self._traffic_at_s = 0.0
        self._appends = 0
        self._said_s = 0.0
        self.steps = 0
        self.watch = Watch(self)
        self.store = WatchedStore(self.new_store(lambda: self.now), self.time, self.watch)
        self.logs: dict[str, SyntheticLog] = {}
        self.keys: dict[str, GroupKey] = {}
        self._moods: dict[str, Moods] = {}
        self._streams: list[ShardStream] = []
        for name, shards in (("orders", self.orders), ("parcels", self.parcels)):
            if shards:
                self._declare(name, shards)
        if self.failing and self.parcels:
            self._moods["parcels"].failing |= {self.logs["parcels"].open_shards()[0]}
        self.deployments = self._deploy()

    def _declare(self, name: str, shards: int) -> None:
        log = self.logs[name] = SyntheticLog(shards)
        stream = ShardStream(
            name=name,
            source=log,  # pyright: ignore[reportArgumentType]
            limits=Limits(records_max=10 * RECORDS_PER_APPEND),
            gap_policy=GapPolicy.HOLD if self.shape is Shape.EMBEDDED else GapPolicy.BEGIN,
            on_commit=self._hook if name == "orders" else None,
        )
        self.keys[name] = stream.key
        self._moods[name] = Moods(set(), set())
        self._streams.append(stream)

    def _deploy(self) -> list[DagsterDouble]:
        hourly = None
        if "orders" in self.logs:
            hourly = HourlyAsset(
                "orders_hours",
                self._streams[0],
                transform=lambda frame: frame,
                since=self.since,
                late=LatePolicy(LateAction.RERUN),
            )
        built = partial(self._deployment, streams=self._streams)
        if self.shape is Shape.EMBEDDED:
            return [built("embedded", "ab", agents=False, hourly=hourly)]
        if self.shape is Shape.AGENTS:
            return [built("agents", "abc", agents=True, hourly=hourly)]
        return [
            built("north", "ab", agents=True, hourly=hourly),
            built("south", "cd", agents=False, hourly=None),
        ]

    def _deployment(
        self, name: str, nodes: str, *, agents: bool, hourly: Any, streams: Sequence[ShardStream]
    ) -> DagsterDouble:
        folder = self.folder / name
        folder.mkdir(parents=True)
        return DagsterDouble(
            self, name, tuple(nodes), agents=agents, streams=streams, hourly=hourly, folder=folder
        )

    @property
    def output(self) -> Path:
        """The folder of committed output, which all deployments share."""
        return self.folder / "output"

    # -- what others ask ------------------------------------------------------------------------

    @property
    def quiet_s(self) -> float:
        """The longest step."""
        return self.pace.quiet_s

    @property
    def now(self) -> datetime:
        """The virtual wall clock, for event times alone."""
        return BEGAN + timedelta(seconds=self.time.now_s)

    @property
    def shards_ever(self) -> int:
        """The number of shards that the logs ever had."""
        return sum(len(log.shards) for log in self.logs.values())

    def moods(self, stream: str) -> Moods:
        """Return the things that go wrong in the runs of a stream."""
        return self._moods[stream]

    def snapshot(self, key: GroupKey) -> Snapshot | None:
        """Return a group as the store has it, without counting the call; None before it exists."""
        try:
            return self.store.store.snapshot(key)
        except UnknownGroup:
            return None

    def frontier(self, stream: str) -> datetime | None:
        """Return the event time up to which the output of a stream is complete."""
        snapshot = self.snapshot(self.keys[stream])
        listed = {lease.shard for lease in snapshot.shards} if snapshot else set()
        if snapshot is None or listed < self.logs[stream].shards.keys():
            return None
        marks = [row.watermark for row in snapshot.shards if row.state is not ShardState.OVER]
        return None if None in marks or not marks else min(mark for mark in marks if mark)

    def _hook(self, batch: CommittedBatch) -> None:
        if self.hook_fails:
            raise RuntimeError("The service behind the hook is away.")
        self.watch.hooked(batch.key, batch.batch_id)

    def update_group(self, stream: str, **changes: Any) -> None:
        """Change a group's settings, as an operator does."""
        group = self.store.store.pulse(self.keys[stream]).group
        self.store.store.update_group(replace(group, **changes), observer="soak")

    def append_late(self, stream: str, records: int) -> None:
        """Append records to one shard for an hour that was made a while ago."""
        hours = self.watch.hours
        hour = hours.next_hour - 5 * HOUR
        if hour < self.since or not hours.made(hour):
            return
        log = self.logs[stream]
        log.append(log.open_shards()[0], records, hour, late=True)
        hours.late_expected[hour] += records + hours.late_of(hour)

    # -- time -----------------------------------------------------------------------------------

    def run(
        self, until_s: float, incidents: Sequence[Incident] = (), *, first: bool = False
    ) -> None:
        """Continue until a moment, or with `first` until there is a finding."""
        waiting = sorted(incidents, key=lambda each: each.at_s)
        while self.time.now_s < until_s and not (first and self.watch.findings):
            while waiting and waiting[0].at_s <= self.time.now_s:
                incident = waiting.pop(0)
                self.incidents.append(incident.name)
                incident.action(self)
                self._alert_until_s = self.time.now_s + ALERT_S
            self._append()
            self._step()
            # Ordinary ticks come before an incident, so that all processes have just checked.
            next_s = waiting[0].at_s - LEAD_S if waiting else until_s
            self._go_on(min(next_s, self._traffic_at_s))

    def _append(self) -> None:
        if self.time.now_s < self._traffic_at_s:
            return
        self._appends += 1
        self._traffic_at_s = self.time.now_s + self.pace.pause_s(self._appends)
        for log in self.logs.values():
            for shard in log.open_shards():
                log.append(shard, RECORDS_PER_APPEND, self.now)

    def _step(self) -> None:
        # Who comes first is chance: daemons among each other, and before or after agents and runs.
        turns = [self.time.settle, *(deployment.tick for deployment in self.deployments)]
        self.chance.shuffle(turns)
        for turn in turns:
            turn()
        self.time.settle()
        self.watch.look()
        self.steps += 1
        if self.time.now_s >= self._said_s + MONTH_S:
            self._said_s += MONTH_S
            self.say(
                f"{self.shape}: day {self.time.now_s / DAY_S:,.0f}, {self.steps:,} steps, "
                f"{len(self.watch.findings)} findings"
            )
        if self.steps % SIZES_EVERY == 0:
            self.watch.look_at_all_that_grows()
            for deployment in self.deployments:
                deployment.delete_old_runs()

    def _go_on(self, next_s: float) -> None:
        busy = self.watch.progress.due or any(deployment.runs for deployment in self.deployments)
        left_s = next_s - self.time.now_s
        if busy or self.time.now_s < self._alert_until_s or left_s <= TICK_S:
            self.time.now_s += TICK_S
            return
        self.time.now_s += min(self.quiet_s, left_s)
        self._make_up()

    def _make_up(self) -> None:
        """Beat once for all the ticks that were left out."""
        for key in self.keys.values():
            snapshot = self.snapshot(key)
            for node in snapshot.nodes if snapshot and not self.store.down else ():
                if node.member and any(each.alive(node.name) for each in self.deployments):
                    self.store.store.beat(key, node.name, node.incarnation)
