"""What must hold all along, looked at after every step; what does not is a finding, a sentence.

* Exactly once: commits of a shard follow each other without a gap that is not recorded (I3).
* Each shard with unread records gets on, or a sentence says why not (I11, I14).
* Nobody who is alive is evicted; no shard is without an owner for long.
* Every batch reaches the hook and Dagster, every complete hour is made, every late record counted.
* What a tick asks of the store, and what processes keep between ticks, does not grow (I12).
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from dagster_leasehold.assets.windows.event_frontier import HOUR
from dagster_leasehold.lease_store.identifiers import GroupKey, NodeName, ShardId
from dagster_leasehold.lease_store.outcomes import Changed
from dagster_leasehold.lease_store.roles.windows import EventWindow
from dagster_leasehold.lease_store.rules.states import ShardState
from dagster_leasehold.lease_store.shard_rows import ShardLease
from tests.simulation.soak.memory_sizes import entries_of
from tests.simulation.soak.run_double import REFUSED
from tests.simulation.soak.watched_store import Cost

if TYPE_CHECKING:
    from tests.simulation.soak.dagster_double import DagsterDouble
    from tests.simulation.soak.world import World

TICK_S = 5.0
STALL_LIMIT_S = 600.0
TIMEOUT_S = 20.0
PROGRESS_LIMIT_S = STALL_LIMIT_S + TIMEOUT_S + 2 * TICK_S
UNOWNED_LIMIT_S = 180.0
TOLD_LIMIT_S = 900.0
"""After how long a batch has reached the hook and Dagster, what waited for a retry included."""
HOUR_LIMIT_S = 3_600.0
HOUR_AGAIN_LIMIT_S = 7 * 3_600.0
"""For an hour whose run has failed before: it is asked for again after up to 6 hours."""
RETRY_LIMIT_S = 600.0
ROWS_BASE, ROWS_PER_SHARD, ROWS_PER_COMMIT = 250, 12, 12
CALLS_BASE, CALLS_PER_SHARD = 80, 4
ENTRIES_BASE, ENTRIES_PER_SHARD = 1_500, 80
HISTORY_LIMIT = timedelta(days=45)
"""Half as long again as history is kept: the janitor's rounds are hours apart."""
OLD_ENTRIES_MAX = 400
CURSOR_MAX = 60_000
SHOWN_CHARACTERS_MAX = 300

Place = tuple[GroupKey, ShardId]


@dataclass
class Since:
    """Since when each of some conditions has held, without a pause and in one state."""

    _began: dict[tuple[Hashable, ...], tuple[Hashable, float]] = field(default_factory=dict)

    def held_s(
        self, what: tuple[Hashable, ...], now_s: float, *, holds: bool, state: Hashable = None
    ) -> float:
        """For how long a condition has held in this state; 0 where it does not hold."""
        if not holds:
            self._began.pop(what, None)
            return 0.0
        known, began_s = self._began.get(what, (None, now_s))
        if known != state:
            began_s = now_s
        self._began[what] = (state, began_s)
        return now_s - began_s

    def forget(self, place: Place) -> None:
        """A shard has nothing left to do."""
        for kind in ("stood", "owner", "excuse", "tried"):
            self._began.pop((kind, place), None)


@dataclass
class Figures:
    """What a soak went through, for its report."""

    ticks: int = 0
    commits: int = 0
    gaps: int = 0
    hooked: int = 0
    hours: int = 0
    late: int = 0
    rows_max: Counter[str] = field(default_factory=Counter)
    calls_max: Counter[str] = field(default_factory=Counter)
    entries_max: int = 0


class Watch:
    """The findings of one world."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.findings: dict[Hashable, str] = {}
        self.figures = Figures()
        self._since = Since()
        self._covered: dict[Place, str] = {}
        self._next: dict[GroupKey, dict[ShardId, int]] = defaultdict(dict)
        self._opened: dict[Place, float] = {}
        self._unhooked: dict[tuple[GroupKey, str], float] = {}
        self._commits_seen: dict[tuple[str, str], int] = {}
        self._windows: dict[datetime, EventWindow] = {}
        self.next_hour = world.since
        self.late_expected: Counter[datetime] = Counter()
        self.due: set[Place] = set()
        self.failed_hours: set[datetime] = set()
        self._commit_times: deque[float] = deque()

    def find(self, what: Hashable, sentence: str) -> None:
        """Note a finding, once for each thing that it is about."""
        days = self._world.time.now_s / 86_400
        self.findings.setdefault(what, f"{self._world.shape}, day {days:.2f}: {sentence}")

    def next_numbers(self, key: GroupKey) -> Mapping[ShardId, int]:
        """For each shard the number of the batch after its last."""
        return self._next[key]

    def made(self, hour: datetime) -> bool:
        """Whether an hour has its row."""
        return hour < self.next_hour or hour in self._windows

    def late_of(self, hour: datetime) -> int:
        """How many late records were counted for an hour so far."""
        return self._windows[hour].late if hour in self._windows else 0

    # -- told by the store ----------------------------------------------------------------------

    def after(
        self, verb: str, args: tuple[Any, ...], options: Mapping[str, Any], outcome: object
    ) -> None:
        """A verb took effect."""
        now_s = self._world.time.now_s
        if verb == "commit":
            for commit in args[0]:
                if isinstance(outcome[commit.tenure.shard], Changed):  # type: ignore[index]
                    self._committed(commit, now_s)
        elif verb == "open_tenure":
            self._opened[args[0], args[1]] = now_s
        elif verb == "evict" and isinstance(outcome, Changed):
            self._evicted(args[0], args[1])
        elif verb == "record_gap" and options.get("skip", True):
            self.figures.gaps += 1
            place = args[0].key, args[0].shard
            self._cover(place, options["start"], options["end"])
        elif verb == "put_window" and isinstance(outcome, Changed):
            self._windows[args[1].start] = args[1]

    def hooked(self, key: GroupKey, batch_id: str) -> None:
        """The hook of a stream was called for a batch."""
        self.figures.hooked += 1
        self._unhooked.pop((key, batch_id), None)

    def _of_a_week(self) -> int:
        """How many batches were committed within the last week."""
        since_s = self._world.time.now_s - 7 * 86_400
        while self._commit_times and self._commit_times[0] < since_s:
            self._commit_times.popleft()
        return len(self._commit_times)

    def _committed(self, commit: Any, now_s: float) -> None:
        key, shard = commit.tenure.key, commit.tenure.shard
        number = self._next[key].get(shard, 0)
        if commit.sequence < number:
            return  # sent again after a lost reply
        self.figures.commits += 1
        self._commit_times.append(now_s)
        self._next[key][shard] = commit.sequence + 1
        self._cover((key, shard), commit.start, commit.end)
        if commit.hooked:
            self._unhooked[key, f"{shard}.{commit.sequence}"] = now_s

    def _cover(self, place: Place, start: str, end: str) -> None:
        before = self._covered.get(place, "0")
        if start != before:
            self.find(
                ("once", place),
                f"shard {place[1]} of {place[0]} went on at {start} after {before}: records were "
                "skipped or read twice",
            )
        self._covered[place] = end

    def _evicted(self, key: GroupKey, node: NodeName) -> None:
        if any(deployment.alive(node) for deployment in self._world.deployments):
            self.find(("evicted", node), f"node {node} of {key} is alive and was evicted")

    # -- told by the daemon ---------------------------------------------------------------------

    def tick_failed(self, deployment: DagsterDouble, sensor: str, error: Exception) -> None:
        """A sensor raised instead of saying what is wrong."""
        self.find(
            ("tick", sensor, type(error)),
            f"the whole tick of {sensor} of {deployment.name} stood still: it raised "
            f"{type(error).__name__}: {error}",
        )

    def tick_cost(self, deployment: DagsterDouble, sensor: str, spent: Cost) -> None:
        """What one tick asked of the store."""
        self.figures.ticks += 1
        seen = self._commits_seen.get((deployment.name, sensor), 0)
        self._commits_seen[deployment.name, sensor] = self.figures.commits
        news = self.figures.commits - seen
        shards = self._world.shards_ever
        if sensor in deployment.fresh:
            # A new code server looks through what late records may reach: hours of a week.
            deployment.fresh.discard(sensor)
            news += self._of_a_week() + 7 * 24
        elif not news:
            self.figures.rows_max[sensor] = max(self.figures.rows_max[sensor], spent.rows)
            self.figures.calls_max[sensor] = max(self.figures.calls_max[sensor], spent.calls)
        if spent.rows > ROWS_BASE + ROWS_PER_SHARD * shards + ROWS_PER_COMMIT * news:
            self.find(
                ("rows", sensor),
                f"a tick of {sensor} read {spent.rows} rows of the lease store, with {news} "
                f"commits since the one before: its cost grows with the ledger's age",
            )
        if spent.calls > CALLS_BASE + CALLS_PER_SHARD * (shards + news):
            self.find(("calls", sensor), f"a tick of {sensor} called the store {spent.calls} times")

    # -- looked at after each step --------------------------------------------------------------

    def look(self) -> None:
        """Look at everything that has to get on."""
        self.due = set()
        if not self._world.store.down:
            for name in self._world.logs:
                self._look_at_stream(name)
        self._look_at_hooks()
        self._look_at_hours()

    def _look_at_stream(self, name: str) -> None:
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
            self._look_at_progress(name, (key, shard), lease, left, excuse)

    def _excuse(self, name: str, paused: bool, lease: ShardLease | None, held: bool) -> str:
        """Why a shard need not get on now; nothing where it has to."""
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

    def _look_at_progress(
        self, name: str, place: Place, lease: ShardLease | None, left: int, excuse: str
    ) -> None:
        now_s, (key, shard) = self._world.time.now_s, place
        progress = lease and (lease.check_point, lease.state is ShardState.WAIT)
        stood_s = self._since.held_s(("stood", place), now_s, holds=not excuse, state=progress)
        if not excuse and ("stood", place) not in self.findings:
            self.due.add(place)
        if stood_s > PROGRESS_LIMIT_S:
            state = f"{lease.state}, owner {lease.consumer_owner}" if lease else "not listed"
            self.find(
                ("stood", place),
                f"shard {shard} of {key} stood still for {stood_s:.0f} s with {left} unread "
                f"records ({state}); its sensors say: {self._said(name)}",
            )
        unowned = lease is not None and lease.state is ShardState.NOT_ALLOC and not excuse
        if self._since.held_s(("owner", place), now_s, holds=unowned) > UNOWNED_LIMIT_S:
            self.find(("owner", place), f"shard {shard} of {key} had no owner for long")
        # Whoever asks the store while it is away says so, and nothing else.
        state: Hashable = (excuse, self._world.store.down_until_s)
        excused_s = self._since.held_s(("excuse", place), now_s, holds=bool(excuse), state=state)
        state = self._opened.get(place)
        failing = excuse == REFUSED
        untried_s = self._since.held_s(("tried", place), now_s, holds=failing, state=state)
        if excuse in ("", "daemon", "parents") or excused_s <= PROGRESS_LIMIT_S:
            return
        if excuse not in self._said(name, whole=True):
            self.find(
                ("silent", place, excuse),
                f"shard {shard} of {key} stands still and nobody says why ({excuse}); its sensors "
                f"say: {self._said(name)}",
            )
        if untried_s > RETRY_LIMIT_S + self._world.quiet_s:
            self.find(
                ("untried", place),
                f"shard {shard} of {key}, which fails, was not tried again for {untried_s:.0f} s",
            )

    def _said(self, name: str, *, whole: bool = False) -> str:
        """What deployments say of a stream: their sensors' last words, and its last failed run."""
        stem = f"{name}_"
        texts = [
            text
            for deployment in self._world.deployments
            for sensor, text in deployment.messages.items()
            if sensor.startswith(stem) and (whole or sensor.endswith("_rebalance"))
        ]
        texts += [deployment.failures.get(name, "") for deployment in self._world.deployments]
        text = " | ".join(text for text in texts if text)
        return text if whole else text[:SHOWN_CHARACTERS_MAX]

    def _look_at_hooks(self) -> None:
        world = self._world
        excused = world.hook_fails or world.store.down
        excused = excused or not any(each.daemon_up for each in world.deployments)
        waiting = not excused and bool(self._unhooked)
        oldest = next(iter(self._unhooked), None)
        waited_s = self._since.held_s(("hook",), world.time.now_s, holds=waiting, state=oldest)
        if waited_s > TOLD_LIMIT_S:
            self.find(
                "hook",
                f"on_commit was not called for {len(self._unhooked)} batches: the oldest, "
                f"{oldest}, has stood still for {waited_s:.0f} s",
            )

    def _look_at_hours(self) -> None:
        world = self._world
        makers = [each for each in world.deployments if each.hourly is not None]
        if not makers:
            return
        maker = makers[0]
        assert maker.hourly is not None
        name = maker.hourly.stream.name
        while self.next_hour in self._windows:
            self.figures.hours += 1
            self.failed_hours.discard(self.next_hour)
            self.next_hour += HOUR
        if len(self._windows) > 24 * 30:
            # Whatever is counted late lies within a week.
            old = self.next_hour - timedelta(days=14)
            self._windows = {at: row for at, row in self._windows.items() if at >= old}
        hour = self.next_hour
        excused = not maker.daemon_up or world.store.down or bool(world.logs[name].down)
        excused = excused or world.moods(name).failing_hours(hour)
        complete = world.frontier(name)
        due = not excused and complete is not None and hour + HOUR <= complete
        waited_s = self._since.held_s(("hour",), world.time.now_s, holds=due, state=hour)
        if waited_s > (HOUR_AGAIN_LIMIT_S if hour in self.failed_hours else HOUR_LIMIT_S):
            self.find(
                ("hour", hour),
                f"the hour {hour.isoformat()} has stood still for {waited_s:.0f} s: complete, and "
                f"not made; its sensor says: {self._said(name)[:100]}",
            )
        for at, late in list(self.late_expected.items()):
            window = self._windows.get(at)
            counted = window is not None and window.late >= late and not window.rerun
            if counted:
                self.figures.late += late
                del self.late_expected[at]
            waiting = not counted and not excused
            waited_s = self._since.held_s(("late", at), world.time.now_s, holds=waiting)
            if waited_s > HOUR_AGAIN_LIMIT_S:
                self.find(
                    ("late", at),
                    f"{late} late records of {at.isoformat()} were not counted, or the hour was "
                    "not made again",
                )

    # -- looked at now and then -----------------------------------------------------------------

    def look_at_sizes(self) -> None:
        """What code servers keep between ticks, and what they store for their successors."""
        limit = ENTRIES_BASE + ENTRIES_PER_SHARD * self._world.shards_ever
        for deployment in self._world.deployments:
            for name, sensor in deployment.sensors.items():
                entries = entries_of(sensor)
                self.figures.entries_max = max(self.figures.entries_max, entries)
                if entries > limit:
                    self.find(("size", name), f"{name} keeps {entries} entries in memory")
                cursor = deployment.cursors.get(name) or ""
                if len(cursor) > CURSOR_MAX:
                    self.find(("cursor", name), f"the cursor of {name} has {len(cursor)} letters")

    def look_at_history(self) -> None:
        """A shard that fails for ever leaves a journal that the janitor keeps short."""
        world = self._world
        for name, key in world.keys.items():
            for shard in world.moods(name).failing if world.snapshot(key) else ():
                entries = world.store.store.journal(key, shard=shard, limit=OLD_ENTRIES_MAX + 1)
                old = [entry for entry in entries if world.now - entry.at > HISTORY_LIMIT]
                if len(old) > OLD_ENTRIES_MAX:
                    self.find(("history", key), f"the journal of shard {shard} of {key} only grows")

    def look_at_outbox(self) -> None:
        """Whatever was committed is told to Dagster, by its run or by the outbox sensor."""
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
            if waited_s > TOLD_LIMIT_S + world.quiet_s and oldest is not None:
                self.find(
                    ("outbox", key),
                    f"Dagster was not told of batch {oldest.batch_id} of {name} for "
                    f"{waited_s:.0f} s",
                )
