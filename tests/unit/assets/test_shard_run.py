from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import dagster as dg
import pytest

from dagster_leasehold.assets.consuming.consumption_report import ConsumptionReport, StopReason
from dagster_leasehold.assets.partitions import asset_key
from dagster_leasehold.assets.shard_run import REPORT_EVERY_S, ProgressReports, ShardRun
from dagster_leasehold.assets.shard_stream import ShardStream
from dagster_leasehold.lease_store.group_rows import Node
from dagster_leasehold.lease_store.identifiers import NodeName, ShardId
from dagster_leasehold.lease_store.ledger_rows import BatchCommit, BatchStatistics, Intent
from dagster_leasehold.lease_store.memory_store import MemoryStore
from dagster_leasehold.lease_store.outcomes import Changed, Opened
from dagster_leasehold.lease_store.shard_rows import ShardListing
from tests.unit.sensors.streams import scripted_stream

A, ZERO, ONE = NodeName("a"), ShardId("0"), ShardId("1")
RUN = "run-1"


class Scene:
    """A run with two open shards, and an op's context that its reports go to."""

    def __init__(self, context: Any) -> None:
        self.context = context
        self.stream: ShardStream
        self.stream, _ = scripted_stream(2)
        self.store = MemoryStore()
        key = self.stream.key
        self.store.create_group(self.stream.new_group(20.0))
        self.store.sync_shards(key, [ShardListing(ZERO), ShardListing(ONE)], observer="test")
        self.store.register(key, Node(A, 0, "i"), observer="test")
        self.store.claim(key, {ZERO: (A, 0), ONE: (A, 0)}, observer="test", reason="test")
        self.opened: dict[ShardId, Opened] = {}
        for shard in (ZERO, ONE):
            opened = self.store.open_tenure(key, shard, A, RUN)
            assert isinstance(opened, Opened)
            self.opened[shard] = opened
        self.run = ShardRun(self.stream, self.store, RUN)

    def reopen(self, shard: ShardId) -> None:
        """Let the run have a shard open again, as after a pause."""
        self.store.close_tenure(self.opened[shard].tenure, reason="paused")
        opened = self.store.open_tenure(self.stream.key, shard, A, RUN)
        assert isinstance(opened, Opened)
        self.opened[shard] = opened

    def commit(self, shard: ShardId, quarantined: int = 0) -> BatchCommit:
        """One more batch of 10 records."""
        tenure = self.opened[shard].tenure
        done = self.store.batches(self.stream.key, shard)
        sequence = len(done)
        start, end = str(10 * len(done)), str(10 * len(done) + 10)
        self.store.record_intents([Intent(tenure, sequence, start, end)])
        statistics = BatchStatistics(10, 100, 10, quarantined)
        commit = BatchCommit(tenure, sequence, start, end, f"{shard}-{sequence}", (), statistics)
        assert isinstance(self.store.commit([commit])[shard], Changed)
        return commit

    def reported(self) -> list[tuple[str, int, str]]:
        events = [e for e in self.context.events if isinstance(e, dg.AssetMaterialization)]
        return [
            (str(e.partition), int(e.metadata["records"].value), str(e.metadata["stopped"].value))
            for e in events
        ]


class RecordingContext:
    """The part of an op's context that `ShardRun` uses."""

    def __init__(self) -> None:
        self.instance = SimpleNamespace(event_log_storage=None)
        self.events: list[object] = []

    def log_event(self, event: object) -> None:
        self.events.append(event)


@pytest.fixture
def scene() -> Scene:
    return Scene(RecordingContext())


def report(shard: ShardId, stopped: StopReason, error: str = "") -> ConsumptionReport:
    return ConsumptionReport(shard, stopped, error=error, lag_after=0)


def test_each_batch_is_in_exactly_one_report_of_a_run(scene: Scene) -> None:
    scene.commit(ZERO)
    scene.commit(ZERO)
    assert scene.run.deliver(scene.context) == 1
    assert scene.run.deliver(scene.context) == 0
    scene.commit(ZERO)
    scene.commit(ONE)
    scene.run.add(
        [report(ZERO, StopReason.CAUGHT_UP), report(ONE, StopReason.CAUGHT_UP)], seconds=2.0
    )
    assert scene.run.deliver(scene.context) == 2
    assert scene.reported() == [
        ("0", 20, "not yet"),
        ("0", 10, "caught_up"),
        ("1", 10, "caught_up"),
    ]
    assert scene.store.pending_events(scene.stream.key) == []


def checks_in(events: list[object]) -> list[tuple[str, str, bool]]:
    evaluations = [e for e in events if isinstance(e, dg.AssetCheckEvaluation)]
    return [(str(e.partition), e.check_name, e.passed) for e in evaluations]


def test_a_check_is_stored_with_the_first_report_that_knows_its_outcome_and_when_that_changes(
    scene: Scene,
) -> None:
    scene.commit(ZERO)
    scene.run.deliver(scene.context)
    assert checks_in(scene.context.events) == [
        (ZERO, "no_gap", True),
        (ZERO, "quarantine_rate", True),
    ]
    scene.context.events.clear()
    scene.commit(ZERO, quarantined=10)
    scene.run.deliver(scene.context)
    assert checks_in(scene.context.events) == [(ZERO, "quarantine_rate", False)]
    scene.context.events.clear()
    scene.run.add([replace(report(ZERO, StopReason.CAUGHT_UP), batches=2)], seconds=1.0)
    scene.run.deliver(scene.context)
    assert checks_in(scene.context.events) == [(ZERO, "lag", True)], "the rate stays as it was"
    assert all(
        e.asset_key == asset_key(scene.stream)
        for e in scene.context.events
        if isinstance(e, dg.AssetCheckEvaluation | dg.AssetMaterialization)
    )


def test_checks_of_a_reopened_shard_are_stored_again(scene: Scene) -> None:
    for _ in range(2):
        scene.commit(ZERO)
        scene.run.deliver(scene.context, new_shards=[ZERO])
    assert checks_in(scene.context.events) == 2 * [
        (ZERO, "no_gap", True),
        (ZERO, "quarantine_rate", True),
    ]


def test_a_known_lag_is_in_the_metadata(scene: Scene) -> None:
    for shard, age in ((ZERO, 7.5), (ONE, None)):
        scene.commit(shard)
        left = ConsumptionReport(shard, StopReason.BUDGET_ENDED, lag_after=3, lag_seconds=age)
        scene.run.add([left], seconds=1.0)
    assert scene.run.metadata(ZERO)["lag_seconds"] == 7.5
    assert scene.run.metadata(ONE)["lag_after"] == 3
    assert "lag_seconds" not in scene.run.metadata(ONE)


def test_the_first_commit_of_a_tenure_is_reported_at_once_and_further_ones_at_the_interval(
    scene: Scene,
) -> None:
    now = [100.0]
    progress = ProgressReports(scene.run, scene.context, lambda: now[0])
    progress.after_commit([])
    progress.after_commit([scene.commit(ZERO)])
    assert scene.reported() == [("0", 10, "not yet")]
    now[0] += REPORT_EVERY_S - 1
    progress.after_commit([scene.commit(ZERO)])
    assert len(scene.reported()) == 1
    now[0] += 1
    progress.after_commit([scene.commit(ZERO)])
    assert scene.reported()[1:] == [("0", 20, "not yet")]
    progress.after_commit([scene.commit(ZERO)])
    progress.after_commit([scene.commit(ONE)])
    assert scene.reported()[2:] == [("0", 10, "not yet"), ("1", 10, "not yet")]


def test_the_last_commits_are_reported_without_a_later_one(scene: Scene) -> None:
    now = [0.0]
    progress = ProgressReports(scene.run, scene.context, lambda: now[0])
    for _ in range(2):
        progress.after_commit([scene.commit(ZERO)])
    reported_s: list[float] = []
    while now[0] <= 300.0:
        before = len(scene.reported())
        progress.between_batches()
        reported_s += [now[0]] * (len(scene.reported()) - before)
        now[0] += 1.0
    assert reported_s == [REPORT_EVERY_S]
    assert scene.store.pending_events(scene.stream.key) == []


def test_the_first_commit_after_a_pause_is_reported_at_once(scene: Scene) -> None:
    progress = ProgressReports(scene.run, scene.context, lambda: 0.0)
    progress.after_commit([scene.commit(ZERO)])
    scene.reopen(ZERO)
    progress.after_commit([scene.commit(ZERO)])
    assert scene.reported() == 2 * [("0", 10, "not yet")]


def test_a_busy_run_reports_each_shard_twice_a_minute(scene: Scene) -> None:
    now = [0.0]
    progress = ProgressReports(scene.run, scene.context, lambda: now[0])
    while now[0] < 3_600.0:
        progress.after_commit([scene.commit(ZERO), scene.commit(ONE)])
        now[0] += 10.0
    assert len(scene.reported()) == 2 * 120
    assert len(checks_in(scene.context.events)) == 4, "outcomes that stay the same are not stored"


def test_slow_reports_take_at_most_a_fiftieth_of_the_time(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, reports = [0.0], list[float]()

    def deliver(*_: object) -> None:
        reports.append(now[0])
        now[0] += 2.0

    monkeypatch.setattr(ShardRun, "deliver", deliver)
    progress = ProgressReports(scene.run, scene.context, lambda: now[0])
    while now[0] < 1_000.0:
        progress.after_commit([scene.commit(ZERO)])
        now[0] += 1.0
    assert reports == pytest.approx([0.0] + [102.0 * n for n in range(1, 10)], abs=10.0)


def test_a_shared_cause_of_several_shards_is_reported_once(scene: Scene) -> None:
    scene.run.add(
        [
            report(ZERO, StopReason.FAILED, "Spark does not start: see the log."),
            report(ONE, StopReason.FAILED, "Spark does not start: see the log."),
            report(ShardId("2"), StopReason.FAILED, "The log is damaged."),
            report(ShardId("3"), StopReason.LEASE_LOST, "It was taken over."),
        ],
        seconds=1.0,
    )
    assert scene.run.failure() == (
        "3 of 4 shards of orders.eu failed. Shards 0, 1: Spark does not start: see the log. "
        "Shard 2: The log is damaged."
    )


@pytest.mark.parametrize(
    "reason", [StopReason.CAUGHT_UP, StopReason.FINISHED, StopReason.BUDGET_ENDED]
)
def test_a_requested_and_consumed_shard_is_not_refused(scene: Scene, reason: StopReason) -> None:
    scene.run.add([report(ZERO, reason)], seconds=1.0)
    assert scene.run.refusal([ZERO]) == ""
    assert scene.run.failure() == ""


@pytest.mark.parametrize(
    "reason",
    [reason for reason in StopReason if reason not in (
        StopReason.CAUGHT_UP, StopReason.FINISHED, StopReason.BUDGET_ENDED
    )],
)  # fmt: skip
def test_any_other_end_of_a_requested_shard_is_one_sentence(
    scene: Scene, reason: StopReason
) -> None:
    scene.run.add([report(ZERO, reason, "It did not work." * (reason == "failed"))], seconds=1.0)
    sentence = scene.run.refusal([ZERO])
    assert sentence.startswith("Shard 0 of orders.eu/default was not consumed to its end: ")
    assert "\n" not in sentence


def test_a_shard_that_holds_at_a_gap_fails_its_check_without_any_commit(scene: Scene) -> None:
    tenure = scene.opened[ZERO].tenure
    scene.store.record_gap(tenure, start="0", end="5", reason="trimmed", skip=False)
    scene.commit(ONE)
    scene.run.add(
        [report(ZERO, StopReason.FAILED, "held."), report(ONE, StopReason.CAUGHT_UP)], seconds=1
    )
    assert scene.run.deliver(scene.context) == 1
    evaluations = [e for e in scene.context.events if isinstance(e, dg.AssetCheckEvaluation)]
    no_gap = {str(e.partition): e.passed for e in evaluations if e.check_name == "no_gap"}
    assert no_gap == {ZERO: False, ONE: True}
    (gap,) = scene.store.gaps(scene.stream.key)
    scene.store.acknowledge_gap(scene.stream.key, gap, observer="test")
    scene.context.events.clear()
    scene.run.deliver(scene.context)
    assert scene.context.events == []
