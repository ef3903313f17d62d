"""The files of one task: rows to the files of their shards, quarantine apart, memory bounded."""

from __future__ import annotations

from datetime import UTC, datetime
from itertools import count
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dagster_leasehold.assets.errors import TransformError
from dagster_leasehold.assets.output import output_file, shard_files
from dagster_leasehold.assets.output.shard_files import RangeFiles, ShardFiles, by_shard
from dagster_leasehold.assets.places.local_place import local_place
from dagster_leasehold.lease_store.identifiers import ShardId


def rows(shards: list[str | None], errors: list[str | None] | None = None) -> pa.RecordBatch:
    count = len(shards)
    time = datetime(2026, 1, 1, tzinfo=UTC)
    columns: dict[str, pa.Array] = {
        "shard_id": pa.array(shards, pa.string()),
        "cursor": pa.array([str(number) for number in range(count)]),
        "event_time": pa.array([time] * count, pa.timestamp("us", tz="UTC")),
        "key": pa.array([None] * count, pa.binary()),
        "value": pa.array([b"%d" % number for number in range(count)]),
        "extra": pa.array(range(count)),
    }
    if errors is not None:
        columns["quarantine_error"] = pa.array(errors, pa.string())
    return pa.RecordBatch.from_pydict(columns)


def batches(*shards: str) -> dict[ShardId, range]:
    """The numbers of a batch of each shard."""
    return {ShardId(shard): range(5, 6) for shard in shards}


def test_each_shard_has_its_own_file_in_order(tmp_path: Path) -> None:
    files = ShardFiles(local_place(tmp_path / "attempt"), "0", batches("a", "b", "c"))
    files.add(rows(["a", "a", "b"]))
    files.add(rows(["b", "a"]))
    written = {file.shard: file for file in files.close()}
    assert set(written) == {"a", "b"}
    for shard, values in {"a": [b"0", b"1", b"1"], "b": [b"2", b"0"]}.items():
        path = tmp_path / "attempt" / written[shard].path
        table = pq.read_table(path)
        assert table.column("value").to_pylist() == values
        assert set(table.column("shard_id").to_pylist()) == {shard}
        assert table.schema.field("event_time").type == pa.timestamp("us", tz="UTC")
        assert written[shard].bytes == path.stat().st_size
        assert written[shard].records == len(values)
        assert pq.ParquetFile(path).metadata.row_group(0).column(0).compression == "ZSTD"


def test_rows_with_an_error_go_to_quarantine(tmp_path: Path) -> None:
    files = ShardFiles(local_place(tmp_path), "0", batches("a"))
    files.add(rows(["a", "a", "a"], [None, "bad", None]))
    good, bad = sorted(files.close(), key=lambda file: file.quarantine)
    assert (good.records, bad.records) == (2, 1)
    assert not good.quarantine
    assert "quarantine_error" not in pq.read_schema(tmp_path / good.path).names
    quarantined = pq.read_table(tmp_path / bad.path)
    assert quarantined.column_names == ["shard_id", "cursor", "event_time", "key", "value", "error"]
    assert quarantined.to_pylist()[0]["error"] == "bad"
    assert quarantined.to_pylist()[0]["value"] == b"1"


@pytest.mark.parametrize("errors", [None, [None, None, "bad"]])
@pytest.mark.parametrize(
    "extra",
    [
        pa.array([0, 2**60, 0], pa.timestamp("us", tz="UTC")),
        pa.array([0, 2**50, 0], pa.timestamp("s")),
        pa.array([0, 3_000_000, 0], pa.date32()),
        pa.array([[], [("x", 1), ("x", 2)], None], pa.map_(pa.string(), pa.int32())),
    ],
    ids=str,
)
def test_a_row_that_some_readers_cannot_read_goes_to_quarantine(
    tmp_path: Path, extra: pa.Array, errors: list[str | None] | None
) -> None:
    """Goal: no value of a transform makes a table unreadable, and none stops its shard."""
    batch = rows(["a"] * 3, errors)
    batch = batch.set_column(batch.schema.get_field_index("extra"), "extra", extra)
    files = ShardFiles(local_place(tmp_path), "0", batches("a"))
    files.add(batch)
    good, bad = sorted(files.close(), key=lambda file: file.quarantine)
    output = pq.read_table(tmp_path / good.path)
    assert output["cursor"].to_pylist() == (["0"] if errors else ["0", "2"])
    assert len(output["extra"].to_pylist()) == output.num_rows, "Python reads them"
    quarantined = pq.read_table(tmp_path / bad.path).to_pylist()
    assert [row["value"] for row in quarantined] == [b"1", b"2"][: 2 if errors else 1]
    assert quarantined[0]["error"].startswith("Column 'extra' holds a time outside the years")
    assert [row["error"] for row in quarantined[1:]] == (["bad"] if errors else [])


def test_a_row_that_cannot_go_to_quarantine_is_refused_in_one_sentence(tmp_path: Path) -> None:
    batch = rows(["a"]).append_column("day", pa.array([3_000_000], pa.date32()))
    files = ShardFiles(local_place(tmp_path), "0", batches("a"))
    with pytest.raises(TransformError, match="return other values, or keep key, value, so that"):
        files.add(batch.drop_columns(["key", "value"]))
    files.abandon()


@pytest.mark.parametrize(
    ("times", "stored"),
    [
        (pa.array([0, 2**31 - 1], pa.date32()), None),
        (pa.array([[], [2**62]], pa.list_(pa.timestamp("us"))), None),
        (pa.array([0, 86_400], pa.timestamp("s")), datetime(1970, 1, 2, tzinfo=UTC)),
        (pa.array([0, 2**62], pa.timestamp("s")), None),
    ],
)
def test_quarantine_stays_readable_with_an_event_time_of_the_transform(
    tmp_path: Path, times: pa.Array, stored: datetime | None
) -> None:
    """Goal: the event time in quarantine is a UTC time or null, for every type that a transform
    returns.
    """
    own = rows(["a", "a"], [None, "refused"])
    own = own.set_column(own.schema.get_field_index("event_time"), "event_time", times)
    files = ShardFiles(local_place(tmp_path), "0", batches("a"))
    files.add(own)
    good, bad = sorted(files.close(), key=lambda file: file.quarantine)
    assert (good.records, bad.records) == (1, 1)
    [row] = pq.read_table(tmp_path / bad.path).to_pylist()
    assert row["event_time"] == stored


def test_a_batch_of_errors_leaves_only_a_quarantine_file(tmp_path: Path) -> None:
    files = ShardFiles(local_place(tmp_path), "0", batches("a"))
    files.add(rows(["a"], ["bad"]))
    assert [file.quarantine for file in files.close()] == [True]


@pytest.mark.parametrize("shard", ["b", "../a", "", None])
def test_a_foreign_shard_is_refused_in_one_sentence(tmp_path: Path, shard: str | None) -> None:
    folder = tmp_path / "attempt"
    files = ShardFiles(local_place(folder), "0", batches("a"))
    with pytest.raises(TransformError, match="column shard_id"):
        files.add(rows([shard]))
    files.abandon()
    assert [*tmp_path.rglob("*.parquet")] == []


def test_abandoning_deletes_unfinished_files(tmp_path: Path) -> None:
    files = ShardFiles(local_place(tmp_path), "0", batches("a"))
    files.add(rows(["a"]))
    assert len([*tmp_path.iterdir()]) == 1
    files.abandon()
    assert [*tmp_path.iterdir()] == []


def test_a_file_is_never_overwritten(tmp_path: Path) -> None:
    for _ in range(2):
        files = ShardFiles(local_place(tmp_path), "0", batches("a"))
        if [*tmp_path.iterdir()]:
            with pytest.raises(FileExistsError):
                files.add(rows(["a"]))
        else:
            files.add(rows(["a"]))
            files.close()


def test_file_names_differ_for_shards_that_differ_in_case(tmp_path: Path) -> None:
    files = ShardFiles(local_place(tmp_path), "0", batches("a", "A"))
    files.add(rows(["a", "A"]))
    names = [file.path.lower() for file in files.close()]
    assert len(set(names)) == 2


def test_much_data_is_written_in_row_groups(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Goal: memory is bounded by row groups, and by all shards together."""
    monkeypatch.setattr(output_file, "ROW_GROUP_BYTES", 4_000)
    monkeypatch.setattr(shard_files, "BUFFERED_BYTES_MAX", 3_000)
    files = ShardFiles(local_place(tmp_path), "0", batches("a", "b"))
    for _ in range(20):
        files.add(rows(["a"] * 20 + ["b"] * 20))
    for file in files.close():
        metadata = pq.ParquetFile(tmp_path / file.path).metadata
        assert metadata.num_row_groups > 3
        assert metadata.num_rows == 400


@settings(max_examples=100)
@given(st.lists(st.sampled_from(["a", "b", "c"]), max_size=60))
def test_rows_are_split_by_shard_in_order(shards: list[str]) -> None:
    """Goal: every row once and in its shard's order, in runs or mixed."""
    numbers_by_shard: dict[str, list[int]] = {}
    for shard, part in by_shard(rows(list(shards))):
        assert set(part.column("shard_id").to_pylist()) == {shard}
        numbers_by_shard.setdefault(shard, []).extend(part.column("extra").to_pylist())
    expected: dict[str, list[int]] = {}
    for number, shard in enumerate(shards):
        expected.setdefault(shard, []).append(number)
    assert numbers_by_shard == expected


@pytest.mark.parametrize("columns_vary", [True, False])
def test_other_columns_begin_a_new_file_if_they_follow_schemas(
    tmp_path: Path, columns_vary: bool
) -> None:
    numbers = count()
    files = RangeFiles(
        local_place(tmp_path),
        lambda *, quarantine, part, route: f"{next(numbers)}-{quarantine}.parquet",
        ShardId("a"),
        "visits",
        columns_vary=columns_vary,
    )
    first = rows(["a", "a"], [None, "bad"])
    other = rows(["a"], [None]).append_column("more", pa.array([1]))
    files.add(first)
    if not columns_vary:
        with pytest.raises(TransformError, match="return the same columns"):
            files.add(other)
        files.abandon()
    else:
        files.add(other)
        files.add(other)
        written = files.finish()
        files.sync()
        assert [(each.records, each.quarantine) for each in written] == [
            (1, False),
            (2, False),
            (1, True),
        ]
        assert pq.read_table(tmp_path / written[1].path).column("more").to_pylist() == [1, 1]
    assert [*tmp_path.iterdir()] == [] or columns_vary
