"""A following run: its commits, its checks between them, and its reactions.

Time is virtual: it passes while the run waits and during a sweep.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typing_extensions import override

from dagster_leasehold.assets.consuming.consumption import SHARED_SLOT_BUDGET_S
from dagster_leasehold.assets.consuming.consumption_report import ConsumptionReport, StopReason
from dagster_leasehold.assets.consuming.following import ANSWER_S, Follow
from dagster_leasehold.assets.consuming.run_progress import SHOW_EVERY_S, RunProgress
from dagster_leasehold.assets.consuming.run_requests import RunRequests
from dagster_leasehold.assets.consuming.sweep import OneByOne, Retry, SweepResult
from dagster_leasehold.assets.errors import TransformError
from dagster_leasehold.assets.pace import BATCH_EVERY_S, REST_MAX_S, Pace
from dagster_leasehold.lease_store.errors import OutcomeUnknown
from dagster_leasehold.lease_store.identifiers import ShardId
from tests.unit.assets.consumption_world import NODE, OTHER, World

ZERO, ONE = ShardId("0"), ShardId("1")
SWEEP_S = 0.5
Step = tuple[float, Callable[[], object]]


@dataclass
class Scene:
    """A world with scheduled events, and a run that follows its shards."""

    world: World
    pace: Pace = field(default_factory=lambda: Pace(10.0, 10**9, 60.0))
    steps: list[Step] = field(default_factory=list[Step])
    commits: list[tuple[float, str, str]] = field(default_factory=list[tuple[float, str, str]])
    calls: Counter[str] = field(default_factory=Counter[str])
    asked: list[RunRequests] = field(default_factory=list[RunRequests])
    shown: list[RunProgress] = field(default_factory=list[RunProgress])
    gained: Callable[[], tuple[ShardId, ...]] = tuple

    def __post_init__(self) -> None:
        self.world.sweeper.before = lambda: self.pass_time(SWEEP_S)
        self._count(self.world.log, "bounds")
        self._count(self.world.store, "review")

    def _count(self, owner: Any, name: str) -> None:
        original = getattr(owner, name)

        def counted(*args: Any) -> Any:
            self.calls[name] += 1
            return original(*args)

        object.__setattr__(owner, name, counted)

    def pass_time(self, seconds: float) -> None:
        """Let things happen in their order while time passes."""
        until_s = self.world.now_s + seconds
        while self.steps and self.steps[0][0] <= until_s:
            at_s, action = self.steps.pop(0)
            self.world.now_s = max(self.world.now_s, at_s)
            action()
        self.world.now_s = max(self.world.now_s, until_s)

    def wait(self, seconds: float) -> None:
        assert seconds <= ANSWER_S
        self.calls["wait"] += 1
        assert self.calls["wait"] < 20_000, "the run spins"
        self.pass_time(seconds)

    def at(self, at_s: float, action: Callable[[], object]) -> None:
        self.steps.append((at_s, action))
        self.steps.sort(key=lambda step: step[0])

    def append_at(self, at_s: float, shard: ShardId, records: int = 1) -> None:
        self.at(at_s, lambda: self.world.append(shard, records))

    def requests(self) -> RunRequests:
        return self.asked.pop(0) if self.asked else RunRequests()

    def follow(
        self, run: str = "run-1", shards: list[ShardId] | None = None, **arguments: Any
    ) -> dict[ShardId, ConsumptionReport]:
        consumer = self.world.consumer(
            run,
            follow=Follow(self.pace, self.wait, self.requests, self.shown.append, self.gained),
            after_commit=lambda commits: self.commits.extend(
                (self.world.now_s, each.tenure.shard, each.end) for each in commits
            ),
            **arguments,
        )
        return consumer.consume(self.world.ids if shards is None else shards)


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(World(tmp_path, records_max=1_000))


def test_unread_records_are_committed_at_once_and_the_run_ends_when_idle(scene: Scene) -> None:
    reports = scene.follow()
    assert {(shard, end) for _, shard, end in scene.commits} == {("0", "10"), ("1", "10")}
    assert [at_s for at_s, _, _ in scene.commits] == [SWEEP_S] * 2
    assert {report.stopped for report in reports.values()} == {StopReason.CAUGHT_UP}
    assert scene.world.now_s == pytest.approx(SWEEP_S + 60.0, abs=2.0)


def test_a_due_record_is_committed_together_with_those_of_other_shards(scene: Scene) -> None:
    scene.append_at(25.3, ZERO)
    scene.append_at(31.0, ONE, 5)
    scene.follow()
    (first, *_), later = scene.commits[:2], scene.commits[2:]
    assert first[0] == SWEEP_S
    assert [(shard, end) for _, shard, end in later] == [("0", "11"), ("1", "15")]
    assert len(scene.world.sweeper.sweeps) == 2, "one job serves both"
    age_s = later[0][0] - 25.3
    assert 10.0 - scene.pace.poll_s <= age_s <= 10.0 + SWEEP_S


def test_a_steady_stream_has_one_batch_per_shard_and_interval(scene: Scene) -> None:
    for number in range(200):
        scene.append_at(number * 0.5, (ZERO, ONE)[number % 2])
    scene.follow()
    assert scene.world.committed(ZERO) == scene.world.expected(ZERO, 110)
    per_shard = Counter(shard for _, shard, _ in scene.commits)
    assert per_shard == {"0": 11, "1": 11}


def test_a_run_with_nothing_due_starts_no_spark_job_and_makes_few_requests(scene: Scene) -> None:
    scene.follow()
    assert len(scene.world.sweeper.sweeps) == 1
    assert scene.calls["review"] <= 60 / ANSWER_S + 3
    assert scene.calls["bounds"] <= 60 / scene.pace.poll_s + 5
    assert scene.calls["wait"] <= 2 * 60


def test_many_bytes_are_committed_before_the_interval_is_over(tmp_path: Path) -> None:
    scene = Scene(World(tmp_path, records_max=1_000), Pace(100.0, 400, 200.0))
    scene.append_at(20.0, ZERO, 5)
    scene.append_at(30.0, ZERO, 200)
    scene.follow()
    assert [round(at_s) for at_s, shard, _ in scene.commits if shard == ZERO][1:] == [30]


def test_an_interval_of_zero_commits_at_once_but_rests_between_batches(tmp_path: Path) -> None:
    scene = Scene(World(tmp_path, records_max=1_000), Pace(0.0, 10**9, 30.0))
    for number in range(40):
        scene.append_at(10.0 + number * 0.25, ZERO)
    scene.follow()
    gaps = [after[0] - before[0] for before, after in pairwise(scene.commits[3:])]
    assert gaps[:-1] == pytest.approx([BATCH_EVERY_S] * (len(gaps) - 1))


def test_a_record_that_arrives_during_a_slow_batch_is_due_from_the_check_before(
    scene: Scene,
) -> None:
    """It can have arrived at any time since that check, however late the batch was committed."""
    scene.world.sweeper.before = lambda: scene.pass_time(5.0)
    scene.append_at(1.0, ZERO)
    scene.follow()
    assert [at_s for at_s, shard, _ in scene.commits if shard == ZERO] == [5.0, 15.0]


def test_a_run_that_catches_up_does_not_wait(tmp_path: Path) -> None:
    scene = Scene(World(tmp_path, records=40, records_max=4))
    scene.follow()
    assert [at_s for at_s, shard, _ in scene.commits if shard == ZERO] == [
        SWEEP_S * number for number in range(1, 11)
    ]


@pytest.mark.parametrize(
    "what", ["hand-over", "pause", "stop", "definition", "let go", "untrusted", "loss"]
)
def test_a_waiting_run_reacts_within_a_second(scene: Scene, what: str) -> None:
    world, stopping = scene.world, False

    def ask() -> None:
        nonlocal stopping
        if what == "hand-over":
            for shard in world.ids:
                world.store.begin_transfer(
                    world.key, {shard: (OTHER, world.lease(shard).lease_id, "t")}, observer="t"
                )[shard]
        elif what == "loss":
            for shard in world.ids:
                world.store.force_checkpoint(world.key, shard, "10", observer="t", reason="t")
        elif what == "pause":
            group = world.store.pulse(world.key).group
            world.store.update_group(replace(group, paused=True), observer="test")
        elif what == "stop":
            stopping = True
        elif what == "definition":
            scene.asked.append(RunRequests(stop=True))
        elif what == "let go":
            scene.asked.append(RunRequests(release=frozenset(world.ids)))
        else:
            world.beat.trusted = False

    scene.at(20.4, ask)
    scene.append_at(15.0, ZERO)
    reports = scene.follow(stop_requested=lambda: stopping)
    expected = {
        "hand-over": StopReason.HANDED_OVER,
        "pause": StopReason.PAUSED,
        "untrusted": StopReason.UNTRUSTED,
        "loss": StopReason.LEASE_LOST,
    }
    assert {each.stopped for each in reports.values()} == {
        expected.get(what, StopReason.STOP_REQUESTED)
    }
    assert world.now_s <= 20.4 + ANSWER_S
    if what == "hand-over":
        assert world.lease(ZERO).consumer_owner == OTHER


@pytest.mark.parametrize("verb", ["open_tenures", "close_tenure"])
def test_a_run_that_does_not_know_its_open_shards_ends(scene: Scene, verb: str) -> None:
    """A reply is lost. As long as the run lives, everybody takes its shards for served by it."""
    store, original = scene.world.store, getattr(scene.world.store, verb)

    def unanswered(*args: Any, **options: Any) -> Any:
        object.__setattr__(store, verb, original)
        if verb == "open_tenures":
            original(*args, **options)
        raise OutcomeUnknown("The reply was lost.")

    object.__setattr__(store, verb, unanswered)
    scene.at(20.0, lambda: scene.asked.append(RunRequests(release=frozenset([ZERO]))))
    reports = scene.follow()
    assert {each.stopped for each in reports.values()} <= {
        StopReason.FAILED, StopReason.STOP_REQUESTED
    }  # fmt: skip
    assert scene.world.now_s <= 20.0 + 2 * ANSWER_S
    assert scene.world.lease(ZERO).consumer_run == "run-1", "nobody knows that it is free"
    assert scene.world.lease(ONE).consumer_run == ("run-1" if verb == "open_tenures" else "")
    scene.follow("run-2", replaces={ZERO: "run-1", ONE: "run-1"})
    assert scene.world.committed(ZERO) == scene.world.expected(ZERO, 10)


def test_a_release_that_the_store_lost_is_repeated(scene: Scene) -> None:
    """As after a failover to a replica that had not got the last transaction."""
    store, backups, runs = scene.world.store, list[object](), list[str]()

    def note_run() -> None:
        runs.append(scene.world.lease(ONE).consumer_run)

    def fail_over() -> None:
        note_run()
        store.restore(backups[0])
        note_run()

    scene.at(20.0, lambda: backups.append(store.backup()))
    scene.at(20.0, lambda: scene.asked.append(RunRequests(release=frozenset([ONE]))))
    scene.at(25.0, fail_over)
    scene.at(25.0 + 2 * ANSWER_S, note_run)
    reports = scene.follow()
    assert runs == ["", "run-1", ""], "nobody waits for the end of this run"
    assert reports[ONE].stopped is StopReason.STOP_REQUESTED


def test_a_run_releases_one_shard_and_follows_the_others(scene: Scene) -> None:
    scene.at(20.0, lambda: scene.asked.append(RunRequests(release=frozenset([ZERO]))))
    scene.append_at(40.0, ZERO)
    scene.append_at(40.0, ONE)
    reports = scene.follow()
    assert reports[ZERO].stopped is StopReason.STOP_REQUESTED
    assert [shard for _, shard, _ in scene.commits[2:]] == ["1"]


def test_a_run_opens_a_shard_that_it_is_offered(scene: Scene) -> None:
    scene.at(20.0, lambda: scene.asked.append(RunRequests(take=(ONE,))))
    scene.append_at(60.0, ZERO)
    reports = scene.follow(shards=[ZERO])
    assert reports.keys() == {ZERO, ONE}
    joined = next(at_s for at_s, shard, _ in scene.commits if shard == ONE)
    assert joined <= 20.0 + ANSWER_S + SWEEP_S
    assert scene.world.committed(ZERO) == scene.world.expected(ZERO, 11), "nothing is read twice"
    assert scene.world.committed(ONE) == scene.world.expected(ONE, 10)


def gaining(scene: Scene, at_s: float) -> Callable[[], tuple[ShardId, ...]]:
    """Return a planner whose node gains a shard at some time, returned at the next check."""
    gains = [ONE]
    return lambda: (gains.pop(),) if gains and scene.world.now_s >= at_s else ()


def test_a_run_opens_a_gained_shard_within_a_second(scene: Scene) -> None:
    scene.gained = gaining(scene, 20.0)
    reports = scene.follow(shards=[ZERO])
    joined = next(at_s for at_s, shard, _ in scene.commits if shard == ONE)
    assert joined <= 20.0 + ANSWER_S + SWEEP_S
    assert scene.world.committed(ONE) == scene.world.expected(ONE, 10)
    assert reports[ONE].stopped is StopReason.CAUGHT_UP


def test_a_gained_shard_that_another_run_has_opened_is_not_reported(scene: Scene) -> None:
    scene.gained = gaining(scene, 20.0)
    scene.at(
        10.0, lambda: scene.world.store.open_tenure(scene.world.stream.key, ONE, NODE, "run-2")
    )
    assert scene.follow(shards=[ZERO]).keys() == {ZERO}


@pytest.mark.parametrize("shards_per_run", [1, 2])
def test_a_run_opens_at_most_shards_per_run(scene: Scene, shards_per_run: int) -> None:
    scene.world.stream = replace(scene.world.stream, pace=Pace(shards_per_run=shards_per_run))
    scene.gained = gaining(scene, 20.0)
    assert len(scene.follow(shards=[ZERO])) == shards_per_run


def test_a_finishing_run_opens_no_gained_shard(scene: Scene) -> None:
    scene.asked = [RunRequests(finish=True)] * 100
    scene.gained = gaining(scene, 0.0)
    assert scene.follow(shards=[ZERO]).keys() == {ZERO}


def test_a_run_about_to_end_opens_a_shard_that_it_is_offered(scene: Scene) -> None:
    """Goal: the run that it would have to wait for instead takes seconds to start."""
    idle_s = SWEEP_S + scene.pace.idle_limit_s
    offers = [RunRequests(take=(ONE,))]

    def requests() -> RunRequests:
        return offers.pop() if offers and scene.world.now_s >= idle_s else RunRequests()

    scene.requests = requests
    reports = scene.follow(shards=[ZERO])
    assert (reports[ONE].records, reports[ONE].stopped) == (10, StopReason.CAUGHT_UP)


def test_a_released_shard_can_be_opened_again(scene: Scene) -> None:
    scene.at(20.0, lambda: scene.asked.append(RunRequests(release=frozenset([ONE]))))
    scene.append_at(25.0, ONE)
    scene.at(30.0, lambda: scene.asked.append(RunRequests(take=(ONE,))))
    reports = scene.follow()
    assert reports[ONE].stopped is StopReason.CAUGHT_UP
    assert scene.world.committed(ONE) == scene.world.expected(ONE, 11)


def test_a_finishing_run_ends_at_the_end_of_the_log(tmp_path: Path) -> None:
    scene = Scene(World(tmp_path, records=40, records_max=4))
    scene.asked = [RunRequests(finish=True)] * 100
    reports = scene.follow()
    assert {each.stopped for each in reports.values()} == {StopReason.CAUGHT_UP}
    assert scene.world.committed(ZERO) == scene.world.expected(ZERO, 40)
    assert scene.world.now_s <= 10 * SWEEP_S + ANSWER_S


def test_a_finishing_run_leaves_remaining_records_after_its_budget(tmp_path: Path) -> None:
    scene = Scene(World(tmp_path, records=40, records_max=4))
    scene.world.sweeper.before = lambda: scene.pass_time(SHARED_SLOT_BUDGET_S / 2)
    scene.asked = [RunRequests(finish=True)] * 100
    reports = scene.follow()
    assert {each.stopped for each in reports.values()} == {StopReason.BUDGET_ENDED}
    assert scene.world.now_s == SHARED_SLOT_BUDGET_S


def test_a_run_logs_its_progress_twice_a_minute(scene: Scene) -> None:
    scene.append_at(55.0, ZERO, 3)
    scene.follow()
    assert len(scene.shown) == int(scene.world.now_s / SHOW_EVERY_S)
    first, second = scene.shown[:2]
    assert first.sentence == "20 read, nothing unread"
    assert second.unread == 3
    assert second.waiting_s == pytest.approx(5.5, abs=1.1)
    assert second.next_s == pytest.approx(4.5, abs=1.1)


def test_a_run_continues_after_its_budget_until_it_is_asked_to_end(scene: Scene) -> None:
    for number in range(40):
        scene.append_at(number * 2.0, ZERO)
    scene.at(70.0, lambda: scene.asked.append(RunRequests(stop=True)))
    reports = scene.follow(budget_s=50.0)
    assert reports[ZERO].stopped is StopReason.STOP_REQUESTED
    assert scene.world.now_s == pytest.approx(70.0, abs=1.0)
    scene.follow("run-2")
    assert scene.world.committed(ZERO) == scene.world.expected(ZERO, 50)


def test_a_run_that_started_late_commits_a_batch_before_it_ends(scene: Scene) -> None:
    """Goal: where starting takes longer than the budget, no run ends before its first batch."""
    scene.asked = [RunRequests(stop=True)] * 100
    reports = scene.follow()
    assert {report.stopped for report in reports.values()} == {StopReason.STOP_REQUESTED}
    assert scene.world.committed(ZERO) == scene.world.expected(ZERO, 10)
    assert scene.world.now_s <= SWEEP_S + ANSWER_S


class SlowJobs(OneByOne):
    """Separate jobs whose results are late."""

    def __init__(self, scene: Scene, took_s: float) -> None:
        super().__init__(scene.world.sweeper)
        self._scene, self._took_s = scene, took_s
        self._ready_s = 0.0

    @override
    def start(self, retries: Sequence[Retry]) -> None:
        super().start(retries)
        self._ready_s = self._scene.world.now_s + self._took_s

    @override
    def done(self, *, wait_s: float | None) -> list[tuple[Retry, SweepResult]]:
        ready = self._scene.world.now_s >= self._ready_s
        return super().done(wait_s=wait_s) if ready else []


def test_a_run_commits_the_batches_of_separate_jobs_before_it_ends(scene: Scene) -> None:
    """Goal: where such a job takes longer than the budget, the shard advances all the same."""

    def fail() -> None:
        raise TransformError("the worker died")

    scene.world.sweeper.before = fail
    with suppress(TransformError):
        scene.follow()
    scene.world.sweeper.before = lambda: scene.pass_time(SWEEP_S)
    scene.asked = [RunRequests(stop=True)] * 100
    reports = scene.follow("run-2", separate_jobs=SlowJobs(scene, 20.0))
    assert {report.stopped for report in reports.values()} == {StopReason.STOP_REQUESTED}
    assert scene.world.committed(ZERO) == scene.world.expected(ZERO, 10)


def test_a_shard_that_ends_while_it_is_followed_is_finished(scene: Scene) -> None:
    scene.at(20.0, lambda: scene.world.log.split(ZERO))
    reports = scene.follow()
    assert reports[ZERO].stopped is StopReason.FINISHED
    assert scene.world.lease(ZERO).state == "over"
    assert reports[ONE].stopped is StopReason.CAUGHT_UP


def test_a_source_error_of_one_shard_fails_only_that_shard(scene: Scene) -> None:
    bounds = scene.world.log.bounds

    def failing(shards: list[ShardId]) -> Any:
        if ZERO in shards and scene.world.now_s > 20.0:
            raise OSError("away")
        return bounds(shards)

    object.__setattr__(scene.world.log, "bounds", failing)
    scene.append_at(30.0, ONE)
    reports = scene.follow()
    assert reports[ZERO].stopped is StopReason.FAILED
    assert scene.world.committed(ONE) == scene.world.expected(ONE, 11)


def test_an_end_that_moves_without_records_does_not_keep_a_run_busy(scene: Scene) -> None:
    """A service can number records that it does not show: the end moves, and there is nothing to
    read.
    """
    bounds = scene.world.log.bounds

    def beyond(shards: list[ShardId]) -> Any:
        return {each: replace(row, end="99") for each, row in bounds(shards).items()}

    object.__setattr__(scene.world.log, "bounds", beyond)
    reports = scene.follow()
    assert {each.stopped for each in reports.values()} == {StopReason.CAUGHT_UP}
    assert len(scene.world.sweeper.sweeps) == 1
    assert scene.world.now_s < 80.0


def test_an_intended_batch_is_repeated_unchanged(scene: Scene) -> None:
    class Killed(BaseException):
        """Ends the run in the middle of its sweep."""

    def kill() -> None:
        raise Killed

    scene.world.sweeper.before = kill
    with pytest.raises(Killed):
        scene.follow()
    scene.world.sweeper.before = lambda: scene.pass_time(SWEEP_S)
    scene.world.append(ZERO, 7)
    scene.follow("run-2")
    ends = [end for _, shard, end in scene.commits if shard == ZERO]
    assert ends == ["10", "17"]


@settings(max_examples=15, deadline=None)
@given(
    interval_s=st.sampled_from([0.0, 1.0, 5.0, 30.0]),
    arrivals=st.lists(st.tuples(st.floats(1.0, 60.0), st.sampled_from("01")), max_size=12),
    asked_s=st.none() | st.floats(5.0, 60.0),
)
def test_no_record_waits_longer_than_an_interval_and_two_sweeps(
    tmp_path_factory: pytest.TempPathFactory,
    interval_s: float,
    arrivals: list[tuple[float, str]],
    asked_s: float | None,
) -> None:
    """It comes while one sweep is at work, waits for the interval, and is in the next."""
    folder = tmp_path_factory.mktemp("world")
    scene = Scene(World(folder, records=0, records_max=1_000), Pace(interval_s, 10**9, 70.0))
    for at_s, shard in arrivals:
        scene.append_at(at_s, ShardId(shard))
    if asked_s is not None:
        scene.at(asked_s, lambda: scene.asked.append(RunRequests(stop=True)))
    scene.follow()
    end_s = scene.world.now_s
    if asked_s is not None:
        assert end_s <= asked_s + ANSWER_S + SWEEP_S
    for shard in "01":
        moments = sorted(at_s for at_s, each in arrivals if each == shard)
        committed = [(at_s, int(end)) for at_s, each, end in scene.commits if each == shard]
        for number, moment in enumerate(moments):
            at_s = next((at_s for at_s, end in committed if end > number), end_s)
            rest_s = REST_MAX_S if interval_s < SWEEP_S + REST_MAX_S else 0.0
            assert at_s <= moment + interval_s + 2 * SWEEP_S + rest_s + scene.pace.poll_s


def test_following_keeps_the_node_that_holds_the_shards(scene: Scene) -> None:
    scene.append_at(30.0, ZERO)
    scene.follow()
    assert scene.world.lease(ZERO).consumer_owner == NODE
    assert not scene.world.lease(ZERO).consumer_run
