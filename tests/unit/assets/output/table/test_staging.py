"""Staged snapshots, read by PyIceberg, DuckDB and Polars; growing metadata is merged and
expires.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import polars as pl
import pyarrow as pa
import pytest
from pyiceberg.manifest import ManifestFile
from pyiceberg.table import StaticTable

from dagster_leasehold.assets.output.table import manifests, staging
from dagster_leasehold.assets.output.table.manifests import Manifests
from dagster_leasehold.assets.output.table.publication import Operation
from dagster_leasehold.assets.output.table.schemas import shard_index
from dagster_leasehold.lease_store.identifiers import ShardId
from dagster_leasehold.lease_store.ledger_rows import DataFile
from tests.table_engines import (
    duckdb_files_read,
    duckdb_query,
    polars_scan,
    pyiceberg_files,
    pyiceberg_rows,
)
from tests.unit.assets.output.table.table_world import NEW_YEAR, SCHEMA, TableWorld

HOUR, DAY = timedelta(hours=1), timedelta(days=1)
APPEND, REPLACE, OVERWRITE, DELETE = (
    Operation.APPEND,
    Operation.REPLACE,
    Operation.OVERWRITE,
    Operation.DELETE,
)


@pytest.fixture
def world(tmp_path: Path) -> TableWorld:
    return TableWorld(tmp_path)


@pytest.fixture
def mixed(world: TableWorld) -> str:
    """A table of a file in one day, one across midnight, one with a record without a time."""
    one_day = world.file("s0", [NEW_YEAR + HOUR * at for at in range(5)])
    midnight = world.file("s1", [NEW_YEAR + HOUR * (20 + at) for at in range(8)])
    untimed = world.file("s2", [NEW_YEAR + DAY * 3, None])
    world.change(APPEND, [one_day, midnight, untimed])
    return world.write()


@pytest.mark.parametrize(
    ("where", "names", "records"),
    [
        ("event_time < '2026-01-01T10:00:00+00:00'", ["0.parquet"], 5),
        ("event_time >= '2026-01-02T00:00:00+00:00'", ["1.parquet", "2.parquet"], 5),
        ("event_time >= '2026-01-04T00:00:00+00:00'", ["2.parquet"], 1),
        ("event_time is null", ["2.parquet"], 1),
        ("shard_id = 's1'", ["1.parquet"], 8),
    ],
)
def test_plans_read_the_files_that_can_hold_the_records(
    mixed: str, where: str, names: list[str], records: int
) -> None:
    """Goal: two specs in one table, and no engine reads too little or much too much."""
    assert pyiceberg_files(mixed, where) == names
    assert duckdb_query(mixed, "count(*)", where) == [(records,)]
    assert duckdb_files_read(mixed, where) == len(names)


def test_polars_reads_two_specs_in_one_table(mixed: str) -> None:
    frame = polars_scan(mixed)
    assert frame.select(pl.len()).collect().item() == 15
    assert frame.filter(pl.col("event_time") >= NEW_YEAR + DAY).collect().height == 5
    assert frame.filter(pl.col("event_time").is_null()).collect().height == 1


def test_a_file_of_one_day_is_in_a_day_partition_and_others_in_a_shard_partition(
    world: TableWorld, mixed: str
) -> None:
    current = world.metadata.current_snapshot()
    assert current is not None
    entries = [
        (each.partition_spec_id, [str(entry.data_file.partition) for entry in live])
        for each in current.manifests(world.io)
        if (live := each.fetch_manifest_entry(world.io))
    ]
    assert entries == [(1, ["Record[s0, 20454]"]), (2, ["Record[s1]", "Record[s2]"])]
    assert world.metadata.default_spec_id == 1


def test_later_and_wider_columns_are_read_with_older_files(world: TableWorld) -> None:
    world.change(APPEND, [world.file("s", [NEW_YEAR] * 3)])
    wider = [
        pa.field("n", pa.int64()) if field.name == "n" else field
        for field in SCHEMA
        if field.name != "local"
    ]
    nested = pa.struct([("a", pa.int64()), ("b", pa.float32())])
    later = pa.schema([*wider[:4], pa.field("nested", nested), pa.field("extra", pa.float64())])
    values = {"nested": [{"a": 2**40, "b": 0.5}] * 2, "extra": [1.5, None]}
    world.change(APPEND, [world.file("s", [NEW_YEAR + DAY] * 2, later, **values)])
    path = world.write()
    expected = (5, 15, 1, 2 * 2**40 + 3, 2)
    select = "count(*), sum(n), count(extra), sum(nested.a), count(nested.b)"
    assert [tuple(map(int, row)) for row in duckdb_query(path, select)] == [expected]
    rows = pyiceberg_rows(path)
    assert sorted(row["n"] for row in rows) == [1, 2, 3, *sorted(row["n"] for row in rows)[3:]]
    assert sum(row["nested"]["a"] for row in rows) == expected[3]
    assert [row["local"] is None for row in rows].count(True) == 2
    frame = polars_scan(path).collect()
    assert frame["nested"].struct.field("a").sum() == expected[3]
    ids = {field.name: field.field_id for field in world.metadata.schema().fields}
    assert ids["n"] == 3
    assert ids["extra"] > max(number for name, number in ids.items() if name != "extra")


def test_earlier_snapshots_show_their_records(world: TableWorld) -> None:
    """Method: append, replace (compaction), overwrite (replay) and delete (expiry), one by one."""
    old = [world.file("s", [NEW_YEAR + HOUR * at]) for at in range(3)]
    merged = world.file("s", [NEW_YEAR + HOUR * at for at in range(2)])
    again = world.file("s", [NEW_YEAR + HOUR * 2])
    never = world.file("s", [NEW_YEAR])
    world.change(APPEND, old)
    world.change(REPLACE, [merged], old[:2])
    world.change(OVERWRITE, [again], [old[2], never])
    world.change(DELETE, [], [merged])
    path = world.write()
    numbers = [
        sorted(row["n"] for row in pyiceberg_rows(path, snapshot.snapshot_id))
        for snapshot in world.metadata.snapshots
    ]
    assert numbers == [[1, 2, 3], [3, 4, 5], [4, 5, 6], [6]]
    totals = [each.summary and each.summary["total-records"] for each in world.metadata.snapshots]
    assert totals == ["3", "3", "3", "1"]
    summary = world.metadata.snapshots[1].summary
    assert summary is not None
    assert summary.operation.value == "replace"
    assert summary["deleted-data-files"] == "2"
    assert summary["leasehold.publication"] == "p"


def test_no_snapshot_is_made_without_a_change(world: TableWorld) -> None:
    never = world.file("s", [NEW_YEAR])
    world.change(DELETE, [], [never])
    assert world.metadata.current_snapshot() is None


def test_manifests_stay_few_and_old_snapshots_expire(
    world: TableWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Goal: the metadata after many publications is as small as after few, and nothing is lost."""
    monkeypatch.setattr(manifests, "FILES_MAX", 32)
    files = [world.file("s", [NEW_YEAR + HOUR * at]) for at in range(90)]
    for file in files:
        world.change(APPEND, [file], keep=5)
    path = world.write()
    current = world.metadata.current_snapshot()
    assert current is not None
    # 3 of each of four levels, in each spec, and those with 16 files and more.
    assert len(current.manifests(world.io)) <= 2 * 3 * 3 + 90 // 16
    assert len(world.metadata.snapshots) == len(world.metadata.snapshot_log) == 5
    assert sorted(row[0] for row in duckdb_query(path, "n")) == list(range(1, 91))
    # Files in merged manifests are found, too.
    world.change(DELETE, [], files[:80], keep=5)
    assert sorted(row[0] for row in duckdb_query(world.write(), "n")) == list(range(81, 91))


def noted(world: TableWorld, count: int) -> list[tuple[ShardId, DataFile]]:
    """Files of one record each, one of each of so many shards; the files are not there."""
    files = [world.file("s", [NEW_YEAR])[1]] if count else []
    return [
        (ShardId(f"shard-{at:03}"), replace(file, path=f"{uuid4().hex}.parquet"))
        for file in files
        for at in range(count)
    ]


def entries_for(world: TableWorld, shard: str) -> tuple[int, int]:
    """The entries and manifests that a plan for one shard has to read, by the manifest list."""
    current = world.metadata.current_snapshot()
    assert current is not None
    entries = opened = 0
    for each in current.manifests(world.io):
        place = shard_index(world.metadata, each.partition_spec_id)
        bounds = each.partitions[place] if place is not None and each.partitions else None
        if bounds is None or bounds.lower_bound <= shard.encode() <= bounds.upper_bound:
            entries += len(each.fetch_manifest_entry(world.io))
            opened += 1
    return entries, opened


@pytest.fixture
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Merges of a size that a test can make many of."""
    monkeypatch.setattr(manifests, "PIECE_MIN", 8)
    monkeypatch.setattr(manifests, "FILES_MAX", 64)


@pytest.mark.usefixtures("small_pieces")
def test_merges_keep_the_files_of_a_shard_together(world: TableWorld) -> None:
    """Goal: a plan for one shard reads about its own entries, however many shards there are."""
    published = 0
    for _ in range(64):
        files = noted(world, 32)
        published += len(files)
        world.change(APPEND, files, keep=2)
    current = world.metadata.current_snapshot()
    assert current is not None
    listed = current.manifests(world.io)
    live = (entry for each in listed for entry in each.fetch_manifest_entry(world.io))
    paths = [entry.data_file.file_path for entry in live]
    assert len(paths) == len(set(paths)) == published == 64 * 32
    assert len(listed) < published // 8
    for shard in ("shard-000", "shard-013", "shard-031"):
        entries, opened = entries_for(world, shard)
        assert entries < 64 + 3 * 32 + 3 * 4 * 8
        assert opened <= 3 * 5
    assert pyiceberg_files(world.write(), "shard_id = 'shard-013'").__len__() == 64


@pytest.mark.usefixtures("small_pieces")
def test_no_publication_writes_many_entries(
    world: TableWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(manifests, "MERGED_MAX", 128)
    entries: list[int] = []
    write = Manifests._write

    def counted(self: Manifests, spec: int, level: int, members: Any) -> Any:
        listed = list(members)
        entries[-1] += len(listed)
        return write(self, spec, level, listed)

    monkeypatch.setattr(Manifests, "_write", counted)
    for _ in range(80):
        entries.append(0)
        world.change(APPEND, noted(world, 32), keep=2)
    assert max(entries) <= 32 + 4 * 64
    assert sum(entries) <= len(entries) * 32 * 6


@pytest.mark.usefixtures("small_pieces")
def test_a_file_of_one_shard_is_removed_without_reading_all_manifests(
    world: TableWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    published = [noted(world, 32) for _ in range(64)]
    for files in published:
        world.change(APPEND, files, keep=2)
    current = world.metadata.current_snapshot()
    assert current is not None
    every = len(current.manifests(world.io))
    read: list[str] = []
    fetch = ManifestFile.fetch_manifest_entry

    def counted(self: ManifestFile, *arguments: Any, **named: Any) -> Any:
        read.append(self.manifest_path)
        return fetch(self, *arguments, **named)

    monkeypatch.setattr(ManifestFile, "fetch_manifest_entry", counted)
    unknown = (ShardId("shard-013"), replace(published[0][13][1], path="never.parquet"))
    world.change(DELETE, [], [published[0][13], published[40][13], unknown], keep=2)
    merged = manifests.OVERLAP_MAX * 4
    assert len(set(read)) <= 3 * 5 + merged < every
    monkeypatch.undo()
    assert len(pyiceberg_files(world.write(), "shard_id = 'shard-013'")) == 62


@pytest.mark.parametrize("before", [(), ("day(event_time)",), ("hour(event_time)",)])
def test_a_table_of_an_earlier_release_is_updated(
    world: TableWorld, before: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Goal: its files are found by their shard as well, and by any engine; none is rewritten."""
    monkeypatch.setattr(manifests, "MERGED_MAX", 4)
    for at in range(12):
        files = [
            world.file(f"s{shard}", [NEW_YEAR + HOUR * 3 * at + HOUR * shard, last])
            for shard, last in enumerate([NEW_YEAR + HOUR * 3 * at, NEW_YEAR + DAY * at, None])
        ]
        world.change(APPEND, files, partitioning=before)
    specs = len(world.metadata.partition_specs)
    for _ in range(24):
        world.change(APPEND, [world.file("s0", [NEW_YEAR])])
    path = world.write()
    assert 1 < specs + 1 <= len(world.metadata.partition_specs) <= specs + 2
    assert [field.name for field in world.metadata.spec().fields] == ["shard_id", "event_time_day"]
    current = world.metadata.current_snapshot()
    assert current is not None
    for each in current.manifests(world.io):
        assert shard_index(world.metadata, each.partition_spec_id) == 0
    assert duckdb_query(path, "count(*), count(distinct n)") == [(72 + 24, 72 + 24)]
    assert duckdb_query(path, "count(*)", "shard_id = 's1'") == [(24,)]
    assert duckdb_files_read(path, "shard_id = 's1'") == 12
    where = "shard_id = 's2' and event_time < '2026-01-01T05:00:00+00:00'"
    assert pyiceberg_files(path, where) == ["2.parquet"]
    assert duckdb_query(path, "count(*)", where) == [(1,)]
    assert polars_scan(path).filter(pl.col("shard_id") == "s2").collect().height == 24
    assert len(pyiceberg_rows(path)) == 96


def test_a_partition_spec_of_another_writer_stays_and_is_not_used(world: TableWorld) -> None:
    from pyiceberg.partitioning import PartitionField, PartitionSpec
    from pyiceberg.table.update import (
        AddPartitionSpecUpdate,
        SetDefaultSpecUpdate,
        update_table_metadata,
    )
    from pyiceberg.transforms import IdentityTransform

    world.change(APPEND, [world.file("s0", [NEW_YEAR])])
    source = world.metadata.schema().find_field("n").field_id
    theirs = PartitionSpec(PartitionField(source, 1_100, IdentityTransform(), "n"), spec_id=9)
    updates = (
        staging.model_of(AddPartitionSpecUpdate, spec=theirs),
        staging.model_of(SetDefaultSpecUpdate, spec_id=9),
    )
    world.metadata = update_table_metadata(world.metadata, updates)
    world.change(APPEND, [world.file("s0", [NEW_YEAR]), world.file("s1", [None])])
    assert world.metadata.default_spec_id == 9
    path = world.write()
    assert duckdb_query(path, "count(*)", "shard_id = 's0'") == [(2,)]
    assert pyiceberg_files(path, "shard_id = 's1'") == ["2.parquet"]
    specs = StaticTable.from_metadata(path).inspect.files()["spec_id"].to_pylist()
    assert 9 not in specs


def test_the_entries_of_a_manifest_are_compressed_together(world: TableWorld) -> None:
    """Goal: planning a scan reads few bytes for each file of the table."""
    shard, file = world.file("s", [NEW_YEAR])
    paths = (f"attempts/2026-01-01/run-{number}/s.parquet" for number in range(1_000))
    world.change(APPEND, [(shard, replace(file, path=path)) for path in paths])
    current = world.metadata.current_snapshot()
    assert current is not None
    (manifest,) = current.manifests(world.io)
    assert len(manifest.fetch_manifest_entry(world.io)) == 1_000
    assert manifest.manifest_length < 40 * 1_000


def test_few_snapshots_expire_at_once_and_tagged_ones_never(world: TableWorld) -> None:
    from pyiceberg.table.refs import SnapshotRef, SnapshotRefType

    for _ in range(staging.EXPIRED_AT_ONCE + 5):
        world.change(APPEND, [world.file("s", [NEW_YEAR])])
    oldest = world.metadata.snapshots[0].snapshot_id
    world.metadata.refs["kept"] = SnapshotRef(
        snapshot_id=oldest, snapshot_ref_type=SnapshotRefType.TAG
    )
    world.change(APPEND, [world.file("s", [NEW_YEAR])], keep=2)
    left = [each.snapshot_id for each in world.metadata.snapshots]
    assert len(left) == 6
    assert left[0] == oldest


def test_without_an_event_time_files_are_partitioned_by_shard(tmp_path: Path) -> None:
    world = TableWorld(tmp_path, pa.schema([("shard_id", pa.string()), ("n", pa.int32())]))
    schema = pa.schema([("shard_id", pa.string()), ("n", pa.int32())])
    world.change(APPEND, [world.file("s", [None, None], schema)])
    assert [field.name for field in world.metadata.spec().fields] == ["shard_id"]
    assert duckdb_query(world.write(), "sum(n)") == [(3,)]


@pytest.mark.parametrize(
    "partitioning", [("shard_id",), ("hour(event_time)", "shard_id"), ("day(event_time)",), ()]
)
def test_other_partitionings_are_read(world: TableWorld, partitioning: tuple[str, ...]) -> None:
    files = [
        world.file("s0", [NEW_YEAR]),
        world.file("s1", [NEW_YEAR, NEW_YEAR + HOUR]),
        world.file("s0", [NEW_YEAR + HOUR]),
    ]
    world.change(APPEND, files, partitioning=partitioning)
    path = world.write()
    assert duckdb_query(path, "sum(n)", "shard_id = 's0'") == [(5,)]
    assert pyiceberg_files(path, "shard_id = 's1'") == ["1.parquet"]
