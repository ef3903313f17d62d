"""Committed output as readers of the table get it: order, choice, replaced files, damage."""

from __future__ import annotations

import os
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

from dagster_leasehold.assets.errors import OutputUnreadable, TransformError
from dagster_leasehold.assets.output.committed_output import CommittedOutput, write_parquet
from dagster_leasehold.assets.output.table.reading import EventSpan, TablePlan
from dagster_leasehold.assets.rewriting.compaction import Compactor
from dagster_leasehold.assets.rewriting.replay import Replayer
from dagster_leasehold.assets.rewriting.replay_span import ReplaySpan
from dagster_leasehold.assets.rewriting.vacuum import vacuum
from dagster_leasehold.assets.table_settings import TableSettings
from dagster_leasehold.lease_store.errors import InvalidSetting, LogCorrupt
from dagster_leasehold.lease_store.identifiers import ShardId
from dagster_leasehold.shard_sources.local_log.format import Record
from tests.ledger_output import ledger_files
from tests.synced import synced
from tests.unit.assets.consumption_world import World

ZERO, ONE = ShardId("0"), ShardId("1")
NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
MINUTE = timedelta(minutes=1)


@pytest.fixture
def world(tmp_path: Path) -> World:
    """Two shards of ten records, a minute apart, in batches of four, four and two."""
    world = World(tmp_path, records=0)
    for shard in world.ids:
        append(world, shard, 10)
    world.consume()
    return world


def append(world: World, shard: ShardId, count: int, begin: int = 0) -> None:
    world.log.append(
        shard,
        [
            Record(b"%s:%d" % (shard.encode(), n), event_time=NOON + n * MINUTE)
            for n in range(begin, begin + count)
        ],
    )


def output_of(world: World, table: TableSettings | None = None) -> CommittedOutput:
    return CommittedOutput(world.store, world.key, world.place, table)


def dataset(world: World, **asked: Any) -> ds.Dataset:
    return output_of(world, TableSettings()).dataset(wait=True, **asked)


def plan(world: World, **asked: Any) -> TablePlan:
    return output_of(world, TableSettings()).plan(wait=True, **asked)


def values(rows: ds.Dataset) -> list[bytes]:
    return rows.to_table().column("value").to_pylist()


def compact(world: World) -> None:
    attempts = iter(f"merged-{number}" for number in range(100))
    reports = Compactor(
        store=world.store,
        key=world.key,
        output_root=world.place,
        run="compaction",
        new_attempt=lambda: next(attempts),
    ).compact(world.ids)
    assert not any(report.error for report in reports.values())


def replay(world: World, span: ReplaySpan = ReplaySpan.parse("begin", None)) -> None:  # noqa: B008
    replayer = Replayer(
        stream=world.stream,
        store=world.store,
        output_root=world.place,
        sweeper=world.sweeper,
        run="replay",
    )
    reports = replayer.replay(world.ids, span)
    assert not any(report.error for report in reports.values())


def test_records_are_ordered_by_shard_and_batch(world: World) -> None:
    assert values(dataset(world)) == [*world.expected("0", 10), *world.expected("1", 10)]


def test_a_group_without_commits_is_an_empty_dataset(tmp_path: Path) -> None:
    empty = dataset(World(tmp_path))
    assert empty.count_rows() == 0
    assert "event_time" in empty.schema.names


def test_shards_and_times_are_chosen_before_a_file_is_opened(world: World) -> None:
    """Method: files that cannot match the filter are destroyed before they are read."""
    span = EventSpan(NOON + 5 * MINUTE, NOON + 7 * MINUTE)
    (file,) = plan(world, shards=[ZERO], span=span).files
    assert (file.shard, file.numbers, file.records) == (ZERO, range(1, 2), 4)
    assert len(plan(world, span=span).files) == 2 < len(plan(world).files) == 6
    for committed in ledger_files(world.store, world.key, world.place):
        if (committed.shard, committed.batch.sequence) != (ZERO, 1):
            Path(str(committed.path)).write_bytes(b"")
    assert values(dataset(world, shards=[ZERO], span=span)) == [b"0:5", b"0:6"]


def test_a_reader_that_does_not_wait_sees_the_newest_snapshot(world: World) -> None:
    assert values(output_of(world).dataset()) == []
    before = values(dataset(world))
    append(world, ZERO, 1, begin=10)
    world.consume("run-2")
    assert values(output_of(world).dataset()) == before
    assert values(dataset(world)) == [*world.expected("0", 11), *world.expected("1", 10)]


def test_an_earlier_snapshot_shows_its_records(world: World) -> None:
    before = values(dataset(world))
    publication = world.store.publication(world.key)
    assert publication is not None
    append(world, ZERO, 1, begin=10)
    world.consume("run-2")
    compact(world)
    assert len(values(dataset(world))) == len(before) + 1
    assert values(dataset(world, snapshot_id=publication.snapshot)) == before
    with pytest.raises(OutputUnreadable, match="has no snapshot 7"):
        dataset(world, snapshot_id=7)


@pytest.mark.parametrize("since", [None, 0, 3, 4, 9, 12])
@pytest.mark.parametrize("until", [None, 0, 4, 5, 10])
def test_a_span_includes_its_start_and_excludes_its_end(
    world: World, since: int | None, until: int | None
) -> None:
    span = EventSpan(
        None if since is None else NOON + since * MINUTE,
        None if until is None else NOON + until * MINUTE,
    )
    wanted = range(since or 0, 10 if until is None else until)
    expected = [b"1:%d" % number for number in wanted if number < 10]
    assert values(dataset(world, shards=[ONE], span=span)) == expected


def test_a_time_without_a_zone_is_refused() -> None:
    with pytest.raises(InvalidSetting, match="no time zone"):
        EventSpan(datetime(2026, 3, 1))  # noqa: DTZ001 - that is the point


@pytest.mark.parametrize("swap", [compact, replay])
def test_a_reader_from_before_a_swap_finishes(world: World, swap: Any) -> None:
    """Goal: all old or all new. Method: swap and vacuum between opening and reading."""
    before = dataset(world)
    old = [Path(str(each.path)) for each in ledger_files(world.store, world.key, world.place)]
    for path in old:
        os.utime(path, (0, 0))
    swap(world)
    report = vacuum(world.store, world.key, world.place, older_than=timedelta(hours=1))
    assert report.removed == ()
    everything = [*world.expected("0", 10), *world.expected("1", 10)]
    assert values(before) == everything
    assert values(dataset(world)) == everything
    assert not {str(path) for path in old} & set(dataset(world).files)


def test_a_later_column_is_null_in_older_files(world: World) -> None:
    before = dataset(world).to_table()
    world.sweeper.keeps = lambda rows: rows.append_column(
        "nested", pa.array([{"a": 1, "b": ["x"]}] * len(rows))
    )
    append(world, ONE, 2, begin=10)
    world.consume("run-2")
    table = dataset(world).to_table()
    assert table.column("nested").to_pylist() == [None] * 20 + [{"a": 1, "b": ["x"]}] * 2
    assert table.drop_columns("nested").slice(0, 20).equals(before)


def test_widened_columns_have_the_types_of_the_table(world: World) -> None:
    """Method: a number, and a field of a struct in a list, become wider; a struct gets a field."""

    def keeps(number: pa.DataType, *more: str) -> Any:
        struct = pa.struct([("a", number), *((name, pa.string()) for name in more)])

        def more_columns(rows: pa.RecordBatch) -> pa.RecordBatch:
            listed = pa.array([[{"a": 1}]] * len(rows), pa.list_(struct))
            return rows.append_column("n", pa.array([1] * len(rows), number)).append_column(
                "listed", listed
            )

        return more_columns

    for run, change in enumerate((keeps(pa.int32()), keeps(pa.int64(), "later"))):
        world.sweeper.keeps = change
        append(world, ONE, 2, begin=10 + 2 * run)
        world.consume(f"wider-{run}")
    table = dataset(world, shards=[ONE]).to_table()
    assert table.schema.field("n").type == pa.int64()
    assert table.column("n").to_pylist() == [None] * 10 + [1] * 4
    assert table.column("listed").to_pylist()[10:] == [[{"a": 1, "later": None}]] * 4


def test_an_unknown_time_column_is_one_sentence(world: World) -> None:
    with pytest.raises(OutputUnreadable, match="no time column 'at'"):
        dataset(world, span=EventSpan(since=NOON), time_column="at")


def test_duckdb_reads_the_dataset_and_its_filters_reach_it(world: World) -> None:
    duckdb = pytest.importorskip("duckdb")
    compact(world)
    orders = dataset(world, span=EventSpan(since=NOON + 2 * MINUTE))
    connection = duckdb.connect()
    connection.register("orders", orders)
    rows = connection.sql(
        "SELECT shard_id, count(*) FROM orders WHERE shard_id = '1' GROUP BY ALL"
    ).fetchall()
    assert rows == [("1", 8)]


def test_rows_are_written_in_order_with_progress(world: World, tmp_path: Path) -> None:
    progress: list[int] = []
    rows = write_parquet(plan(world), tmp_path / "all.parquet", progress.append)
    written = pq.read_table(tmp_path / "all.parquet")
    assert written.equals(dataset(world).to_table())
    assert (rows, progress[-1], progress) == (written.num_rows, rows, sorted(progress))


def test_a_failure_leaves_no_file(world: World, tmp_path: Path) -> None:
    def interrupted(_: int) -> None:
        raise KeyboardInterrupt

    folder = tmp_path / "made"
    folder.mkdir()
    with pytest.raises(KeyboardInterrupt):
        write_parquet(plan(world), folder / "all.parquet", interrupted)
    assert list(folder.iterdir()) == []


def test_a_written_file_is_synced_under_its_name(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    planned = plan(world)
    with synced(monkeypatch) as paths:
        write_parquet(planned, tmp_path / "all.parquet")
    assert paths[-1] == tmp_path
    assert paths[0].name.startswith(".all.parquet.")


def paths_of(world: World) -> list[str]:
    return [str(file.path) for file in plan(world).files]


def test_an_attempt_that_failed_is_no_output(world: World) -> None:
    """Method: a sweep whose commit never came leaves its files; readers do not see them."""
    before = paths_of(world)
    world.append(ZERO, 5)

    def unlucky(*_: object) -> None:
        raise TransformError("boom.")

    world.store.commit = unlucky
    world.consume("run-2")
    assert len([*world.output.rglob("*.parquet")]) == len(before) + 1
    assert paths_of(world) == before


def test_duckdb_reads_the_paths(world: World) -> None:
    duckdb = pytest.importorskip("duckdb")
    paths = paths_of(world)
    [(count, shards)] = duckdb.sql(
        f"SELECT count(*), count(DISTINCT shard_id) FROM read_parquet({paths!r})"
    ).fetchall()
    assert (count, shards) == (20, 2)


@pytest.mark.parametrize("damage", ["missing", "cut", "empty"])
def test_damaged_output_is_one_sentence_and_never_skipped(world: World, damage: str) -> None:
    path = Path(str(ledger_files(world.store, world.key, world.place, ZERO)[1].path))
    content = path.read_bytes()
    path.unlink()
    if damage != "missing":
        path.write_bytes(content[: len(content) // 2] if damage == "cut" else b"")
    seen: list[bytes] = []
    batches = plan(world, shards=[ZERO]).batches()

    def read_all() -> None:
        for batch in batches:
            seen.extend(batch.column("value").to_pylist())

    with pytest.raises(LogCorrupt) as caught:
        read_all()
    assert seen == world.expected("0", 4), "what came before it is right"
    assert path.name in str(caught.value)
    assert "\n" not in str(caught.value)
