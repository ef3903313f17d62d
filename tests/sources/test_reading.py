"""Planned ranges and exact reads."""

from __future__ import annotations

import pickle
from contextlib import suppress
from datetime import datetime, timedelta, timezone
from itertools import pairwise

import pyarrow as pa
import pytest

from dagster_leasehold.lease_store.errors import RecordRefused
from dagster_leasehold.lease_store.identifiers import ShardId
from dagster_leasehold.shard_sources.record_feed import SourceFeed
from dagster_leasehold.shard_sources.registry import reader_from_options
from dagster_leasehold.shard_sources.source import (
    DivisibleRanges,
    Limits,
    Position,
    ReadRange,
    record_schema,
    times_for,
)
from tests.sources.world import (
    LARGE_BYTES,
    START,
    VALUES,
    NewRecord,
    Notion,
    SourceWorld,
    values_of,
)


def test_all_appended_records_are_read(world: SourceWorld, shard: ShardId) -> None:
    rows = world.all_rows(shard)
    assert [row["value"] for row in rows] == list(VALUES)
    assert {row["shard_id"] for row in rows} == {shard}
    assert all(row["event_time"].tzinfo is not None for row in rows)


def test_every_batch_has_exactly_the_schema(world: SourceWorld, shard: ShardId) -> None:
    bounds = world.source.bounds([shard])[shard]
    batches = list(world.source.read(ReadRange(shard, bounds.begin, bounds.end)))
    assert batches
    for batch in batches:
        assert batch.schema.equals(record_schema(), check_metadata=True)
        batch.validate(full=True)


def test_ranges_follow_each_other_within_their_limits(world: SourceWorld, shard: ShardId) -> None:
    """Planned ranges together yield the same records as one read of the whole shard."""
    end = world.source.bounds([shard])[shard].end
    cursor, read = world.source.cursor_at(shard, Position.BEGIN), []
    while (plan := world.source.plan(shard, cursor, Limits(7, 15_000))).end != cursor:
        part = [row["value"] for row in world.rows(shard, cursor, plan.end)]
        assert 1 <= len(part) <= plan.records <= 7
        assert len(part) == 1 or sum(map(len, part)) <= 15_000
        read += part
        cursor = plan.end
    assert read == list(VALUES)
    assert world.rows(shard, cursor, end) == []


def test_the_parts_of_a_range_are_the_range(world: SourceWorld, shard: ShardId) -> None:
    """Goal: tasks in other processes can read them in parallel, each record once."""
    source, bounds = world.source, world.source.bounds([shard])[shard]
    if not isinstance(source, DivisibleRanges):
        pytest.skip("its cursors are no numbers, so that its ranges stay whole")
    range_ = ReadRange(shard, bounds.begin, bounds.end)
    for count in (1, 2, 3, len(VALUES), 10 * len(VALUES)):
        parts = source.divide(range_, count)
        assert 1 <= len(parts) <= count
        assert (parts[0].start, parts[-1].end) == (range_.start, range_.end)
        assert all(one.end == other.start for one, other in pairwise(parts))
        reader = reader_from_options(source.spark_options())
        read = {part: [*reader.read(part)] for part in reversed(parts)}
        rows = [row for part in parts for batch in read[part] for row in batch.to_pylist()]
        assert [row["value"] for row in rows] == list(VALUES)
        assert [row["cursor"] for row in rows] == [row["cursor"] for row in world.all_rows(shard)]
        assert sum(part.records for part in parts) >= len(VALUES)


def test_a_record_beyond_the_byte_limit_is_read_alone(world: SourceWorld, shard: ShardId) -> None:
    begin = world.source.cursor_at(shard, Position.BEGIN)
    plan = world.source.plan(shard, begin, Limits(bytes_max=1))
    assert plan.records == 1
    assert [row["value"] for row in world.rows(shard, begin, plan.end)] == [VALUES[0]]


def test_a_repeated_plan_is_the_same(world: SourceWorld, shard: ShardId) -> None:
    """Goal: records that arrive between two plans change no end before them."""
    begin = world.source.cursor_at(shard, Position.BEGIN)
    limits = Limits(records_max=5)
    planned = world.source.plan(shard, begin, limits)
    world.fill(shard, VALUES[:3])
    assert world.source.plan(shard, begin, limits) == planned


def test_a_repeated_read_yields_the_same(world: SourceWorld, shard: ShardId) -> None:
    bounds = world.source.bounds([shard])[shard]
    range_ = ReadRange(shard, bounds.begin, bounds.end)
    first = pa.Table.from_batches(world.source.read(range_))
    world.fill(shard, [b"later"])
    assert pa.Table.from_batches(world.source.read(range_)) == first


def test_a_range_ends_at_its_end_cursor(world: SourceWorld, shard: ShardId) -> None:
    """Goal: neither fewer nor more records, wherever the range lies in the service's pages."""
    cursors = [row["cursor"] for row in world.all_rows(shard)]
    for start, stop in ((0, 1), (3, 5), (len(VALUES) - 2, len(VALUES) - 1)):
        rows = world.rows(shard, cursors[start], cursors[stop])
        assert [row["value"] for row in rows] == list(VALUES[start:stop])
    assert world.rows(shard, cursors[4], cursors[4]) == []


def test_shards_are_read_separately(world: SourceWorld, shard: ShardId) -> None:
    other = world.source.list_shards()[1].shard
    world.fill(other, [b"other"])
    assert [row["value"] for row in world.all_rows(other)] == [b"other"]
    assert len(world.all_rows(shard)) == len(VALUES)


@pytest.mark.needs(Notion.KEY)
def test_a_missing_key_differs_from_an_empty_one(world: SourceWorld) -> None:
    shard = world.source.list_shards()[0].shard
    keys = [b"\x00k\xff", None, b""]
    world.put(shard, [NewRecord(b"v", key=key, at=START) for key in keys])
    assert [row["key"] for row in world.all_rows(shard)] == keys


@pytest.mark.needs(Notion.ATTRIBUTES)
def test_attributes_are_read_as_written(world: SourceWorld) -> None:
    shard = world.source.list_shards()[0].shard
    world.put(shard, [NewRecord(b"v", at=START, attributes={"ä": "ö", "empty": ""})])
    world.put(shard, [NewRecord(b"w", at=START)])
    first, second = (dict(row["attributes"]) for row in world.all_rows(shard))
    assert first | {"ä": "ö", "empty": ""} == first
    assert "ä" not in second


@pytest.mark.needs(Notion.NO_VALUE)
def test_a_missing_value_differs_from_an_empty_one(world: SourceWorld) -> None:
    shard = world.source.list_shards()[0].shard
    world.put(shard, [NewRecord(value, key=b"k", at=START) for value in (b"", None, b"v")])
    assert [row["value"] for row in world.all_rows(shard)] == [b"", None, b"v"]


def test_large_records_are_complete(world: SourceWorld) -> None:
    shard = world.source.list_shards()[0].shard
    values = [bytes([number]) * LARGE_BYTES for number in range(4)]
    world.fill(shard, values)
    begin = world.source.cursor_at(shard, Position.BEGIN)
    assert world.source.plan(shard, begin, Limits(bytes_max=LARGE_BYTES * 2)).records <= 2
    assert [row["value"] for row in world.rest(shard, begin)] == values


def test_a_reader_travels_as_text(world: SourceWorld, shard: ShardId) -> None:
    """Goal: Spark can send it: options as strings to a worker, the range by pickle."""
    options = world.source.spark_options()
    assert all(isinstance(part, str) for pair in options.items() for part in pair)
    bounds = world.source.bounds([shard])[shard]
    range_ = pickle.loads(pickle.dumps(ReadRange(shard, bounds.begin, bounds.end)))
    assert values_of(reader_from_options(options).read(range_)) == list(VALUES)


def test_a_client_without_spark_reads_the_same(world: SourceWorld, shard: ShardId) -> None:
    feed = SourceFeed(world.source)
    cursor, read = feed.cursor_at(shard, "begin"), []
    while (fetched := feed.fetch(shard, cursor, records_max=4)).end != cursor:
        read += [record.value for record in fetched.records]
        cursor = fetched.end
    assert read == list(VALUES)
    assert feed.clamp(shard, cursor) == cursor


def test_event_times_of_the_service_are_recent(world: SourceWorld, shard: ShardId) -> None:
    times = [row["event_time"] for row in world.all_rows(shard)]
    if Notion.GIVEN_TIME in world.lacks:
        assert all(later - times[0] < timedelta(minutes=5) for later in times)
    assert times == sorted(times)


@pytest.mark.needs(Notion.GIVEN_TIME)
def test_a_time_outside_the_calendar_stops_no_reader(world: SourceWorld) -> None:
    """Goal: it is refused by the writer or read as null, and all later records are read."""
    shard = world.source.list_shards()[0].shard
    beyond = datetime(9999, 12, 31, 23, 30, tzinfo=timezone(timedelta(hours=-1)))
    world.put(shard, [NewRecord(b"before", at=START)])
    with suppress(RecordRefused):
        world.put(shard, [NewRecord(b"beyond", at=beyond)])
    world.put(shard, [NewRecord(b"after", at=START + timedelta(seconds=1))])
    rows = world.all_rows(shard)
    times = {row["value"]: row["event_time"] for row in rows}
    # LogHub holds 32 bits of seconds, so that every number is some time.
    times.pop(b"beyond", None)
    assert times == {b"before": START, b"after": START + timedelta(seconds=1)}
    cursors = [row["cursor"] for row in rows]
    for cursor in cursors:
        times_for(world.source, {shard: cursor})
    feed = SourceFeed(world.source)
    assert len(feed.fetch(shard, cursors[0], records_max=9).records) == len(rows)
