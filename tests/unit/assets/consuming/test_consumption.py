"""The batch loop, on the model store and a real local log, without Spark."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path

import pytest

from dagster_leasehold.assets.consuming.consumption_report import StopReason
from dagster_leasehold.assets.consuming.opening import initial_position
from dagster_leasehold.assets.consuming.sweep import SweepOutcome
from dagster_leasehold.assets.errors import SparkUnavailable, SweepInterrupted, TransformError
from dagster_leasehold.assets.shard_stream import Checks
from dagster_leasehold.lease_store.errors import InvalidSetting, StoreUnavailable
from dagster_leasehold.lease_store.identifiers import ShardId
from dagster_leasehold.lease_store.ledger_rows import BatchState, BatchStatistics, DataFile
from dagster_leasehold.lease_store.outcomes import Opened
from dagster_leasehold.lease_store.rules.consumer_lifecycle import ConsumerState
from dagster_leasehold.lease_store.rules.states import ShardState
from dagster_leasehold.shard_sources.local_log import Record
from dagster_leasehold.shard_sources.local_log import format as local_log_format
from dagster_leasehold.shard_sources.source import Position, ReadRange
from tests.unit.assets.consumption_world import NODE, OTHER, ArrowSweeper, World

ZERO, ONE = ShardId("0"), ShardId("1")


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def test_a_run_reads_and_reports_every_record_once(world: World) -> None:
    """Goal: the plain course. Method: ten records a shard, in batches of four."""
    reports = world.consume()
    for shard in (ZERO, ONE):
        report = reports[shard]
        assert report.stopped is StopReason.CAUGHT_UP
        assert (report.records, report.written, report.batches) == (10, 10, 3)
        assert (report.start, report.end) == ("0", "10")
        assert (report.lag_before, report.lag_after) == (10, 0)
        assert report.bytes == sum(map(len, world.expected(shard, 10)))
        assert report.first_event_time <= report.last_event_time
        assert world.committed(shard) == world.expected(shard, 10)
        assert world.lease(shard).check_point == "10"
        assert world.lease(shard).consumer_run == ""
        assert world.lease(shard).watermark == report.last_event_time
    assert [len(sweep) for sweep in world.sweeper.sweeps] == [2, 2, 2]


def test_a_record_with_an_impossible_time_is_committed_counted_and_named(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Goal: the shard comes to its end, and the watermark is that of the other records."""
    beyond = datetime(9999, 12, 31, 23, tzinfo=timezone(timedelta(hours=-5)))
    with monkeypatch.context() as patched:
        patched.setattr(local_log_format, "moment_of", lambda time: time)
        world.log.append(ZERO, [Record(b"0:10", event_time=beyond)])
    report = world.consume()[ZERO]
    assert (report.stopped, report.end, report.records) == (StopReason.CAUGHT_UP, "11", 11)
    assert world.committed(ZERO) == world.expected(ZERO, 11)
    assert world.lease(ZERO).watermark == report.last_event_time < datetime.now(UTC)
    events = world.store.pending_events(world.key, shard=ZERO)
    counts = [event.payload["mistimed"] for event in events]
    assert counts == [0, 0, 1]
    [line] = [entry.message for entry in caplog.records if "years" in entry.message]
    assert line.startswith("1 records of shard 0 between cursors 8 and 11")
    assert "cursor 10" in line


def test_consecutive_sweepers_never_write_into_one_folder(world: World) -> None:
    """Method: each is gone when the next one is made, which may get its memory."""
    for _ in range(5):
        ArrowSweeper(world.log, world.place)([ReadRange(ZERO, "0", "4")], {ZERO: range(1)})
    assert len(list(world.output.glob("attempts/*"))) == 5


def test_all_shards_of_a_sweep_share_one_commit(world: World) -> None:
    world.consume()
    assert world.store.statements["commit"] == 3
    assert world.store.statements["record_intents"] == 3


def test_a_run_that_finds_nothing_starts_no_sweep(world: World) -> None:
    world.consume("run-1")
    world.sweeper.sweeps.clear()
    reports = world.consume("run-2")
    assert world.sweeper.sweeps == []
    assert {report.stopped for report in reports.values()} == {StopReason.CAUGHT_UP}
    assert reports[ZERO].batches == 0


def test_the_next_run_continues_at_the_last_checkpoint(world: World) -> None:
    world.consume("run-1")
    world.append(ZERO, 3)
    report = world.consume("run-2")[ZERO]
    assert (report.start, report.end, report.records) == ("10", "13", 3)
    assert world.committed(ZERO) == world.expected(ZERO, 13)


def test_a_finished_shard_ends_over_and_frees_its_children(world: World) -> None:
    """Method: split a shard that was half read, consume, then consume the children."""
    world.log.split(ZERO)
    world.sync()
    reports = world.consume()
    assert reports[ZERO].stopped is StopReason.FINISHED
    assert world.lease(ZERO).state == "over"
    children = [lease for lease in world.store.snapshot(world.key).shards if lease.parents]
    assert [child.state for child in children] == ["not_alloc", "not_alloc"]
    assert [reports[child.shard].stopped for child in children] == [StopReason.NOT_HELD] * 2
    assert world.committed(ZERO) == world.expected(ZERO, 10)


def test_an_empty_finished_shard_needs_no_batch(tmp_path: Path) -> None:
    world = World(tmp_path, shards=1, records=0)
    world.log.split(ZERO)
    world.sync()
    assert world.consume()[ZERO].stopped is StopReason.FINISHED
    assert world.lease(ZERO).state == "over"
    assert world.store.batches(world.key) == []


def test_children_start_at_their_first_record_for_any_initial_position(tmp_path: Path) -> None:
    """Goal: `end` must not skip records of a shard that came from a split."""
    world = World(tmp_path, shards=1, records=2, declaration={"initial_position": "end"})
    assert world.consume()[ZERO].end == "2"
    assert world.committed(ZERO) == []
    first, _second = world.log.split(ZERO)
    world.append(first, 3)
    world.sync()
    world.consume("run-2")
    world.sync()
    assert world.consume("run-3")[first].records == 3
    assert world.committed(first) == world.expected(first, 3)


def test_the_initial_position_end_is_fixed_at_the_first_opening(tmp_path: Path) -> None:
    """Goal: a run that dies before its first commit must not move where the group begins."""
    world = World(tmp_path, shards=1, records=2, declaration={"initial_position": "end"})
    world.consume("run-1")
    world.append(ZERO, 3)
    assert world.consume("run-2")[ZERO].start == "2"
    assert world.committed(ZERO) == world.expected(ZERO, 5)[2:]


def test_a_leftover_intent_is_read_with_the_same_bounds_and_number(world: World) -> None:
    """Method: a sweep that dies after the intent; then a run with other limits."""

    class PowerLoss(BaseException):
        pass

    def die() -> None:
        raise PowerLoss

    world.sweeper.before = die
    with pytest.raises(PowerLoss):
        world.consume("run-1")
    intended = world.store.batches(world.key, state=BatchState.INTENT)
    assert [(batch.start, batch.end) for batch in intended] == [("0", "4"), ("0", "4")]
    assert world.lease(ZERO).consumer_run == "", "an interrupt lets the shards go"
    world.sweeper.before = lambda: None
    world.sweeper.sweeps.clear()
    world.append(ZERO, 90)
    world.consume("run-2")
    first = world.sweeper.sweeps[0][0]
    assert (first.start, first.end) == ("0", "4")
    assert [batch.sequence for batch in world.store.batches(world.key, ZERO)] == list(range(25))
    assert world.committed(ZERO) == world.expected(ZERO, 100)


def test_a_leftover_intent_to_the_end_of_a_finished_shard_finishes_it(tmp_path: Path) -> None:
    world = World(tmp_path, shards=1, records=3)
    world.log.split(ZERO)
    world.sync()
    world.sweeper.results[ZERO] = TransformError("boom")
    assert world.consume("run-1")[ZERO].stopped is StopReason.FAILED
    world.sweeper.results.clear()
    assert world.consume("run-2")[ZERO].stopped is StopReason.FINISHED
    assert world.committed(ZERO) == world.expected(ZERO, 3)


def test_a_failing_shard_stops_alone(world: World) -> None:
    world.sweeper.results[ZERO] = TransformError("The transform raised ValueError: boom.")
    reports = world.consume()
    assert reports[ZERO].stopped is StopReason.FAILED
    assert reports[ZERO].error == "The transform raised ValueError: boom."
    assert reports[ONE].records == 10
    assert world.committed(ZERO) == []
    assert world.lease(ZERO).check_point is None
    reasons = [entry.reason for entry in world.store.journal(world.key, shard=ZERO)]
    assert "The transform raised ValueError: boom." in reasons[-1]


def test_an_expired_cursor_fails_its_shard_with_a_sentence(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.consume("run-1")
    world.store.force_checkpoint(world.key, ZERO, "999", observer="test", reason="test")
    reports = world.consume("run-2")
    assert reports[ZERO].stopped is StopReason.FAILED
    assert reports[ZERO].error.endswith(".")
    assert reports[ONE].stopped is StopReason.CAUGHT_UP


def test_too_many_quarantined_records_are_not_committed(tmp_path: Path) -> None:
    world = World(tmp_path, declaration={"checks": Checks(quarantined_max=2)})
    files = (DataFile("attempts/x/0.parquet", 3, 10, quarantine=True),)
    statistics = BatchStatistics(4, 20, 1, 3)
    world.sweeper.results[ZERO] = SweepOutcome("attempts/x", files, statistics)
    report = world.consume()[ZERO]
    assert report.stopped is StopReason.FAILED
    assert "3 records of shard 0 between cursors 0 and 4" in report.error
    assert world.store.batches(world.key, ZERO) == []


def test_a_transfer_is_handed_over_at_the_next_boundary(world: World) -> None:
    """Method: the plan gives shard 0 away while its first batch runs."""

    def give_away() -> None:
        lease = world.lease(ZERO)
        if lease.state == "already_alloc" and lease.lease_owner == NODE:
            world.store.begin_transfer(
                world.key, {ZERO: (OTHER, lease.lease_id, "plan")}, observer="test"
            )[ZERO]

    world.sweeper.before = give_away
    reports = world.consume()
    assert reports[ZERO].stopped is StopReason.HANDED_OVER
    assert (reports[ZERO].batches, reports[ZERO].end) == (1, "4")
    assert world.lease(ZERO).consumer_owner == OTHER
    assert world.lease(ZERO).check_point == "4"
    assert reports[ONE].stopped is StopReason.CAUGHT_UP
    rest = world.consumer("run-2", node=OTHER).consume([ZERO])[ZERO]
    assert rest.records == 6
    assert world.committed(ZERO) == world.expected(ZERO, 10)


def test_a_run_with_a_lost_lease_commits_nothing(world: World) -> None:
    """Goal: the stale holder. Method: the node is evicted while its sweep runs."""

    def evict() -> None:
        seen = next(n.lease_id for n in world.store.pulse(world.key).nodes if n.name == NODE)
        world.store.evict(world.key, NODE, seen, observer="test", reason="silent")

    world.sweeper.before = evict
    reports = world.consume()
    for shard in (ZERO, ONE):
        assert reports[shard].stopped is StopReason.LEASE_LOST
        assert reports[shard].batches == 0
        assert f"lost shard {shard}" in reports[shard].error
        assert world.committed(shard) == []
    assert world.store.batches(world.key) == []


def test_a_run_that_cannot_trust_its_lease_does_not_commit(world: World) -> None:
    def doubt() -> None:
        world.beat.trusted = False

    world.sweeper.before = doubt
    reports = world.consume()
    assert {report.stopped for report in reports.values()} == {StopReason.UNTRUSTED}
    assert world.store.statements["commit"] == 0
    assert world.lease(ZERO).consumer_run == ""


def test_a_run_that_cannot_trust_its_lease_reads_nothing(world: World) -> None:
    world.beat.trusted = False
    reports = world.consume()
    assert {report.stopped for report in reports.values()} == {StopReason.UNTRUSTED}
    assert world.sweeper.sweeps == []


def test_a_paused_group_stops_at_the_boundary(world: World) -> None:
    def pause() -> None:
        group = world.store.snapshot(world.key).group
        if not group.paused:
            world.store.update_group(replace(group, paused=True), observer="test")

    world.sweeper.before = pause
    reports = world.consume()
    assert {report.stopped for report in reports.values()} == {StopReason.PAUSED}
    assert {report.batches for report in reports.values()} == {1}


def test_the_budget_ends_after_a_batch_never_before_the_first(world: World) -> None:
    def take_time() -> None:
        world.now_s += 100.0

    world.sweeper.before = take_time
    reports = world.consume(budget_s=50.0)
    assert {report.stopped for report in reports.values()} == {StopReason.BUDGET_ENDED}
    assert {report.batches for report in reports.values()} == {1}
    assert world.lease(ZERO).handoff_eta_s is None or world.lease(ZERO).consumer_run == ""


def test_a_requested_stop_is_obeyed_at_the_boundary(world: World) -> None:
    reports = world.consume(stop_requested=lambda: len(world.sweeper.sweeps) >= 2)
    assert {report.stopped for report in reports.values()} == {StopReason.STOP_REQUESTED}
    assert {report.batches for report in reports.values()} == {2}


def test_the_time_of_a_batch_is_announced_again_only_if_it_changed(world: World) -> None:
    def take_time() -> None:
        world.now_s += 3.0

    announced: list[float] = []
    original = world.store.announce_all

    def announce_all(tenures, *, handoff_eta_s):
        announced.extend(handoff_eta_s for _ in tenures)
        return original(tenures, handoff_eta_s=handoff_eta_s)

    world.store.announce_all = announce_all
    world.sweeper.before = take_time
    world.consume()
    assert announced == [3.0, 3.0]


def test_a_run_of_many_shards_opens_announces_and_closes_them_together(tmp_path: Path) -> None:
    """Goal: the transactions of a run do not grow with its shards."""
    world = World(tmp_path, shards=5, records=3)
    world.consume()
    for verb in ("open_tenure", "record_intents", "commit", "close_tenure"):
        assert world.store.statements[verb] == 1, verb


def test_a_shard_that_cannot_be_opened_does_not_keep_others_closed(world: World) -> None:
    """Method: opening one shard raises an unexpected error, with others and alone."""
    original = world.store.open_tenures

    def unreadable(key, shards, *rest, **more):
        if ONE in shards:
            raise ValueError("a row that nobody can read")
        return original(key, shards, *rest, **more)

    world.store.open_tenures = unreadable
    reports = world.consume()
    assert reports[ZERO].stopped is StopReason.CAUGHT_UP
    assert reports[ONE].stopped is StopReason.FAILED
    assert "a row that nobody can read" in reports[ONE].error


def test_an_unavailable_store_is_called_once_to_open_all_shards(world: World) -> None:
    asked: list[object] = []

    def unavailable(*arguments: object, **_: object) -> None:
        asked.append(arguments)
        raise StoreUnavailable("The database does not answer.")

    world.store.open_tenures = world.store.open_tenure = unavailable
    reports = world.consume()
    assert len(asked) == 1
    assert {report.error for report in reports.values()} == {"The database does not answer."}


def test_a_shard_in_transfer_is_announced_too(world: World) -> None:
    """Method: one shard is requested while the first batch is in progress."""

    def ask() -> None:
        if len(world.sweeper.sweeps) == 1:
            lease = world.lease(ZERO)
            world.store.begin_transfer(
                world.key, {ZERO: (OTHER, lease.lease_id, "balance")}, observer="test"
            )[ZERO]
        world.now_s += 3.0

    announced: list[object] = []
    original = world.store.announce_all

    def announce_all(tenures, *, handoff_eta_s):
        shards = original(tenures, handoff_eta_s=handoff_eta_s)
        if tenures:
            announced.append((shards, world.lease(ZERO).state, world.lease(ZERO).handoff_eta_s))
        return shards

    world.store.announce_all = announce_all
    world.sweeper.before = ask
    reports = world.consume()
    assert announced == [({ZERO, ONE}, ShardState.TRANSFER, 3.0)]
    assert reports[ZERO].stopped is StopReason.HANDED_OVER
    assert reports[ONE].stopped is StopReason.CAUGHT_UP


def test_shards_of_others_are_reported_not_raised(world: World) -> None:
    other = world.store.open_tenure(world.key, ZERO, NODE, "run-0")
    assert isinstance(other, Opened)
    reports = world.consumer().consume([ZERO, ONE, ShardId("99")])
    assert reports[ZERO].stopped is StopReason.OPEN_BY_OTHER
    assert reports[ZERO].open_by == "run-0"
    assert reports[ONE].stopped is StopReason.CAUGHT_UP
    assert reports[ShardId("99")].stopped is StopReason.FAILED
    not_ours = world.consumer("run-2", node=OTHER).consume([ONE])[ONE]
    assert not_ours.stopped is StopReason.NOT_HELD
    assert "held by node a" in not_ours.error


def test_a_dead_run_is_replaced(world: World) -> None:
    world.store.open_tenure(world.key, ZERO, NODE, "run-0")
    reports = world.consume(replaces={ZERO: "run-0"})
    assert reports[ZERO].records == 10


def test_a_lost_spark_fails_and_releases_all_open_shards(world: World) -> None:
    def vanish() -> None:
        raise SparkUnavailable("Spark does not answer.")

    world.sweeper.before = vanish
    reports = world.consume()
    assert {report.error for report in reports.values()} == {"Spark does not answer."}
    assert world.lease(ZERO).consumer_run == ""


def test_an_interrupted_sweep_counts_as_distrust(world: World) -> None:
    def interrupt() -> None:
        raise SweepInterrupted("The Spark job was interrupted.")

    world.sweeper.before = interrupt
    assert world.consume()[ZERO].stopped is StopReason.UNTRUSTED


@pytest.mark.parametrize("interrupt", [KeyboardInterrupt, SystemExit])
def test_an_interrupt_releases_all_shards_and_propagates(
    world: World, interrupt: type[BaseException]
) -> None:
    def raise_it() -> None:
        raise interrupt

    world.sweeper.before = raise_it
    with pytest.raises(interrupt):
        world.consume()
    assert [world.lease(shard).consumer_run for shard in (ZERO, ONE)] == ["", ""]


def test_a_lost_store_is_one_sentence_per_shard(world: World) -> None:
    """Goal: closing must neither hide the cause nor wait once per shard."""
    closed: list[object] = []

    def unavailable(*asked: object, **__: object) -> None:
        closed.extend(asked)
        raise StoreUnavailable("The database does not answer.")

    def no_commit(*_: object) -> None:
        unavailable()

    world.store.commit = no_commit
    world.store.close_tenure = world.store.close_tenures = unavailable
    reports = world.consume()
    assert len(closed) == 1
    assert {report.error for report in reports.values()} == {"The database does not answer."}


def test_a_group_that_was_deleted_is_one_sentence_per_shard(world: World) -> None:
    world.sweeper.before = lambda: world.store.delete_group(world.key, force=True)
    reports = world.consume()
    assert {report.stopped for report in reports.values()} == {StopReason.FAILED}
    assert all("no consumer group" in report.error for report in reports.values())


def test_after_commit_receives_each_batch_in_order(world: World) -> None:
    heard: list[tuple[str, str, str]] = []
    world.consume(
        after_commit=lambda commits: heard.extend((c.tenure.shard, c.start, c.end) for c in commits)
    )
    assert [entry for entry in heard if entry[0] == "0"] == [
        ("0", "0", "4"),
        ("0", "4", "8"),
        ("0", "8", "10"),
    ]


def test_a_consumer_is_processing_and_then_stopped(world: World) -> None:
    consumer = world.consumer()
    seen: set[ConsumerState] = set()
    world.sweeper.before = lambda: seen.update(consumer.states().values())
    consumer.consume(world.ids)
    assert seen == {ConsumerState.PROCESSING}
    assert set(consumer.states().values()) == {ConsumerState.STOP_COMPLETED}


def test_initial_positions_are_parsed() -> None:
    assert initial_position("begin") is Position.BEGIN
    assert initial_position("end") is Position.END
    assert initial_position("2026-01-31T08:00:00+00:00") == datetime(2026, 1, 31, 8, tzinfo=UTC)
    for wrong in ("", "yesterday", "300"):
        with pytest.raises(InvalidSetting, match="initial position"):
            initial_position(wrong)
