"""Tables that are partitioned and sorted by columns of records, as engines that are not ours read.

Each record is in the partition of its values, engines skip the files of other partitions, and
compaction keeps the partitions and sorts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.table import StaticTable

from dagster_leasehold.assets.output.table.catalogs import OpenTable
from dagster_leasehold.assets.output.table.data_files import ledger_file
from dagster_leasehold.assets.output.table.maintenance import current_entries
from dagster_leasehold.assets.rewriting import compaction
from dagster_leasehold.assets.rewriting.compaction import Compactor, sorted_rows
from dagster_leasehold.assets.rewriting.replay import Replayer
from dagster_leasehold.assets.rewriting.replay_span import ReplaySpan
from dagster_leasehold.assets.table_settings import TableSettings
from dagster_leasehold.lease_store.errors import InvalidSetting
from dagster_leasehold.lease_store.ledger_rows import DataFile
from dagster_leasehold.lease_store.rules.verification import verify
from dagster_leasehold.shard_sources.local_log.format import Record
from tests.failpoints import Failpoint
from tests.table_engines import (
    duckdb_files_read,
    duckdb_query,
    polars_scan,
    pyiceberg_files,
    pyiceberg_rows,
)
from tests.unit.assets.consumption_world import ArrowSweeper, World
from tests.unit.assets.output.table.publishing_world import Publishing
from tests.unit.assets.output.table.test_publisher import Killed, die_at

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
USERS = ("ann", "bob", None, "ümit")
PARTITIONING = ("shard_id", "day(event_time)", "user")


def with_columns(rows: pa.RecordBatch) -> pa.RecordBatch:
    """The rows with a user, a number and a code, which follow from their cursors."""
    cursors = [int(cursor) for cursor in rows.column("cursor").to_pylist()]
    users = pa.array([USERS[each % 4] for each in cursors], pa.string())
    codes = pa.array([f"{each % 3}{each % 2}x" for each in cursors], pa.string())
    rows = rows.append_column("user", users)
    rows = rows.append_column("n", pa.array([97 - each for each in cursors], pa.int64()))
    return rows.append_column("code", codes)


class Scene(Publishing):
    """A stream of two shards with 20 records each, over two days."""

    runs = 0

    def consume(self, records: int = 20) -> None:
        world = self.world
        for shard in world.ids:
            begin = int(world.log.bounds([shard])[shard].end)
            for place in range(begin, begin + records):
                at = NOON + timedelta(hours=place)
                world.log.append(shard, [Record(b"%d" % place, event_time=at)])
        self.runs += 1
        world.consume(f"run-{self.runs}")

    def files(self) -> dict[str, DataFile]:
        """The files of the ledger by name."""
        batches = self.world.store.batches(self.world.key)
        return {file.path.rpartition("/")[2]: file for each in batches for file in each.files}

    def compact(self, **settings: Any) -> None:
        world = self.world
        order = self.settings.sort_order
        compactor = Compactor(
            store=world.store, key=world.key, output_root=world.place, run=f"merge-{self.runs}",
            sort_order=order, **settings,
        )  # fmt: skip
        for report in compactor.compact(world.ids).values():
            assert not report.error, report.error

    def rows(self) -> list[dict[str, Any]]:
        rows = pyiceberg_rows(self.metadata_at())
        return sorted(rows, key=lambda row: (row["shard_id"], int(row["cursor"])))

    def check(self, count: int) -> None:
        """Every engine sees each record once, and each is in the partition of its values."""
        at = self.metadata_at()
        rows = self.rows()
        cursors = [(row["shard_id"], int(row["cursor"])) for row in rows]
        assert cursors == [(shard, each) for shard in "01" for each in range(count)]
        assert verify(self.world.store, self.world.key) == []
        for user in USERS:
            expected = {(s, c) for s, c in cursors if USERS[c % 4] == user}
            where = "user is null" if user is None else f"user = '{user}'"
            assert engines(at, where, user) == dict.fromkeys(engines(at, where, user), expected)
        for entry in StaticTable.from_metadata(at).inspect.files().to_pylist():
            own = pq.read_table(entry["file_path"].removeprefix("file://"))
            assert len(own) == entry["record_count"]


def engines(at: str, where: str, user: str | None) -> dict[str, set[tuple[str, int]]]:
    """The records of one user, as each engine finds them."""
    scanned: Any = StaticTable.from_metadata(at).scan(row_filter=where).to_arrow().to_pylist()
    column = pl.col("user")
    lazy = polars_scan(at).filter(column.is_null() if user is None else column == user)
    return {
        "pyiceberg": {(row["shard_id"], int(row["cursor"])) for row in scanned},
        "duckdb": {(s, int(c)) for s, c in duckdb_query(at, "shard_id, cursor", where)},
        "polars": {(s, int(c)) for s, c in lazy.select("shard_id", "cursor").collect().rows()},
    }


def scene_of(folder: Path, **settings: Any) -> Scene:
    own = TableSettings(**({"partitioning": PARTITIONING} | settings))
    world = World(folder, records=0, records_max=8, declaration={"iceberg": own})
    world.sweeper.keeps = with_columns
    return Scene(folder, own, world=world)


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return scene_of(tmp_path)


def test_each_record_is_in_the_partition_of_its_values(tmp_path: Path) -> None:
    scene = scene_of(tmp_path, partitioning=(*PARTITIONING, "bucket(4, n)", "truncate(2, code)"))
    scene.consume()
    scene.publish()
    scene.check(20)
    spec = scene.metadata().spec()
    assert [field.name for field in spec.fields] == [
        "shard_id",
        "event_time_day",
        "user",
        "n_bucket",
        "code_trunc",
    ]


def test_engines_open_only_the_files_of_the_partition(tmp_path: Path) -> None:
    scene = scene_of(tmp_path, partitioning=("user",))
    scene.consume()
    scene.publish()
    at = scene.metadata_at()
    whole = len(pyiceberg_files(at, "true"))
    assert len(pyiceberg_files(at, "user = 'ann'")) == whole // 4
    assert duckdb_files_read(at, "user = 'ann'") == whole // 4
    assert duckdb_files_read(at, "user = 'nobody'") == 0


def test_compaction_keeps_the_partitions(scene: Scene) -> None:
    scene.consume()
    scene.publish()
    before = Counter((name[0], file.partition) for name, file in scene.files().items())
    scene.compact()
    scene.publish()
    after = Counter((name[0], file.partition) for name, file in scene.files().items())
    assert after.keys() == before.keys()
    assert max(before.values()) > 1 == max(after.values())
    scene.check(20)
    scene.compact()
    assert scene.publish().explanation == "Everything that is committed is published."


def test_compaction_sorts(tmp_path: Path) -> None:
    scene = scene_of(tmp_path, partitioning=("user",), sort_order=("code desc", "n"))
    scene.consume()
    scene.publish()
    assert {file.sorted_by for file in scene.files().values()} == {""}
    scene.compact()
    scene.publish()
    assert {file.sorted_by for file in scene.files().values()} == {"code desc, n"}
    metadata = scene.metadata()
    entries = [
        entry.data_file
        for manifest in metadata.current_snapshot().manifests(scene.publisher().group.io)
        for entry in manifest.fetch_manifest_entry(scene.publisher().group.io)
    ]
    assert {entry.sort_order_id for entry in entries} == {metadata.default_sort_order_id}
    for entry in entries:
        own = pq.read_table(entry.file_path.removeprefix("file://")).to_pylist()
        assert all(
            (one["code"], -one["n"]) >= (other["code"], -other["n"]) for one, other in pairwise(own)
        )
    scene.check(20)
    scene.compact()
    assert scene.publish().explanation == "Everything that is committed is published."


def test_sorting_needs_bounded_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Method: so little memory that each read of a file fills it."""
    monkeypatch.setattr(compaction, "SORTED_BYTES_MAX", 1)
    scene = scene_of(tmp_path, partitioning=("shard_id",), sort_order=("n",))
    scene.consume()
    scene.publish()
    scene.compact()
    scene.publish()
    assert {file.sorted_by for file in scene.files().values()} == {"n"}
    assert len(scene.files()) > 2
    scene.check(20)
    scene.compact()
    assert scene.publish().explanation == "Everything that is committed is published."


def test_another_sort_order_applies_to_later_merges(tmp_path: Path) -> None:
    scene = scene_of(tmp_path, sort_order=("n",))
    scene.consume()
    scene.publish()
    first = scene.metadata().default_sort_order_id
    scene.settings = TableSettings(partitioning=PARTITIONING, sort_order=("code",))
    scene.consume()
    scene.compact()
    scene.publish()
    assert scene.metadata().default_sort_order_id == first + 1
    scene.check(40)


def test_further_partitions_share_one_file(tmp_path: Path) -> None:
    """Goal: records of many values cost a bounded number of files, and stay readable."""
    scene = scene_of(tmp_path, partitioning=("shard_id", "n"), partitions_max=3)
    scene.consume()
    scene.publish()
    batches = scene.world.store.batches(scene.world.key)
    assert max(len(batch.files) for batch in batches) == 4
    assert any(not file.partition for file in scene.files().values())
    scene.check(20)
    scene.compact()
    scene.publish()
    scene.check(20)


def test_a_table_can_be_partitioned_later_and_otherwise(tmp_path: Path) -> None:
    scene = scene_of(tmp_path, partitioning=("shard_id", "day(event_time)"))
    scene.consume()
    scene.publish()
    for number, partitioning in enumerate((("user",), ("bucket(2, user)", "shard_id"), ()), 2):
        scene.settings = TableSettings(partitioning=partitioning)
        scene.world.sweeper.partitioning = scene.settings.divided_by
        scene.consume()
        scene.publish()
        scene.check(20 * number)
    scene.compact()
    scene.publish()
    scene.check(80)


def test_a_column_that_comes_later_is_null_before(tmp_path: Path) -> None:
    scene = scene_of(tmp_path, partitioning=("shard_id", "user"))
    scene.world.sweeper.keeps = lambda rows: with_columns(rows).drop_columns(["user"])
    scene.consume()
    scene.publish()
    assert {file.partition for file in scene.files().values()} == {(("user", None),)}
    scene.world.sweeper.keeps = with_columns
    scene.consume()
    scene.publish()
    rows = scene.rows()
    assert [row["user"] for row in rows[:20]] == [None] * 20
    assert duckdb_query(scene.metadata_at(), "count(*)", "user = 'ann'") == [(10,)]


def test_a_replay_divides_its_output(scene: Scene) -> None:
    scene.consume()
    scene.publish()
    world = scene.world
    sweeper = ArrowSweeper(world.log, world.place)
    sweeper.partitioning, sweeper.keeps = scene.settings.divided_by, with_columns
    Replayer(
        stream=world.stream, store=world.store, output_root=world.place, sweeper=sweeper,
        run="replay", ended=lambda _: False,
    ).replay(world.ids, ReplaySpan())  # fmt: skip
    scene.publish()
    scene.check(20)


@pytest.mark.parametrize(
    "point", [Failpoint.AFTER_STAGE, Failpoint.BEFORE_PUBLISH, Failpoint.AFTER_PUBLISH]
)
def test_a_publisher_of_partitions_can_be_killed(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, point: Failpoint
) -> None:
    scene.consume()
    scene.publish()
    scene.compact()
    with monkeypatch.context() as patched:
        die_at(point, patched)
        with pytest.raises(Killed):
            scene.publish()
    scene.publish()
    scene.check(20)


def test_a_table_adopts_files_with_their_partitions(scene: Scene) -> None:
    """Method: the table loses its metadata, and is recreated from the ledger."""
    scene.consume()
    scene.publish()
    scene.compact()
    scene.publish()
    for path in (scene.world.output / "metadata").iterdir():
        path.unlink()
    lock: Any = scene.lock()
    scene.publisher().adopt(lock)
    scene.check(20)


def test_a_restored_ledger_learns_partitions_and_order_from_the_table(tmp_path: Path) -> None:
    columns = ("user", "bucket(4, n)", "day(event_time)")
    scene = scene_of(tmp_path, partitioning=("shard_id", *columns), sort_order=("n desc",))
    for compacts in (False, True):
        scene.consume()
        if compacts:
            scene.compact()
        scene.publish()
        files = {file.path: file for file in scene.files().values()}
        metadata, io = scene.metadata(), scene.publisher().group.io
        for entry in current_entries(io, OpenTable(metadata, "")):
            _, file = ledger_file(metadata, metadata.location, entry)
            own = files.pop(file.path)
            assert (dict(file.partition), file.sorted_by) == (dict(own.partition), own.sorted_by)
        assert not files


def test_nulls_and_nans_have_the_places_of_iceberg() -> None:
    values = [2.0, None, float("nan"), 1.0]
    rows = pa.table({"x": pa.array(values), "place": pa.array(range(4))})

    def places(order: str) -> Mapping[str, Any]:
        return sorted_rows(rows, [order]).column("place").to_pylist()

    assert places("x") == [1, 3, 0, 2]
    assert places("x asc") == [1, 3, 0, 2]
    assert places("x desc") == [2, 0, 3, 1]
    assert places("missing") == [0, 1, 2, 3]


def test_wrong_settings_are_refused() -> None:
    for values, sentence in (
        ({"partitioning": ("minute(at)",)}, "partitioning 'minute.at.' is not valid"),
        ({"partitioning": ("user", "user")}, "names a field twice"),
        ({"partitions_max": 0}, "partitions_max is 0"),
    ):
        with pytest.raises(InvalidSetting, match=sentence):
            TableSettings(**values)  # type: ignore[arg-type]
