"""Cursors: positions, times, lag, and texts that are none."""

from __future__ import annotations

from datetime import timedelta
from itertools import pairwise

import pytest

from dagster_leasehold.lease_store.errors import CursorExpired, SourceError
from dagster_leasehold.lease_store.identifiers import ShardId
from dagster_leasehold.lease_store.rules.cursors import in_order, is_before
from dagster_leasehold.shard_sources.positions import clamped
from dagster_leasehold.shard_sources.source import Limits, Position, ReadRange
from tests.sources.world import START, VALUES, Notion, SourceWorld


def test_begin_and_end_are_the_bounds(world: SourceWorld, shard: ShardId) -> None:
    bounds = world.source.bounds([shard])[shard]
    assert world.source.cursor_at(shard, Position.BEGIN) == bounds.begin
    assert world.rest(shard, world.source.cursor_at(shard, Position.END)) == []


def test_the_previous_end_is_the_cursor_of_the_next_record(
    world: SourceWorld, shard: ShardId
) -> None:
    end = world.source.cursor_at(shard, Position.END)
    world.fill(shard, VALUES[:3])
    assert [row["value"] for row in world.rest(shard, end)] == list(VALUES[:3])


@pytest.mark.needs(Notion.TIME_SEEK)
def test_a_time_finds_the_first_record_at_or_after_it(world: SourceWorld, shard: ShardId) -> None:
    times = [row["event_time"] for row in world.all_rows(shard)]
    asked = [
        times[0] - timedelta(days=1),
        times[3],
        times[3] + (times[4] - times[3]) / 2,
        times[-1],
    ]
    for at in asked:
        first = next(number for number, time in enumerate(times) if time >= at)
        cursor = world.source.cursor_at(shard, at)
        assert [row["value"] for row in world.rest(shard, cursor)] == list(VALUES[first:])


@pytest.mark.needs(Notion.TIME_SEEK)
def test_a_time_after_all_records_is_the_end(world: SourceWorld, shard: ShardId) -> None:
    newest = max(row["event_time"] for row in world.all_rows(shard))
    cursor = world.source.cursor_at(shard, newest + timedelta(seconds=30))
    assert world.rest(shard, cursor) == []


@pytest.mark.needs(Notion.GIVEN_TIME)
def test_event_times_are_those_of_the_writer(world: SourceWorld, shard: ShardId) -> None:
    times = [row["event_time"] for row in world.all_rows(shard)]
    assert times == [START + timedelta(seconds=number) for number in range(len(VALUES))]


def test_a_read_from_a_record_s_cursor_begins_with_it(world: SourceWorld, shard: ShardId) -> None:
    rows = world.all_rows(shard)
    assert len({row["cursor"] for row in rows}) == len(VALUES)
    for number in (0, 1, 7, len(VALUES) - 1):
        rest = world.rest(shard, rows[number]["cursor"])
        assert [row["value"] for row in rest] == list(VALUES[number:])


@pytest.mark.needs(Notion.COUNTED_LAG)
def test_lag_counts_down(world: SourceWorld, shard: ShardId) -> None:
    source = world.source
    bounds = source.bounds([shard])[shard]
    plan = source.plan(shard, bounds.begin, Limits(records_max=4))
    assert source.lag(shard, bounds.begin, bounds) == len(VALUES)
    assert source.lag(shard, plan.end, bounds) == len(VALUES) - 4
    assert source.lag(shard, bounds.end, bounds) == 0


def test_the_lease_store_knows_the_order_of_cursors(world: SourceWorld, shard: ShardId) -> None:
    cursors = [str(row["cursor"]) for row in world.all_rows(shard)]
    assert all(is_before(one, other) for one, other in pairwise(cursors))
    bounds = world.source.bounds([shard])[shard]
    assert in_order(bounds.begin, cursors[0])
    assert is_before(cursors[-1], bounds.end)
    plan = world.source.plan(shard, cursors[0], Limits(records_max=4))
    assert is_before(cursors[3], plan.end)
    assert in_order(plan.end, cursors[4])


@pytest.mark.needs(Notion.RETENTION)
def test_reading_continues_after_removed_records(world: SourceWorld) -> None:
    """A gap never leads backwards, also in an empty shard: the store would refuse it."""
    shard = world.source.list_shards()[0].shard
    world.fill(shard)
    lost = str(world.all_rows(shard)[2]["cursor"])
    world.trim(shard)
    behind = clamped(world.source, shard, lost)
    assert in_order(lost, behind)
    world.source.plan(shard, behind, Limits())


@pytest.mark.needs(Notion.RETENTION)
def test_the_cursor_of_a_removed_record_is_expired(world: SourceWorld) -> None:
    shard = world.source.list_shards()[0].shard
    begin = world.source.cursor_at(shard, Position.BEGIN)
    world.trim(shard)
    bounds = world.source.bounds([shard])[shard]
    assert bounds.begin != begin
    assert world.source.cursor_at(shard, Position.BEGIN) == bounds.begin
    for attempt in (
        lambda: world.source.plan(shard, begin, Limits()),
        lambda: world.rows(shard, begin, bounds.end),
    ):
        with pytest.raises(CursorExpired) as expired:
            attempt()
        assert "\n" not in str(expired.value)
    assert world.source.plan(shard, bounds.begin, Limits()).end != bounds.begin
    rows = world.all_rows(shard)
    assert rows[0]["cursor"] == bounds.begin


def test_a_foreign_cursor_is_refused_in_one_sentence(world: SourceWorld, shard: ShardId) -> None:
    for cursor in world.foreign_cursors:
        for attempt in (
            lambda cursor=cursor: world.source.plan(shard, cursor, Limits()),
            lambda cursor=cursor: list(world.source.read(ReadRange(shard, cursor, cursor))),
        ):
            with pytest.raises(SourceError) as refused:
                attempt()
            assert "\n" not in str(refused.value), cursor
