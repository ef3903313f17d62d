"""Records at which runs raise, hang or die: runs over a real log find them and nothing is lost."""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dagster_leasehold.assets.consuming.consumption_report import StopReason
from dagster_leasehold.assets.consuming.isolation import can_come_from_records
from dagster_leasehold.assets.consuming.sweep import (
    GuardedSeparateJobs,
    GuardedSweeper,
    Retry,
    SweepResult,
)
from dagster_leasehold.assets.errors import (
    OutputUnwritable,
    SparkNotReady,
    SparkUnavailable,
    TransformError,
    TransformUnusable,
)
from dagster_leasehold.assets.guarding.stall_guard import StallGuard
from dagster_leasehold.assets.output.quarantined import quarantined_records
from dagster_leasehold.assets.shard_stream import Checks
from dagster_leasehold.lease_store.errors import (
    LogCorrupt,
    RunStalled,
    SourceError,
    SourceUnavailable,
    StoreUnavailable,
)
from dagster_leasehold.lease_store.identifiers import ShardId
from dagster_leasehold.lease_store.ledger_rows import BatchState
from dagster_leasehold.lease_store.rules.isolation import Suspicion
from dagster_leasehold.lease_store.rules.verification import verify
from dagster_leasehold.shard_sources.source import Limits, ReadRange
from tests.unit.assets.consumption_world import NODE, World

BAD, GOOD = ShardId("0"), ShardId("1")


class Killed(BaseException):
    """The process of a run is gone."""


@dataclass
class Mortal:
    """The lease store of one process: once the process is dead, its calls have no effect."""

    store: Any
    dead: bool = False

    def __getattr__(self, name: str) -> Any:
        if self.dead:
            raise Killed
        return getattr(self.store, name)


class Scene:
    """Runs over two shards, one of which has records that the transform cannot process."""

    def __init__(self, folder: Path, poison: set[int], fault: str, **declaration: Any) -> None:
        self.world = World(folder, records=0, records_max=1_000, declaration=declaration)
        self.poison = {b"0:%d" % number for number in poison}
        self.fault = fault
        self.runs = 0
        self.mortal = Mortal(self.world.store)
        self.tried: list[list[ReadRange]] = []
        self.results: list[tuple[Retry, SweepResult]] = []

    def sweep(
        self, ranges: Sequence[ReadRange], numbers: Mapping[ShardId, range]
    ) -> Mapping[ShardId, SweepResult]:
        self.tried.append(list(ranges))
        results: dict[ShardId, SweepResult] = {}
        for range_ in ranges:
            if self.values(range_) & self.poison:
                results[range_.shard] = self.fails()
        good = [range_ for range_ in ranges if range_.shard not in results]
        return {**results, **self.world.sweeper(good, numbers)}

    def start(self, tries: Sequence[Retry]) -> None:
        for each in sorted(tries, key=lambda each: each.range_.shard, reverse=True):
            shard, numbers = each.range_.shard, {each.range_.shard: each.numbers}
            try:
                if each.set_aside:
                    self.world.sweeper.refuses = lambda _: True
                    result = self.world.sweeper([each.range_], numbers)[shard]
                    self.world.sweeper.refuses = lambda _: False
                else:
                    result = self.sweep([each.range_], numbers)[shard]
            except RunStalled as stalled:
                result = stalled
            self.results.append((each, result))

    def done(self, *, wait_s: float | None) -> list[tuple[Retry, SweepResult]]:
        results, self.results = self.results, []
        return results

    def interrupt(self) -> None:
        self.results = []

    def values(self, range_: ReadRange) -> set[bytes]:
        return {
            value for part in self.world.log.read(range_) for value in part["value"].to_pylist()
        }

    def fails(self) -> TransformError:
        if self.fault == "hangs":
            raise RunStalled("This run made no progress for 2 s.")
        if self.fault == "dies":
            self.mortal.dead = True
            raise Killed
        if self.fault == "is terminated":
            raise KeyboardInterrupt
        return TransformError("The transform raised ValueError.")

    def run(self) -> dict[ShardId, Any]:
        """A run over both shards, or one for each that is blocked, as the launcher has it.

        The reports of a process that is gone are lost.
        """
        self.runs += 1
        world, rows = self.world, self.world.store.progress(self.world.key, [NODE])
        apart = [[shard] for shard in world.ids if rows[shard].blocked]
        together = [shard for shard in world.ids if not rows[shard].blocked]
        reports: dict[ShardId, Any] = {}
        for shards in [together, *apart]:
            replaced = {shard: rows[shard].consumer_run for shard in shards}
            self.mortal = Mortal(world.store)
            consumer = world.consumer(
                f"run-{self.runs}-{'-'.join(shards)}",
                store=self.mortal,
                sweeper=self.sweep,
                separate_jobs=self,
                replaces=replaced,
            )
            with suppress(Killed, KeyboardInterrupt):
                reports |= consumer.consume(shards)
            self.results = []
        return reports

    def until_read(self, runs_max: int = 200) -> None:
        ends = {shard: bound.end for shard, bound in self.world.log.bounds(self.world.ids).items()}
        while {shard: self.world.lease(shard).check_point or "0" for shard in ends} != ends:
            assert self.runs < runs_max
            self.run()

    def quarantined(self) -> list[bytes | None]:
        world = self.world
        return [each.value for each in quarantined_records(world.store, world.key, world.place)]

    @property
    def suspicion(self) -> Suspicion | None:
        return self.world.lease(BAD).suspicion


FAULTS = ("raises", "hangs", "dies", "is terminated")


@pytest.mark.parametrize("fault", FAULTS)
@settings(max_examples=5, deadline=None)
@given(st.integers(1, 40), st.sets(st.integers(0, 39), max_size=3))
def test_only_blocking_records_are_quarantined_and_all_others_committed_once(
    fault: str, records: int, poison: set[int]
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        scene = Scene(Path(folder), poison, fault, on_poison="quarantine")
        world = scene.world
        world.append(BAD, records)
        world.append(GOOD, records)
        scene.until_read()
        values = world.expected(BAD, records)
        bad = [value for value in values if value in scene.poison]
        assert scene.quarantined() == bad
        assert world.committed(BAD) == [value for value in values if value not in bad]
        assert world.committed(GOOD) == world.expected(GOOD, records)
        assert scene.suspicion is None
        assert verify(world.store, world.key) == []


@pytest.mark.parametrize("fault", FAULTS)
def test_a_shard_is_held_at_a_record_until_the_transform_accepts_it(
    tmp_path: Path, fault: str
) -> None:
    """Goal: a sentence that names the cursor; a repaired transform heals the shard by itself."""
    scene = Scene(tmp_path, {13}, fault)
    world = scene.world
    world.append(BAD, 20)
    world.append(GOOD, 20)
    for _ in range(20):
        reports = scene.run()
    assert world.lease(BAD).check_point == "13"
    assert world.committed(GOOD) == world.expected(GOOD, 20)
    assert scene.quarantined() == []
    suspicion = scene.suspicion
    assert suspicion is not None
    assert suspicion.holds_shard
    if fault == "raises":
        assert reports[BAD].stopped is StopReason.FAILED
        assert "Shard 0 of orders/default is held at cursor 13" in reports[BAD].error
        assert "raised ValueError" in reports[BAD].error
    tried, runs = len(scene.tried), scene.runs
    scene.run()
    assert [range_.start for [range_] in scene.tried[tried:] if range_.shard == BAD] == ["13"]
    assert scene.runs == runs + 1
    scene.poison = set()
    scene.until_read(scene.runs + 2)
    assert world.committed(BAD) == world.expected(BAD, 20)
    assert scene.suspicion is None


def test_a_held_record_that_is_skipped_goes_to_quarantine_with_the_reason(tmp_path: Path) -> None:
    scene = Scene(tmp_path, {3}, "hangs")
    scene.world.append(BAD, 8)
    for _ in range(20):
        scene.run()
    scene.world.store.skip_record(scene.world.key, BAD, "3", observer="ops")
    scene.until_read(scene.runs + 3)
    assert scene.quarantined() == [b"0:3"]


def test_a_search_takes_one_try_per_bit_of_the_range_with_different_ids(tmp_path: Path) -> None:
    scene = Scene(tmp_path, {700}, "hangs", on_poison="quarantine")
    world = scene.world
    world.append(BAD, 1_000)
    scene.until_read()
    assert len(scene.tried) <= 2 + 10 + 3
    rows = [row for (shard, _), row in world.store._groups[world.key].batches.items()]
    ranges = {(row.shard, row.sequence): (row.start, row.end) for row in rows}
    assert len(ranges) == len(rows)
    abandoned = [row for row in rows if row.state is BatchState.ABANDONED]
    assert abandoned
    assert all(int(row.end) - int(row.start) > 1 for row in abandoned)


def test_a_neighbour_is_committed_by_the_run_after_the_first_that_hangs(tmp_path: Path) -> None:
    """Goal: it waits for only one stall; afterwards the hanging shard has a separate job.

    Method: the search continues beside new records of the neighbour, which each run commits.
    """
    scene = Scene(tmp_path, {13}, "hangs", on_poison="quarantine")
    world = scene.world
    world.append(BAD, 20)
    world.append(GOOD, 5)
    scene.run()
    assert world.committed(GOOD) == []
    for number in range(2, 8):
        scene.run()
        assert world.committed(GOOD) == world.expected(GOOD, 5 * (number - 1))
        world.append(GOOD, 5)
    assert all(len(ranges) == 1 for ranges in scene.tried[1:])


def test_more_blocking_records_than_quarantined_max_hold_the_shard(tmp_path: Path) -> None:
    """Goal: a transform that fails for every record does not empty the log into quarantine."""
    declared = {"on_poison": "quarantine", "checks": Checks(quarantined_max=3)}
    scene = Scene(tmp_path, set(range(20)), "raises", **declared)
    scene.world.append(BAD, 20)
    for _ in range(10):
        reports = scene.run()
    assert scene.quarantined() == [b"0:%d" % number for number in range(3)]
    assert "is held at cursor 3" in reports[BAD].error


def test_failures_unrelated_to_records_do_not_halve_the_range(tmp_path: Path) -> None:
    scene = Scene(tmp_path, set(), "raises")
    scene.world.append(BAD, 20)
    errors = [
        SourceUnavailable("It is away."),
        TransformUnusable("No."),
        SparkNotReady("No Spark."),
    ]
    for error in errors * 2:
        scene.world.sweeper.results = {BAD: error}
        assert scene.run()[BAD].error == str(error)
    assert all(ranges[0].end == "20" for ranges in scene.tried)
    assert scene.suspicion is not None
    assert not scene.suspicion.isolating
    assert scene.suspicion.error == "No Spark.", "people read the last error all the same"


def test_only_failures_that_a_record_can_cause_are_counted() -> None:
    guilty = [TransformError(""), RunStalled(""), SparkUnavailable(""), LogCorrupt("")]
    assert all(map(can_come_from_records, [*guilty, SourceError("Reading failed with OSError")]))
    innocent = [
        TransformUnusable(""),
        SparkNotReady(""),
        SourceUnavailable(""),
        OutputUnwritable(""),
    ]
    assert not any(map(can_come_from_records, [*innocent, StoreUnavailable("")]))


def test_a_source_whose_cursors_have_no_order_is_halved_by_counting(tmp_path: Path) -> None:
    """Method: a log whose cursors are names, so that only planning finds the positions of
    records.
    """

    class Named:
        """A source whose ranges cannot be divided."""

        def __init__(self, log: Any) -> None:
            self.log = log

        def __getattr__(self, name: str) -> Any:
            if name == "divide":
                raise AttributeError(name)
            return getattr(self.log, name)

    scene = Scene(tmp_path, {11, 12}, "hangs", on_poison="quarantine")
    world = scene.world
    world.stream = replace(world.stream, source=Named(world.log))  # type: ignore[arg-type]
    world.append(BAD, 30)
    scene.until_read()
    assert scene.quarantined() == [b"0:11", b"0:12"]
    assert len(world.committed(BAD)) == 28


def test_other_shards_continue_while_a_hanging_shard_is_given_up_alone(tmp_path: Path) -> None:
    """Method: the guard's clock stalls until the neighbour has come to its end."""
    scene = Scene(tmp_path, {0}, "hangs")
    world = scene.world
    world.stream = replace(world.stream, limits=Limits(records_max=2))
    world.append(BAD, 6)
    world.append(GOOD, 6)
    scene.run()
    assert world.lease(GOOD).check_point is None
    ended = threading.Event()

    def make(each: Retry, guard: StallGuard) -> SweepResult:
        if each.range_.shard == BAD:
            while not guard.ending:
                ended.wait(0.01)
        return world.sweeper([each.range_], {each.range_.shard: each.numbers})[each.range_.shard]

    def clock() -> float:
        return 100.0 if world.lease(GOOD).check_point == "6" else 0.0

    with StallGuard(10.0, clock) as guard:
        sweeper = GuardedSweeper(world.sweeper, guard)
        reports = world.consume("run-2", separate_jobs=GuardedSeparateJobs(sweeper, make, guard))
    assert reports[GOOD].stopped is StopReason.CAUGHT_UP
    assert world.committed(GOOD) == world.expected(GOOD, 6)
    assert reports[BAD].stopped is StopReason.FAILED
    assert "made no progress for 10 s while it waited for Spark" in reports[BAD].error
    assert guard.stalled is None
    assert (world.lease(BAD).check_point, world.lease(BAD).tries) == (None, 2)
