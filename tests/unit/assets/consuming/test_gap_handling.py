"""Records that retention removed before they were read: held, passed, recorded, never silent."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from dagster_leasehold.assets.consuming.consumption_report import ConsumptionReport, StopReason
from dagster_leasehold.lease_store.group_rows import GapPolicy
from dagster_leasehold.lease_store.identifiers import ShardId
from dagster_leasehold.lease_store.ledger_rows import BatchState, Intent
from dagster_leasehold.lease_store.outcomes import Changed, Opened
from dagster_leasehold.lease_store.rules.verification import verify
from dagster_leasehold.shard_sources.local_log.catalog import Catalog, load_catalog, save_catalog
from tests.unit.assets.consumption_world import NODE, World

ZERO, ONE = ShardId("0"), ShardId("1")


@pytest.fixture
def world(tmp_path: Path) -> World:
    """Shard 0 consumed to 10; 5 more were appended and removed, then 5 more appended."""
    world = World(tmp_path)
    world.consume("run-1")
    world.append(ZERO, 5)
    world.log.retain(ZERO, "15")
    world.append(ZERO, 5)
    return world


def policy(world: World, wanted: GapPolicy) -> None:
    group = world.store.pulse(world.key).group
    world.store.update_group(replace(group, gap_policy=wanted), observer="test")


def spans(world: World) -> list[tuple[str, str, bool, bool]]:
    return [
        (gap.start, gap.end, gap.acknowledged, gap.skipped) for gap in world.store.gaps(world.key)
    ]


def accept_all(world: World) -> None:
    for gap in world.store.gaps(world.key):
        world.store.acknowledge_gap(world.key, gap, observer="test")


def values(first: int, end: int) -> list[bytes]:
    return [b"0:%d" % number for number in range(first, end)]


def test_a_group_holds_by_default_and_says_how_to_continue(world: World) -> None:
    reports = world.consume("run-2")
    assert reports[ZERO].stopped is StopReason.FAILED
    assert "from 10 to 15 of shard 0 of orders/default" in reports[ZERO].error
    assert "`leasehold gap ack orders 0`" in reports[ZERO].error
    assert reports[ONE].stopped is StopReason.CAUGHT_UP, "other shards continue"
    assert spans(world) == [("10", "15", False, False)]
    assert world.lease(ZERO).check_point == "10"
    assert world.lease(ZERO).consumer_run == ""
    assert verify(world.store, world.key) == []


def test_an_accepted_gap_is_skipped_once(world: World) -> None:
    world.consume("run-2")
    accept_all(world)
    report = world.consume("run-3")[ZERO]
    assert (report.stopped, report.records) == (StopReason.CAUGHT_UP, 5)
    assert spans(world) == [("10", "15", True, True)]
    assert world.committed(ZERO) == values(0, 10) + values(15, 20)
    assert verify(world.store, world.key) == []


def test_a_gap_that_grew_after_its_acceptance_needs_another_one(world: World) -> None:
    world.consume("run-2")
    accept_all(world)
    world.log.retain(ZERO, "20")
    world.append(ZERO, 2)
    assert "from 15 to 20" in world.consume("run-3")[ZERO].error
    assert spans(world) == [("10", "15", True, True), ("15", "20", False, False)]
    accept_all(world)
    assert world.consume("run-4")[ZERO].records == 2
    assert world.committed(ZERO) == values(0, 10) + values(20, 22)
    assert verify(world.store, world.key) == []


@pytest.mark.parametrize(("wanted", "end", "read"), [("begin", "15", 5), ("end", "20", 0)])
def test_a_policy_skips_and_records_a_gap(world: World, wanted: str, end: str, read: int) -> None:
    policy(world, GapPolicy(wanted))
    report = world.consume("run-2")[ZERO]
    assert (report.stopped, report.records, report.end) == (StopReason.CAUGHT_UP, read, "20")
    assert spans(world) == [("10", end, False, True)]
    world.append(ZERO, 1)
    assert world.consume("run-3")[ZERO].records == 1
    assert world.committed(ZERO) == values(0, 10) + values(20 - read, 21)
    assert verify(world.store, world.key) == []


def test_an_expired_intent_is_abandoned_with_its_number(world: World) -> None:
    """1. a run intends [10, 14) and dies; 2. retention removes it; 3. the next run takes over."""
    world = World(world.folder / "other")
    world.consume("run-1")
    world.append(ZERO, 5)
    opened = world.store.open_tenure(world.key, ZERO, NODE, "run-2")
    assert isinstance(opened, Opened)
    assert isinstance(
        world.store.record_intents([Intent(opened.tenure, 3, "10", "14")])[ZERO], Changed
    )
    world.log.retain(ZERO, "15")
    world.append(ZERO, 5)
    policy(world, GapPolicy.BEGIN)
    report = world.consume("run-3", replaces={ZERO: "run-2"})[ZERO]
    assert (report.stopped, report.records) == (StopReason.CAUGHT_UP, 5)
    batches = world.store.batches(world.key, ZERO, None)
    assert [(batch.sequence, batch.state) for batch in batches[3:]] == [
        (3, BatchState.ABANDONED),
        (4, BatchState.COMMITTED),
        (5, BatchState.COMMITTED),
    ]
    assert verify(world.store, world.key) == []


@pytest.mark.parametrize("wanted", list(GapPolicy))
def test_records_removed_while_a_batch_is_read_are_a_gap(tmp_path: Path, wanted: GapPolicy) -> None:
    """1. a batch is planned and intended; 2. retention removes it; 3. Spark's worker finds out."""
    world = World(tmp_path)
    policy(world, wanted)
    world.consume("run-1")
    world.append(ZERO, 5)
    real = world.sweeper._write

    def removed_meanwhile(range_, numbers):  # type: ignore[no-untyped-def]
        from dagster_leasehold.lease_store.errors import CursorExpired

        if not world.store.gaps(world.key) and range_.start == "10":
            world.log.retain(ZERO, "15")
            world.append(ZERO, 2)
        try:
            return real(range_, numbers)
        except CursorExpired as error:
            return error

    world.sweeper._write = removed_meanwhile
    report = world.consume("run-2")[ZERO]
    if wanted is GapPolicy.HOLD:
        assert report.stopped is StopReason.FAILED
        assert spans(world) == [("10", "15", False, False)]
        accept_all(world)
        report = world.consume("run-3")[ZERO]
    assert report.stopped is StopReason.CAUGHT_UP
    end = "17" if wanted is GapPolicy.END else "15"
    assert [(gap.start, gap.end) for gap in world.store.gaps(world.key)] == [("10", end)]
    expected = values(0, 10) + ([] if wanted is GapPolicy.END else values(15, 17))
    assert world.committed(ZERO) == expected
    assert verify(world.store, world.key) == []


def test_an_empty_child_with_a_moving_begin_cursor_has_no_gap(tmp_path: Path) -> None:
    """In an empty shard, a service's cursor contains the time of the request."""
    world = World(tmp_path)
    child = world.log.split(ZERO)[0]
    world.sync()
    world.consume("run-1")
    world.sync()
    world.log.cursor_at = lambda shard, position: "1"  # type: ignore[method-assign]
    assert world.consume("run-2")[child].stopped is StopReason.CAUGHT_UP
    assert world.store.gaps(world.key) == []


def test_a_child_that_lost_all_its_records_ends_with_a_gap(tmp_path: Path) -> None:
    world = World(tmp_path)
    policy(world, GapPolicy.BEGIN)
    child = world.log.split(ZERO)[0]
    world.append(child, 4)
    world.log.split(child)
    world.log.retain(child, "4")
    world.sync()
    world.consume("run-1")
    world.sync()
    assert world.consume("run-2")[child].stopped is StopReason.FINISHED
    assert [(gap.start, gap.end) for gap in world.store.gaps(world.key)] == [("0", "4")]
    assert verify(world.store, world.key) == []


@pytest.mark.parametrize("wanted", [GapPolicy.HOLD, GapPolicy.BEGIN])
def test_a_child_whose_first_records_were_removed_starts_with_a_gap(
    tmp_path: Path, wanted: GapPolicy
) -> None:
    """A child begins at its first record: where that is gone, records were lost unread."""
    world = World(tmp_path)
    policy(world, wanted)
    child = world.log.split(ZERO)[0]
    world.append(child, 4)
    world.log.retain(child, "4")
    world.append(child, 3)
    world.sync()
    world.consume("run-1")
    world.sync()
    report: ConsumptionReport = world.consume("run-2")[child]
    if wanted is GapPolicy.HOLD:
        assert report.stopped is StopReason.FAILED
        assert "from 0 to 4" in report.error
        accept_all(world)
        report = world.consume("run-3")[child]
    assert report.records == 3
    assert [(gap.shard, gap.start, gap.end) for gap in world.store.gaps(world.key)] == [
        (child, "0", "4")
    ]
    assert verify(world.store, world.key) == []


def remove(world: World, shard: ShardId) -> None:
    """Let retention forget a shard."""
    catalog = load_catalog(world.log.root)
    rest = tuple(entry for entry in catalog.shards if entry.shard != shard)
    save_catalog(world.log.root, Catalog(rest))


@pytest.mark.parametrize("wanted", list(GapPolicy))
@pytest.mark.parametrize("read_before", [True, False])
def test_a_removed_shard_is_over_after_a_gap(
    tmp_path: Path, wanted: GapPolicy, read_before: bool
) -> None:
    """Goal: its children continue, the other shards never stop, and nothing is skipped silently."""
    world = World(tmp_path)
    policy(world, wanted)
    if read_before:
        world.consume("run-1")
    world.append(ZERO, 3)
    child = world.log.split(ZERO)[0]
    world.append(child, 2)
    remove(world, ZERO)
    world.sync()
    reports = world.consume("run-2")
    assert reports[ShardId("1")].stopped is StopReason.CAUGHT_UP
    begin = "10" if read_before else "0"
    if wanted is GapPolicy.HOLD:
        assert reports[ZERO].stopped is StopReason.FAILED
        assert f"from {begin} to gone" in reports[ZERO].error
        assert world.lease(ZERO).state == "already_alloc"
        accept_all(world)
        reports = world.consume("run-3")
    assert reports[ZERO].stopped is StopReason.FINISHED
    assert [(gap.shard, gap.start, gap.end) for gap in world.store.gaps(world.key)] == [
        (ZERO, begin, "gone")
    ]
    world.sync()
    assert world.consume("run-4")[child].records == 2
    assert verify(world.store, world.key) == []


def test_an_intended_batch_of_a_removed_shard_is_abandoned(tmp_path: Path) -> None:
    """Method: a run dies between intent and commit, and then its shard is removed."""
    world = World(tmp_path)
    policy(world, GapPolicy.BEGIN)

    def die() -> None:
        raise KeyboardInterrupt

    world.sweeper.before = die
    with pytest.raises(KeyboardInterrupt):
        world.consume("run-1")
    world.sweeper.before = lambda: None
    world.log.split(ZERO)
    remove(world, ZERO)
    assert world.consume("run-2")[ZERO].stopped is StopReason.FINISHED
    assert [(gap.start, gap.end) for gap in world.store.gaps(world.key)] == [("0", "gone")]
    assert verify(world.store, world.key) == []


def test_a_new_group_starts_at_the_oldest_record(tmp_path: Path) -> None:
    """Records that were removed before the group existed are no loss of the group."""
    world = World(tmp_path)
    world.log.retain(ZERO, "10")
    world.append(ZERO, 1)
    assert world.consume()[ZERO].records == 1
    assert world.store.gaps(world.key) == []


def test_a_source_that_contradicts_itself_stops_the_shard(tmp_path: Path) -> None:
    from dagster_leasehold.lease_store.errors import CursorExpired

    world = World(tmp_path)
    world.sweeper.results[ZERO] = CursorExpired("gone.")  # but the log still has it
    for wanted in GapPolicy:
        if wanted is not GapPolicy.END:
            policy(world, wanted)
            report = world.consume(f"run-{wanted}")[ZERO]
            assert (report.stopped, report.error) == (StopReason.FAILED, "gone.")
    assert world.store.gaps(world.key) == []
