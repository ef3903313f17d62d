"""Every snapshot says what it contains, and each record leads to its batch, file and snapshot."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.table import StaticTable

from dagster_leasehold.assets.errors import OutputUnreadable
from dagster_leasehold.assets.output.table import snapshot_contents
from dagster_leasehold.assets.output.table.snapshot_contents import SnapshotContents
from dagster_leasehold.assets.output.table.whereabouts import Whereabouts
from dagster_leasehold.assets.rewriting.compaction import Compactor
from dagster_leasehold.assets.shard_stream import WatermarkOf
from dagster_leasehold.assets.table_settings import CatalogSettings, TableSettings
from dagster_leasehold.lease_store.errors import SourceUnavailable
from dagster_leasehold.lease_store.group_rows import GapPolicy
from dagster_leasehold.lease_store.identifiers import ShardId
from dagster_leasehold.lease_store.publication_rows import PublishLock
from dagster_leasehold.shard_sources.local_log.format import Record
from tests.failpoints import Failpoint
from tests.unit.assets.consumption_world import World
from tests.unit.assets.output.table.publishing_world import Publishing
from tests.unit.assets.output.table.test_publisher import Killed, die_at

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
ZERO, ONE = ShardId("0"), ShardId("1")


class Scene(Publishing):
    """A stream whose records have event times in minutes after noon."""

    runs = 0

    @property
    def lookup(self) -> Whereabouts:
        world = self.world
        return Whereabouts(world.store, world.key, world.place, self.catalog)

    def append(self, shard: str, *minutes: int) -> None:
        times = [NOON + timedelta(minutes=each) for each in minutes]
        for place, at in enumerate(times):
            self.world.log.append(shard, [Record(b"%d" % place, event_time=at)])

    def consume(self) -> None:
        self.runs += 1
        self.world.sync()
        self.world.consume(f"run-{self.runs}")

    def show(self) -> SnapshotContents:
        """Consume and publish; what the newest snapshot says."""
        self.consume()
        self.publish()
        return self.lookup.contents()

    def minutes(self) -> float | None:
        """The minutes after noon up to which the newest snapshot is complete."""
        until = self.show().complete_until
        return None if until is None else (until - NOON) / timedelta(minutes=1)


def scene_of(folder: Path, settings: TableSettings | None = None, **declaration: Any) -> Scene:
    world = World(folder, records=0, records_max=2, declaration=declaration)
    return Scene(folder, settings or TableSettings(), world=world)


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return scene_of(tmp_path)


def test_a_snapshot_names_its_cursors_its_event_time_and_its_publication(scene: Scene) -> None:
    scene.append("0", 1, 2, 3)
    scene.append("1", 5)
    contents = scene.show()
    assert contents.cursors == {ZERO: "3", ONE: "1"}
    assert contents.complete_until == NOON + timedelta(minutes=3)
    own = scene.world.store.publication(scene.world.key)
    assert own is not None
    assert (contents.publication, contents.snapshot_id) == (own.last, own.snapshot)
    summary = scene.metadata().current_snapshot().summary
    assert summary["leasehold.cursors"] == '{"0":"3","1":"1"}'
    assert summary["leasehold.complete-until"] == "2026-03-01T12:03:00.000000+00:00"


def test_another_catalog_has_it_too(tmp_path: Path) -> None:
    properties = {"type": "sql", "uri": f"sqlite:///{tmp_path}/lake.db", "warehouse": "none"}
    world = World(tmp_path, records=0)
    scene = Scene(tmp_path, catalog=CatalogSettings("lake", properties), world=world)
    scene.append("0", 10)
    scene.append("1", 5)
    scene.show()
    scene.append("1", 7)
    contents = scene.show()
    assert contents.cursors == {ZERO: "1", ONE: "2"}
    assert contents.complete_until == NOON + timedelta(minutes=7)
    assert len(list(scene.world.output.glob("metadata/*.shards.json.gz"))) == 1


def test_other_engines_read_it_from_the_summary(scene: Scene) -> None:
    scene.append("0", 1)
    scene.show()
    table: Any = StaticTable.from_metadata(scene.metadata_at())
    (row,) = table.inspect.snapshots().to_pylist()
    assert dict(row["summary"])["leasehold.cursors"] == '{"0":"1"}'


def test_an_idle_shard_holds_the_event_time_back_unless_the_table_says_otherwise(
    tmp_path: Path,
) -> None:
    for idle_after_s, expected in ((None, 1), (300.0, 30)):
        scene = scene_of(tmp_path / str(idle_after_s), TableSettings(idle_after_s=idle_after_s))
        scene.append("0", 10, 20)
        scene.append("1", 1)
        assert scene.minutes() == 1
        scene.now_s += 200
        scene.append("0", 25)
        assert scene.minutes() == 1
        scene.now_s += 400
        scene.append("0", 30)
        assert scene.minutes() == expected


def test_records_can_be_out_of_order(tmp_path: Path) -> None:
    scene = scene_of(tmp_path, TableSettings(out_of_order_s=120))
    scene.append("0", 10)
    scene.append("1", 12)
    assert scene.minutes() == 8


def test_the_transform_can_determine_the_watermark(tmp_path: Path) -> None:
    scene = scene_of(tmp_path, watermark_of=WatermarkOf.OUTPUT)
    scene.world.sweeper.keeps = lambda rows: rows.slice(0, 1)
    scene.append("0", 10, 20)
    scene.append("1", 12)
    assert scene.minutes() == 10


def test_the_children_of_a_split_hold_the_event_time_back(scene: Scene) -> None:
    """A child is not listed, then without output, and its parent is finished meanwhile."""
    scene.append("0", 10)
    scene.append("1", 50)
    assert scene.minutes() == 10
    two, three = scene.world.log.split("0")
    scene.world.append(ONE, 0)
    scene.append("1", 51)
    scene.world.consume("before")
    scene.publish()
    assert scene.lookup.contents().complete_until is None, "the children are not listed yet"
    assert scene.minutes() is None, "the children have no output"
    scene.append(two, 30)
    assert scene.minutes() is None
    scene.append(three, 20)
    assert scene.minutes() == 20


def test_when_all_shards_are_finished_nothing_is_open(tmp_path: Path) -> None:
    scene = scene_of(tmp_path)
    scene.append("0", 10)
    scene.append("1", 50)
    scene.show()
    child = scene.world.log.merge("0", "1")
    scene.append(child, 70)
    scene.consume()
    assert scene.minutes() == 70


def test_a_gap_holds_the_event_time_until_it_is_accepted(tmp_path: Path) -> None:
    scene = scene_of(tmp_path, gap_policy=GapPolicy.BEGIN)
    scene.append("0", 10)
    scene.append("1", 50)
    assert scene.minutes() == 10
    scene.append("0", 20, 21, 22)
    scene.world.log.retain("0", "3")
    assert scene.minutes() == 10
    (gap,) = scene.world.store.gaps(scene.world.key)
    assert scene.lookup.contents().cursors[ZERO] == "4", "the records behind it are published"
    scene.world.store.acknowledge_gap(scene.world.key, gap, observer="test")
    scene.append("0", 23)
    assert scene.minutes() == 23


def test_a_withdrawal_takes_cursors_and_event_time_back(scene: Scene) -> None:
    scene.append("0", 10, 20, 30, 40)
    scene.append("1", 50)
    assert scene.minutes() == 40
    world = scene.world
    world.store.force_checkpoint(world.key, ZERO, "2", observer="test", reason="test")
    scene.publish()
    contents = scene.lookup.contents()
    assert contents.cursors == {ZERO: "2", ONE: "1"}
    assert contents.complete_until == NOON + timedelta(minutes=20)
    assert scene.minutes() == 40


def test_each_snapshot_of_one_publication_says_its_own(scene: Scene) -> None:
    """Withdrawn batches and the batches that replace them are published together."""
    scene.append("0", 10, 20, 30, 40)
    scene.append("1", 50)
    first = scene.show()
    world = scene.world
    world.store.force_checkpoint(world.key, ZERO, "2", observer="test", reason="test")
    scene.append("0", 60)
    last = scene.show()
    line = [scene.lookup.contents(each.snapshot_id) for each in scene.metadata().snapshots]
    assert [each.cursors[ZERO] for each in line] == ["4", "2", "5"]
    assert line[0] == first
    assert line[-1] == last
    assert line[1].complete_until == NOON + timedelta(minutes=20)
    assert line[1].publication == line[2].publication


def test_a_backlog_is_not_claimed(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: what the ledger has and the snapshot lacks counts for nothing."""
    scene.append("0", *range(10, 30))
    scene.append("1", 50)
    scene.consume()
    seen, store = scene.shard_times.read(), scene.world.store
    lock = scene.lock()
    assert isinstance(lock, PublishLock)
    whole = store.unpublished
    monkeypatch.setattr(store, "unpublished", lambda key: whole(key, limit=4))
    report = scene.publisher().publish(lock, seen)
    assert report.more
    contents = scene.lookup.contents()
    end = int(contents.cursors[ZERO])
    assert end < 20
    assert contents.complete_until == NOON + timedelta(minutes=9 + end)


def test_a_source_that_does_not_answer_leaves_the_event_time(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene.append("0", 10)
    scene.append("1", 50)
    assert scene.minutes() == 10
    scene.append("0", 20)
    scene.consume()

    def away() -> Any:
        raise SourceUnavailable("it is away")

    with monkeypatch.context() as patched:
        patched.setattr(scene.shard_times.stream.source, "list_shards", away)
        scene.publish()
    assert scene.lookup.contents().complete_until == NOON + timedelta(minutes=10)
    scene.append("0", 30)
    scene.now_s += 60
    assert scene.minutes() == 30


@pytest.mark.parametrize(
    "point", [Failpoint.AFTER_STAGE, Failpoint.BEFORE_PUBLISH, Failpoint.AFTER_PUBLISH]
)
def test_a_killed_publisher_leaves_no_wrong_claim(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, point: Failpoint
) -> None:
    scene.append("0", 10)
    scene.append("1", 50)
    scene.show()
    scene.append("0", 20)
    scene.consume()
    with monkeypatch.context() as patched:
        die_at(point, patched)
        with pytest.raises(Killed):
            scene.publish()
    scene.append("0", 30)
    contents = scene.show()
    assert contents.cursors == {ZERO: "3", ONE: "1"}
    assert contents.complete_until == NOON + timedelta(minutes=30)


def test_the_cursors_of_many_shards_are_in_a_file_that_stays_with_its_snapshots(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshot_contents, "SHARDS_IN_SUMMARY_MAX", 1)
    scene.settings = TableSettings(snapshots_kept=2)
    for minute in range(4):
        scene.append("0", minute)
        scene.append("1", minute)
        scene.show()
    snapshots = scene.metadata().snapshots
    assert len(snapshots) == 2
    files = {each.summary["leasehold.cursors-file"] for each in snapshots}
    assert all(each.summary.get("leasehold.cursors") is None for each in snapshots)
    assert [scene.lookup.contents(each.snapshot_id).cursors[ZERO] for each in snapshots] == [
        "3",
        "4",
    ]
    lock = scene.lock()
    assert isinstance(lock, PublishLock)
    scene.publisher().remove_orphans(lock, older_than=timedelta(seconds=-1))
    there = {f"file://{path}" for path in scene.world.output.glob("metadata/*.shards.json.gz")}
    assert there == files


def test_a_record_leads_to_its_batch_run_file_and_snapshot(scene: Scene) -> None:
    scene.append("0", 1, 2, 3)
    first = scene.show()
    scene.append("0", 4, 5)
    second = scene.show()
    record = scene.lookup.record(ZERO, "1")
    assert (record.batch, record.start, record.end, record.run) == (0, "0", "2", "run-1")
    assert record.snapshot_id == first.snapshot_id
    assert record.publication == first.publication
    record = scene.lookup.record(ZERO, "4")
    assert (record.batch, record.snapshot_id) == (2, second.snapshot_id)
    world = scene.world
    Compactor(store=world.store, key=world.key, output_root=world.place, run="merge").compact(
        world.ids
    )
    scene.publish()
    record = scene.lookup.record(ZERO, "4")
    assert record.snapshot_id == second.snapshot_id, "compaction changes no record"
    assert "merged" in record.files[0]


def test_of_several_files_the_one_with_the_record_is_named(scene: Scene) -> None:
    scene.world.sweeper.refuses = lambda value: value == b"1"
    scene.append("0", 1, 2)
    scene.show()
    assert [".quarantine." in each for each in scene.lookup.record(ZERO, "0").files] == [False]
    assert [".quarantine." in each for each in scene.lookup.record(ZERO, "1").files] == [True]


def not_read(scene: Scene) -> str:
    return "9"


def removed(scene: Scene) -> str:
    scene.append("0", 2, 3, 4)
    scene.world.log.retain("0", "3")
    scene.consume()
    return "2"


def moved_over(scene: Scene) -> str:
    scene.append("0", 2, 3, 4)
    world = scene.world
    world.store.force_checkpoint(world.key, ZERO, "3", observer="test", reason="test")
    world.sync()
    scene.consume()
    return "2"


@pytest.mark.parametrize(
    ("prepare", "sentence"),
    [
        (not_read, "not committed yet"),
        (removed, "the source had removed 1 to 3"),
        (moved_over, "a forced checkpoint skipped it"),
        (lambda _: "some", "is not a cursor"),
    ],
)
def test_a_record_that_is_not_there_is_explained(
    tmp_path: Path, prepare: Callable[[Scene], str], sentence: str
) -> None:
    scene = scene_of(tmp_path, gap_policy=GapPolicy.BEGIN)
    scene.append("0", 1)
    scene.show()
    with pytest.raises(OutputUnreadable, match=sentence):
        scene.lookup.record(ZERO, prepare(scene))


def test_a_record_that_waits_for_publication_has_no_snapshot(scene: Scene) -> None:
    scene.append("0", 1)
    scene.consume()
    assert scene.lookup.record(ZERO, "0").snapshot_id is None
    with pytest.raises(OutputUnreadable, match="has no snapshot that"):
        scene.lookup.contents()
    scene.show()
    with pytest.raises(OutputUnreadable, match="has no snapshot 7 that"):
        scene.lookup.contents(7)
