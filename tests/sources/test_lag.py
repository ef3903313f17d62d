"""The age of the oldest unread record in each service, and the requests that it costs."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, cast

import pytest

from dagster_leasehold.lease_store.identifiers import ShardId
from dagster_leasehold.shard_sources.lag import REQUEST_EVERY_S, UnreadTimes, lags_at, unread_times
from dagster_leasehold.shard_sources.source import TimedRecords, times_for
from tests.sources.world import START, VALUES, Notion, SourceWorld

if TYPE_CHECKING:
    from tests.sources.worlds.kinesis import KinesaliteWorld
    from tests.sources.worlds.loghub import LogHubWorld

HOUR = timedelta(hours=1)


@pytest.mark.needs(Notion.TIMED)
def test_the_oldest_unread_record_has_its_age(world: SourceWorld, shard: ShardId) -> None:
    """Method: one reader is at some record, and the other has not started."""
    other = world.source.list_shards()[1].shard
    world.fill(other, VALUES[:2])
    rows, first = world.all_rows(shard), world.all_rows(other)[0]["event_time"]
    for number in (0, 7, len(VALUES) - 1):
        lags = lags_at(world.source, {shard: rows[number]["cursor"], other: None})
        times = unread_times(world.source, lags.behind)
        expected = {shard: rows[number]["event_time"], other: first}
        assert times.keys() == expected.keys()
        for each, time in expected.items():
            # A service may know whole seconds.
            assert abs(times[each] - time) < timedelta(seconds=1), number
            age = lags.seconds(times, time + HOUR)[each]
            assert abs(age - HOUR.total_seconds()) < 1, number
        assert lags.seconds(times, START - HOUR) == {shard: 0, other: 0}, "a clock that is behind"
    lags = lags_at(world.source, {shard: world.source.bounds([shard])[shard].end})
    assert lags.behind == {}, "at the end nothing is asked"
    assert lags.seconds({}, START) == {shard: 0}


@pytest.mark.parametrize("world", ["own_source"], indirect=True)
def test_without_times_every_age_is_unknown(world: SourceWorld, shard: ShardId) -> None:
    assert not isinstance(world.source, TimedRecords)
    lags = lags_at(world.source, {shard: "0"})
    assert lags.records == {shard: len(VALUES)}
    assert lags.seconds(unread_times(world.source, lags.behind), START) == {}


@pytest.mark.parametrize("world", ["loghub"], indirect=True)
def test_a_stalled_reader_costs_one_request(world: SourceWorld, shard: ShardId) -> None:
    requests = cast("LogHubWorld", world).server.requests
    second, first = world.all_rows(shard)[1]["cursor"], world.all_rows(shard)[0]["cursor"]
    now_s = 0.0
    times = UnreadTimes(lambda: now_s)

    def asked(cursor: str) -> int:
        before = requests.get("GET shards cursor_time", 0)
        assert shard in times.of(world.source, {shard: cursor})
        return requests["GET shards cursor_time"] - before

    assert [asked(first), asked(first), asked(second)] == [1, 0, 0], "it moves: not yet"
    now_s = REQUEST_EVERY_S
    assert [asked(second), asked(second)] == [1, 0]
    now_s = 100 * REQUEST_EVERY_S
    assert asked(second) == 0


@pytest.mark.parametrize("world", ["kinesis-kinesalite"], indirect=True)
def test_kinesis_s_bounds_include_the_time(
    world: SourceWorld, shard: ShardId, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = cast("KinesaliteWorld", world).source
    cursor = world.all_rows(shard)[3]["cursor"]
    lags = lags_at(source, {shard: cursor})
    assert lags.records == {shard: None}
    monkeypatch.setattr(source, "plan", None)
    assert times_for(source, lags.behind).keys() == {shard}
