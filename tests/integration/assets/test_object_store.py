"""Output in an object store, from end to end: written, committed, read, replaced and removed.

The store is moto's server behind Arrow's client, with a test clock. Runs are ended by an error that
no code can catch, and leave the same files as a killed process.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, cast
from unittest import mock

import pyarrow as pa
import pytest

from dagster_leasehold.assets.deployment import Deployment
from dagster_leasehold.assets.errors import OutputUnwritable
from dagster_leasehold.assets.output.attempts import shard_and_batches, touch_replaced
from dagster_leasehold.assets.output.committed_output import CommittedOutput
from dagster_leasehold.assets.places.address import output_place
from dagster_leasehold.assets.places.place import OutputPlace
from dagster_leasehold.assets.rewriting.compaction import Compactor
from dagster_leasehold.assets.rewriting.replay import Replayer
from dagster_leasehold.assets.rewriting.replay_span import ReplaySpan
from dagster_leasehold.assets.rewriting.vacuum import VacuumReport, vacuum
from dagster_leasehold.assets.windows.window_run import build_window, window_paths
from dagster_leasehold.lease_store import failpoints
from dagster_leasehold.lease_store.errors import LeaseholdError
from dagster_leasehold.lease_store.group_rows import Timing
from dagster_leasehold.lease_store.identifiers import ShardId
from dagster_leasehold.lease_store.ledger_rows import DataFile
from tests.failpoints import Failpoint
from tests.integration.assets.runs import WAYS
from tests.integration.assets.sweeping import Sweeping
from tests.ledger_output import ledger_paths, ledger_records
from tests.object_store import ENVIRONMENT, StoreClock, new_bucket, serve, store_clock
from tests.unit.assets.consumption_world import World
from tests.unit.assets.spark_doubles import SparkDouble

HOUR = timedelta(hours=1)
ZERO, ONE = ShardId("0"), ShardId("1")
ALL = ReplaySpan.parse(None, None)


SWEEPS = [
    "check_records_come_out_as_they_went_in",
    "check_a_shuffle_keeps_shards_apart",
    "check_parsing_quarantines",
    "check_a_source_error_names_its_shard",
    "check_a_filter_to_nothing_leaves_nothing",
]


class Killed(BaseException):
    """The end of a process."""


class StoreWorld(World):
    """Two shards of ten records, whose output is in a bucket of their own."""

    clock: StoreClock

    def check(self) -> None:
        """Check that every record is in the output once."""
        for shard in ("0", "1"):
            assert self.committed(shard) == self.expected(shard, 10)

    def objects(self) -> set[str]:
        return {entry.path for entry in self.place.entries("attempts") if not entry.folder}

    def named(self) -> set[str]:
        return {f.path for batch in self.store.each_batch(self.key) for f in batch.files}

    def vacuum(self) -> VacuumReport:
        return vacuum(self.store, self.key, self.place, older_than=HOUR)

    def compactor(self, run: str, ended: str = "") -> Compactor:
        return Compactor(
            store=self.store, key=self.key, output_root=self.place, run=run, ended=ended.__eq__
        )

    def compact(self, run: str = "compact-1", ended: str = "") -> None:
        reports = self.compactor(run, ended).compact([ZERO, ONE])
        assert {report.error for report in reports.values()} == {""}

    def replay(self, run: str = "replay-1", ended: str = "") -> None:
        replayer = Replayer(
            stream=self.stream,
            store=self.store,
            output_root=self.place,
            sweeper=self.sweeper,
            run=run,
            ended=ended.__eq__,
        )
        reports = replayer.replay([ZERO, ONE], ALL)
        assert {report.error for report in reports.values()} == {""}


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Generator[StoreWorld]:
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    with store_clock() as clock:
        made = StoreWorld(tmp_path, elsewhere=output_place(f"s3://{new_bucket()}/out"))
        made.clock = clock
        yield made


def killed_at(point: Failpoint, work: Callable[[], object]) -> None:
    """Do some work, and die at a point of it."""

    def reach(reached: str) -> None:
        if reached == point.label:
            raise Killed

    with mock.patch.object(failpoints, "reach", reach), pytest.raises(Killed):
        work()


def test_output_is_committed_read_and_named_by_its_batches(world: StoreWorld) -> None:
    world.consume()
    world.check()
    output = CommittedOutput(world.store, world.key, str(world.place), world.stream.iceberg)
    values = output.dataset(wait=True).to_table().column("value").to_pylist()
    assert values == world.expected("0", 10) + world.expected("1", 10)
    paths = ledger_paths(world.store, world.key, world.place, ONE)
    assert all(path.startswith(f"{world.place}/attempts/") for path in paths)
    numbers = [shard_and_batches(path.rpartition("/")[2]) for path in paths]
    assert numbers == [(ONE, range(n, n + 1)) for n in range(3)]
    assert not [*world.output.parent.rglob("*.parquet")], "nothing is on the disk"


@pytest.mark.parametrize(
    "point",
    [
        Failpoint.AFTER_INTENT,
        Failpoint.AFTER_WRITE,
        Failpoint.BEFORE_COMMIT,
        Failpoint.AFTER_COMMIT,
    ],
)
def test_a_run_that_is_killed_leaves_orphans_at_most(world: StoreWorld, point: Failpoint) -> None:
    killed_at(point, world.consume)
    world.consume("run-2")
    world.check()
    orphans = world.objects() - world.named()
    assert bool(orphans) == (point in (Failpoint.AFTER_WRITE, Failpoint.BEFORE_COMMIT))
    assert world.vacuum().removed == (), "they are young"
    world.clock.pass_by(2 * HOUR)
    assert set(world.vacuum().removed) == orphans
    assert world.objects() == world.named()
    world.check()


@pytest.mark.parametrize("way", ["compact", "replay"])
@pytest.mark.parametrize(
    "point", [Failpoint.AFTER_REWRITE_CLAIM, Failpoint.BEFORE_SWAP, Failpoint.AFTER_SWAP]
)
def test_a_killed_rewrite_is_repeated(world: StoreWorld, way: str, point: Failpoint) -> None:
    world.consume()
    rewrite = getattr(world, way)
    killed_at(point, lambda: rewrite("rewrite-1"))
    world.check()
    rewrite("rewrite-2", "rewrite-1")
    world.check()
    world.clock.pass_by(2 * HOUR)
    world.vacuum()
    assert world.objects() == world.named()
    assert [entry.path for entry in world.place.entries("replaced")] == [], "no note is left"
    world.check()


@pytest.mark.parametrize("way", ["compact", "replay"])
def test_the_age_of_a_replaced_file_counts_from_its_replacement(
    world: StoreWorld, way: str
) -> None:
    """Goal: a reader that listed a file before the swap reads it to its end."""
    world.consume()
    old = world.objects()
    reading = ledger_records(world.store, world.key, world.place)
    rows = [next(reading)]
    world.clock.pass_by(100 * HOUR)
    getattr(world, way)()
    world.clock.pass_by(HOUR / 2)
    report = world.vacuum()
    assert (report.removed, report.committed) == ((), len(world.named()))
    rows += reading
    values = pa.Table.from_batches(rows).column("value").to_pylist()
    assert values == world.expected("0", 10) + world.expected("1", 10)
    world.clock.pass_by(HOUR)
    assert set(world.vacuum().removed) == old
    assert world.objects() == world.named()


def test_vacuum_keeps_files_that_a_swap_replaces_meanwhile(
    world: StoreWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """1. Vacuum lists files. 2. A compaction swaps. 3. No row names the old files, and they look
    new.
    """
    world.consume()
    old = world.objects()
    world.clock.pass_by(100 * HOUR)
    real = world.store.rewrites

    def swapped_meanwhile(key: object) -> object:
        monkeypatch.setattr(world.store, "rewrites", real)
        world.compact()
        return real(world.key)

    monkeypatch.setattr(world.store, "rewrites", swapped_meanwhile)
    assert world.vacuum().removed == ()
    assert old < world.objects()


def test_a_swap_that_cannot_touch_the_replaced_files_is_not_made(
    world: StoreWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.consume()
    before = world.named()

    def away(self: OutputPlace, files: object) -> None:
        raise OSError("the store is away")

    monkeypatch.setattr(type(world.place), "record_replaced", away)
    reports = world.compactor("compact-1").compact([ZERO])
    assert "cannot be marked as such (the store is away)" in reports[ZERO].error
    assert world.named() == before
    world.check()


def test_a_missing_bucket_is_one_sentence(world: StoreWorld) -> None:
    nowhere = output_place("s3://there-is-no-such-bucket/out")
    with pytest.raises(OutputUnwritable, match=r"^[^\n]+NO_SUCH_BUCKET[^\n]+$"):
        touch_replaced(nowhere, [DataFile("attempts/x/0.parquet", 1, 1)])


@pytest.mark.spark
@pytest.mark.parametrize("case", SWEEPS)
def test_arrow_and_dataframe_sweeps_write_into_the_store(
    case: str, connect_session: Any, tmp_path: Path
) -> None:
    place = output_place(f"s3://{new_bucket()}/out")
    getattr(Sweeping(connect_session, tmp_path, place=place), case)()
    assert not (tmp_path / "output").exists()


@pytest.mark.spark
@pytest.mark.parametrize("way", ["arrow", pytest.param("frames", marks=pytest.mark.long)])
def test_an_unavailable_object_store_fails_shards_with_one_sentence(
    way: str, connect_session: Any, tmp_path: Path
) -> None:
    serve()
    place = output_place("s3://there-is-no-such-bucket/out")
    results = Sweeping(connect_session, tmp_path, place=place).run(WAYS[way])
    for error in results.values():
        assert isinstance(error, LeaseholdError)
        assert "NO_SUCH_BUCKET" in str(error)
        assert "\n" not in str(error)


@pytest.mark.spark
def test_spark_reads_the_store_and_writes_hours_into_it(
    world: StoreWorld, connect_session: Any
) -> None:
    """Goal: no client of Spark's own for the store. Method: a column that came later, and hours."""
    world.consume()
    world.sweeper.keeps = lambda rows: rows.append_column("later", pa.array([1] * rows.num_rows))
    for shard in (ZERO, ONE):
        world.append(shard, 2)
    world.consume("run-2")
    output = CommittedOutput(world.store, world.key, str(world.place), world.stream.iceberg)
    frame = output.frame(connect_session, wait=True)
    rows = frame.select("shard_id", "value", "later").collect()
    expected = {*world.expected("0", 12), *world.expected("1", 12)}
    assert (len(rows), {bytes(row.value) for row in rows}) == (24, expected)
    assert [row.later for row in rows].count(None) == 20
    deployment = Deployment(lambda: world.store, (), Timing(), lambda _: world.place)

    def make(run: str) -> list[str]:
        made = build_window(
            deployment,
            world.stream,
            asset="per_shard",
            transform=lambda records: records.groupBy("shard_id").count(),
            start=datetime(2000, 1, 1, tzinfo=UTC),
            end=datetime(2100, 1, 1, tzinfo=UTC),
            run=run,
            spark=cast(Any, SparkDouble(connect_session)),
            even_if_incomplete=True,
        )
        assert made.window.records == 2
        return window_paths(world.store, world.stream, world.place, "per_shard")

    old, new = make("hour-1"), make("hour-2")
    assert set(old).isdisjoint(new)
    counts = [row for path in new for row in read(path)]
    assert sorted(counts) == [("0", 12), ("1", 12)]
    world.clock.pass_by(2 * HOUR)
    assert {f"{world.place}/{path}" for path in world.vacuum().removed} == set(old)


def read(path: str) -> list[tuple[str, int]]:
    with output_place(path).parquet() as file:
        return [(row["shard_id"], row["count"]) for row in file.read().to_pylist()]
