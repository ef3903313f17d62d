"""Committed output as an Arrow dataset: one instant of the ledger, filters pushed down."""

from __future__ import annotations

import os
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dagster_leasehold.assets.errors import OutputUnreadable
from dagster_leasehold.assets.output.committed_dataset import committed_dataset, write_parquet
from dagster_leasehold.assets.output.committed_output import committed_files
from dagster_leasehold.assets.output.committed_parts import EventSpan, committed_parts
from dagster_leasehold.assets.rewriting.compaction import Compactor
from dagster_leasehold.assets.rewriting.replay import Replayer
from dagster_leasehold.assets.rewriting.replay_span import ReplaySpan
from dagster_leasehold.assets.rewriting.vacuum import vacuum
from dagster_leasehold.lease_store.errors import InvalidSetting, LogCorrupt
from dagster_leasehold.lease_store.identifiers import ShardId
from dagster_leasehold.lease_store.ledger_rows import DataFile
from dagster_leasehold.shard_sources.local_log.format import Record
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


def dataset(world: World, **asked: Any) -> ds.Dataset:
    return committed_dataset(world.store, world.key, world.place, **asked)


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


def replay(world: World) -> None:
    replayer = Replayer(
        stream=world.stream,
        store=world.store,
        output_root=world.place,
        sweeper=world.sweeper,
        run="replay",
    )
    reports = replayer.replay(world.ids, ReplaySpan.parse("begin", None))
    assert not any(report.error for report in reports.values())


def test_all_records_in_order_of_shard_and_batch(world: World) -> None:
    assert values(dataset(world)) == [*world.expected("0", 10), *world.expected("1", 10)]


def test_nothing_committed_is_an_empty_dataset(tmp_path: Path) -> None:
    empty = dataset(World(tmp_path))
    assert empty.count_rows() == 0
    assert "event_time" in empty.schema.names


def test_shards_batches_and_times_are_chosen_in_the_ledger(world: World) -> None:
    """Method: files that cannot hold what is asked for are destroyed before they are read."""
    span = EventSpan(NOON + 5 * MINUTE, NOON + 7 * MINUTE)
    for committed in committed_files(world.store, world.key, world.place):
        if (committed.shard, committed.batch.sequence) != (ZERO, 1):
            Path(str(committed.path)).write_bytes(b"")
    assert values(dataset(world, shards=[ZERO], span=span)) == [b"0:5", b"0:6"]
    assert values(dataset(world, numbers={ZERO: range(1, 2)})) == world.expected("0", 8)[4:]


@pytest.mark.parametrize("since", [None, 0, 3, 4, 9, 12])
@pytest.mark.parametrize("until", [None, 0, 4, 5, 10])
def test_a_span_holds_its_first_moment_and_not_its_last(
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


times = st.none() | st.integers(0, 20)


@given(first=st.integers(0, 20), length=st.integers(0, 9), since=times, until=times)
def test_pruning_never_drops_a_record(
    first: int, length: int, since: int | None, until: int | None
) -> None:
    def at(minute: int | None) -> datetime | None:
        return None if minute is None else NOON + minute * MINUTE

    file = DataFile("f", 1, 1, first_event_time=at(first), last_event_time=at(first + length))
    held = any(
        (since is None or minute >= since) and (until is None or minute < until)
        for minute in range(first, first + length + 1)
    )
    if since is None or until is None or since < until:
        assert EventSpan(at(since), at(until)).may_hold(file) == held
    assert EventSpan(at(since), at(until)).may_hold(DataFile("f", 1, 1))


@pytest.mark.parametrize("swap", [compact, replay])
def test_a_reader_from_before_a_swap_finishes(world: World, swap: Any) -> None:
    """Goal: all old or all new. Method: swap and vacuum between opening and reading."""
    before = dataset(world)
    old = [
        Path(str(committed.path))
        for committed in committed_files(world.store, world.key, world.place)
    ]
    for path in old:
        os.utime(path, (0, 0))
    swap(world)
    report = vacuum(world.store, world.key, world.place, older_than=timedelta(hours=1))
    assert report.removed == ()
    everything = [*world.expected("0", 10), *world.expected("1", 10)]
    assert values(before) == everything
    assert values(dataset(world)) == everything
    assert not {str(path) for path in old} & set(dataset(world).files)


def test_batches_of_a_merged_file_are_told_apart(world: World) -> None:
    compact(world)
    assert len(committed_files(world.store, world.key, world.place)) == 2
    assert values(dataset(world, numbers={ZERO: range(1, 2), ONE: range(2, 9)})) == [
        *world.expected("0", 8)[4:],
        *world.expected("1", 10)[8:],
    ]
    # A merged file knows its times too, so that it is left out where it cannot matter.
    late = EventSpan(since=NOON + 60 * MINUTE)
    assert committed_parts(world.store, world.key, world.place, span=late) == []


def test_a_column_that_came_later_is_null_before(world: World) -> None:
    last = committed_files(world.store, world.key, world.place, ONE)[-1]
    table = pq.read_table(str(last.path))
    pq.write_table(table.append_column("status", pa.array([200] * len(table))), str(last.path))
    table = dataset(world).to_table()
    assert table.column("status").to_pylist() == [None] * 18 + [200] * 2


def test_columns_that_do_not_fit_together_are_one_sentence(world: World) -> None:
    last = committed_files(world.store, world.key, world.place, ONE)[-1]
    table = pq.read_table(str(last.path))
    at = table.schema.get_field_index("value")
    pq.write_table(table.set_column(at, "value", pa.array([1.5] * len(table))), str(last.path))
    with pytest.raises(OutputUnreadable, match="do not fit together") as caught:
        dataset(world)
    assert "\n" not in str(caught.value)


def test_an_unknown_time_column_is_one_sentence(world: World) -> None:
    with pytest.raises(OutputUnreadable, match="no column 'at'"):
        dataset(world, span=EventSpan(since=NOON), time_column="at")


def test_a_missing_file_is_one_sentence(world: World) -> None:
    committed_files(world.store, world.key, world.place)[0].path.remove()
    with pytest.raises(LogCorrupt, match="cannot be read"):
        dataset(world)


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


def test_all_rows_in_order_and_the_progress(tmp_path: Path) -> None:
    world = World(tmp_path, records=10)
    world.consume()
    dataset = committed_dataset(world.store, world.key, world.place)
    progress: list[int] = []
    rows = write_parquet(dataset, tmp_path / "all.parquet", progress.append)
    written = pq.read_table(tmp_path / "all.parquet")
    assert written.equals(dataset.to_table())
    assert (rows, progress[-1], progress) == (written.num_rows, rows, sorted(progress))


def test_a_failure_leaves_no_file(tmp_path: Path) -> None:
    world = World(tmp_path, records=10)
    world.consume()
    dataset = committed_dataset(world.store, world.key, world.place)

    def interrupted(_: int) -> None:
        raise KeyboardInterrupt

    folder = tmp_path / "made"
    folder.mkdir()
    with pytest.raises(KeyboardInterrupt):
        write_parquet(dataset, folder / "all.parquet", interrupted)
    assert list(folder.iterdir()) == []


def test_a_file_is_on_the_disk_under_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(tmp_path, records=10)
    world.consume()
    dataset = committed_dataset(world.store, world.key, world.place)
    with synced(monkeypatch) as paths:
        write_parquet(dataset, tmp_path / "all.parquet")
    assert paths[-1] == tmp_path
    assert paths[0].name.startswith(".all.parquet.")
