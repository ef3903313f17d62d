"""Tasks of the Arrow way, carried out here: each range is made, or fails, by itself."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark import cloudpickle  # noqa: TID253

from dagster_leasehold.assets.arrow_transform import arrow_transform, name_of
from dagster_leasehold.assets.consuming import exact_records, range_tasks
from dagster_leasehold.assets.consuming.range_rows import RangeRow
from dagster_leasehold.assets.consuming.range_tasks import RangeTasks
from dagster_leasehold.assets.output.worker_results import error_of
from dagster_leasehold.assets.partition_fields import UNDIVIDED, Partitioning
from dagster_leasehold.assets.places import local_place as local_module
from dagster_leasehold.assets.places.local_place import LocalPlace, local_place
from dagster_leasehold.assets.table_settings import TableSettings
from dagster_leasehold.lease_store.identifiers import ShardId
from dagster_leasehold.shard_sources.local_log import LocalLog, Record
from dagster_leasehold.shard_sources.local_log import format as local_log_format
from dagster_leasehold.shard_sources.source import ReadRange, record_schema
from tests.synced import synced

RECORDS = 40


class Scene:
    """A log of three shards, and tasks over them."""

    def __init__(self, folder: Path) -> None:
        self.log = LocalLog.create(folder / "log", 3)
        self.shards = [listing.shard for listing in self.log.list_shards()]
        for shard in self.shards:
            self.log.append(shard, [b"%s:%d" % (shard.encode(), n) for n in range(RECORDS)])
        self.folder = folder / "attempt"
        self.folder.mkdir()

    def range(self, shard: str, start: int = 0, end: int = RECORDS) -> ReadRange:
        return ReadRange(ShardId(shard), str(start), str(end), end - start)

    def rows(
        self,
        function: Callable[[pa.Table], Any] | None = None,
        *shards: str,
        partitioning: Partitioning = UNDIVIDED,
    ):
        transform = arrow_transform(function) if function else None
        ranges = tuple(self.range(shard) for shard in shards or self.shards)
        tasks = RangeTasks(
            self.log.spark_options(),
            (ranges,),
            local_place(self.folder),
            {range_.shard: range(7, 8) for range_ in ranges},
            {range_: at for at, range_ in enumerate(ranges)},
            cloudpickle.dumps(transform) if transform else None,
            name_of(transform),
            partitioning,
        )
        [batch] = tasks(iter([pa.RecordBatch.from_pydict({"id": [0]})]))
        return [RangeRow.of(text) for text in batch.column("row").to_pylist()]

    def values(self, row: RangeRow) -> list[bytes]:
        files = [self.folder / file.path for file in row.files if not file.quarantine]
        return [value for path in files for value in pq.read_table(path)["value"].to_pylist()]


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path)


def test_rows_are_divided_by_their_partition_values(scene: Scene) -> None:
    settings = TableSettings(partitioning=("shard_id", "truncate(3, text)"), partitions_max=3)

    def with_text(table: pa.Table) -> pa.Table:
        return table.append_column("text", table["value"].cast(pa.string()))

    (row,) = scene.rows(with_text, "0", partitioning=settings.divided_by)
    assert row.error is None
    by_text = {file.partition.get("truncate(3, text)"): file for file in row.files}
    assert {text: file.records for text, file in by_text.items()} == {
        "0:0": 1,
        "0:1": 11,
        "0:2": 11,
        None: 17,
    }
    assert by_text[None].data_file("a").partition == ()
    assert by_text["0:1"].data_file("a").partition == (("truncate(3, text)", "0:1"),)
    assert sorted(scene.values(row)) == sorted(b"0:%d" % number for number in range(RECORDS))


def test_a_column_that_cannot_be_partitioned_fails_its_range(scene: Scene) -> None:
    settings = TableSettings(partitioning=("day(key)",))
    (row,) = scene.rows(None, "0", partitioning=settings.divided_by)
    assert row.error is not None
    assert "cannot partition by 'day(key)'" in str(error_of(row.error))
    assert [*scene.folder.iterdir()] == []


def test_each_range_has_a_separate_file(scene: Scene) -> None:
    rows = scene.rows()
    for shard, row in zip(scene.shards, rows, strict=True):
        assert row.error is None
        assert row.part == scene.range(shard)
        assert (row.first, row.last) == ("0", str(RECORDS - 1))
        [file] = row.files
        assert file.path.startswith(f"{shard}.")
        assert (file.shard, file.records) == (shard, RECORDS)
        values = [b"%s:%d" % (shard.encode(), n) for n in range(RECORDS)]
        assert scene.values(row) == values
        assert row.read.bytes == sum(map(len, values))
        table = pq.read_table(scene.folder / file.path)
        assert table.schema.equals(record_schema())
        times = table["event_time"].to_pylist()
        assert (row.read.first_event_time, row.read.last_event_time) == (min(times), max(times))
        assert (file.first_event_time, file.last_event_time) == (min(times), max(times))
    assert len([*scene.folder.iterdir()]) == 3, "no report is left"


def test_files_and_folders_are_synced_before_a_task_returns(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    with synced(monkeypatch) as paths:
        rows = scene.rows()
    files = [scene.folder / file.path for row in rows for file in row.files]
    assert sorted(paths[:-1]) == sorted(files)
    assert paths[-1] == scene.folder, "the folder last, and once"


def test_a_failed_range_leaves_no_file_and_does_not_stop_others(scene: Scene) -> None:
    def poison(table: pa.Table) -> pa.Table:
        if table["shard_id"][0].as_py() == "1":
            raise KeyError("cannot\ndo it")
        return table

    first, failed, last = scene.rows(poison)
    assert first.error is None
    assert last.error is None
    assert failed.files == ()
    assert failed.error is not None
    assert str(error_of(failed.error)).endswith(
        "raised KeyError: 'cannot\\ndo it', for the record at cursor 0 of shard 1."
    )
    assert len([*scene.folder.iterdir()]) == 2


@pytest.mark.parametrize("refused", [0, 1, 19, 20, 38, 39])
def test_the_record_at_which_a_transform_raises_is_named(scene: Scene, refused: int) -> None:
    def poison(table: pa.Table) -> pa.Table:
        if table["shard_id"][0].as_py() == "1" and str(refused) in table["cursor"].to_pylist():
            raise ValueError("refused")
        return table

    _, failed, _ = scene.rows(poison)
    assert failed.error is not None
    assert str(error_of(failed.error)).endswith(
        f"raised ValueError: refused, for the record at cursor {refused} of shard 1."
    )


def test_a_transform_that_fails_on_a_whole_table_names_its_range(scene: Scene) -> None:
    """Method: it takes any half, and it takes everything at its second try."""
    calls: list[int] = []

    def crowded(table: pa.Table) -> pa.Table:
        if table["shard_id"][0].as_py() == "1" and table.num_rows > 25:
            raise ValueError("too many")
        return table

    def once(table: pa.Table) -> pa.Table:
        calls.append(table.num_rows)
        if table["shard_id"][0].as_py() == "1" and calls.count(40) == 2:
            raise ValueError("not now")
        return table

    for transform in (crowded, once):
        _, failed, _ = scene.rows(transform)
        assert failed.error is not None
        assert str(error_of(failed.error)).endswith(
            "for records of shard 1 between cursors 0 and 40."
        )


def test_a_reader_that_fails_in_the_middle_leaves_no_file(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Goal: every error of a source fails only its shard."""

    class Reader:
        def read(self, range_: ReadRange) -> Iterator[pa.RecordBatch]:
            for batch in scene.log.read(range_):
                yield batch.slice(0, 10)
                if range_.shard == "1":
                    raise AttributeError("no such thing")

    monkeypatch.setattr(range_tasks, "reader_from_options", lambda _: Reader())
    monkeypatch.setattr(exact_records, "PORTION_RECORDS", 5)
    first, failed, _ = scene.rows()
    assert first.error is None
    assert failed.error is not None
    message = str(error_of(failed.error))
    assert message == "Reading failed with AttributeError: no such thing"
    assert len([*scene.folder.iterdir()]) == 2


def test_a_full_disk_is_the_error_of_the_range(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(local_module, "sync_file", full)
    for row in scene.rows():
        assert row.error is not None
        assert row.error["kind"] == "OutputUnwritable"
        assert "No space left on device" in row.error["message"]
    assert [*scene.folder.iterdir()] == []


def test_a_reader_that_cannot_be_built_fails_every_range(scene: Scene) -> None:
    folder = local_place(scene.folder)
    tasks = RangeTasks({"source": "nope"}, ((scene.range("0"),),), folder, {}, {}, None, "")
    [row] = tasks.rows(0)
    assert row.error is not None
    assert row.error["kind"] == "UnknownSource"


def test_a_transform_that_cannot_be_loaded_fails_every_range(scene: Scene) -> None:
    options = scene.log.spark_options()
    folder, broken = local_place(scene.folder), b"cnope\nx\n."
    tasks = RangeTasks(options, ((scene.range("0"),),), folder, {}, {}, broken, "m.f")
    [row] = tasks.rows(0)
    assert row.error is not None
    assert row.error["kind"] == "TransformUnusable"
    assert "m.f cannot be loaded in Spark's workers" in row.error["message"]


def parted(table: pa.Table) -> pa.Table:
    """Put every fourth record into quarantine."""
    errors = ["no" if int(cursor) % 4 == 0 else None for cursor in table["cursor"].to_pylist()]
    return table.append_column("quarantine_error", pa.array(errors, pa.string()))


def test_a_transform_receives_portions_and_their_output_keeps_the_order(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(range_tasks, "portions", lambda batches: _tables(batches, 7))
    [row] = scene.rows(parted, "2")
    good, bad = row.files
    assert (good.records, bad.records, bad.quarantine) == (30, 10, True)
    assert scene.values(row) == [b"2:%d" % n for n in range(RECORDS) if n % 4]
    table = pq.read_table(scene.folder / bad.path)
    assert table["value"].to_pylist() == [b"2:%d" % n for n in range(0, RECORDS, 4)]


def _tables(batches: Iterator[pa.RecordBatch], rows: int) -> Iterator[pa.Table]:
    for batch in batches:
        for start in range(0, batch.num_rows, rows):
            yield pa.Table.from_batches([batch.slice(start, rows)])


def test_other_columns_in_a_later_table_are_refused_in_one_sentence(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    def changing(table: pa.Table) -> pa.Table:
        kind = pa.int64() if table["cursor"][0].as_py() == "0" else pa.string()
        return table.append_column("extra", pa.nulls(table.num_rows, kind))

    monkeypatch.setattr(range_tasks, "portions", lambda batches: _tables(batches, 20))
    [row] = scene.rows(changing, "0")
    assert row.error is not None
    assert "extra string for some records of shard 0" in row.error["message"]
    assert [*scene.folder.iterdir()] == []


def test_a_long_task_reports_progress(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LocalPlace, "signs_every_s", 0.0)
    scene.rows()
    signs = local_place(scene.folder).signs_of_progress()
    assert isinstance(signs, frozenset)
    assert len(signs) > 3 + 1


def test_a_time_outside_the_calendar_does_not_stop_a_shard(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Goal: such a record is committed without a time, and counted under its cursor."""
    # A log that another program wrote: this one refuses such a time.
    monkeypatch.setattr(local_log_format, "moment_of", lambda time: time)
    late = datetime(9999, 12, 31, 23, tzinfo=timezone(timedelta(hours=-5)))
    shard = scene.shards[0]
    scene.log.append(shard, [Record(b"late", event_time=late), Record(b"good")])
    range_ = scene.range(shard, 0, RECORDS + 2)
    monkeypatch.setattr(scene, "range", lambda _: range_)
    [row] = scene.rows(None, shard)
    assert row.error is None
    assert (row.read.mistimed, row.read.mistimed_at) == (1, str(RECORDS))
    [file] = row.files
    assert (file.records, file.untimed, file.mistimed) == (RECORDS + 2, 1, 0)
    table = pq.read_table(scene.folder / file.path)
    times = table["event_time"].to_pylist()
    assert times[-2] is None
    others = [time for time in times if time is not None]
    assert (file.first_event_time, file.last_event_time) == (min(others), max(others))
    assert (row.read.first_event_time, row.read.last_event_time) == (min(others), max(others))
    assert dict(table["attributes"].to_pylist()[-2]) == {"event_time_us": "253402315200000000"}


@pytest.mark.parametrize("unit", ["s", "ms", "us"])
def test_a_time_of_a_transform_outside_the_calendar_is_null_and_counted(
    scene: Scene, unit: str
) -> None:
    def with_times(records: pa.Table) -> pa.Table:
        kind = pa.timestamp(unit, tz="UTC")
        numbers = [2**63 - 1, *[0] * (records.num_rows - 2), None]
        times = pa.array(numbers, pa.int64()).cast(kind)
        return records.drop_columns(["event_time"]).append_column("event_time", times)

    row, *_ = scene.rows(with_times)
    assert row.error is None
    [file] = row.files
    epoch = datetime(1970, 1, 1, tzinfo=UTC)
    assert (file.first_event_time, file.last_event_time) == (epoch, epoch)
    assert (file.untimed, file.mistimed, file.mistimed_at) == (2, 1, "0")
    table = pq.read_table(scene.folder / file.path)
    assert table["event_time"].to_pylist() == [None, *[epoch] * (RECORDS - 2), None]
