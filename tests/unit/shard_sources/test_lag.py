"""The lag of shards if the source answers for some or for none."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta

from dagster_leasehold.lease_store.errors import LogCorrupt
from dagster_leasehold.lease_store.identifiers import ShardId
from dagster_leasehold.shard_sources.lag import Lags, StalledShards, lags_at, unread_times
from tests.sources.world import START
from tests.unit.sensors.streams import ScriptedSource

ZERO, ONE, TWO = ShardId("0"), ShardId("1"), ShardId("2")


class Timed(ScriptedSource):
    def times_at(self, cursors: Mapping[ShardId, str]) -> dict[ShardId, object]:
        self._answer()
        if broken := self.damaged & set(cursors):
            raise LogCorrupt(f"shard {min(broken)} is damaged: restore it.")
        return {shard: START + timedelta(seconds=int(at)) for shard, at in cursors.items()}


def test_only_possibly_unread_shards_cost_a_request() -> None:
    source = Timed(ends={"0": 4, "1": 9, "2": 3})
    lags = lags_at(source, {ZERO: "4", ONE: "7", TWO: None})
    assert (lags.records, lags.behind) == ({ZERO: 0, ONE: 2, TWO: 3}, {ONE: "7", TWO: "0"})
    times = unread_times(source, lags.behind)
    assert lags.seconds(times, START + timedelta(seconds=10)) == {ZERO: 0, ONE: 3, TWO: 10}


def test_an_error_of_one_shard_leaves_the_other_ages() -> None:
    source = Timed(damaged={"1"})
    assert unread_times(source, {ZERO: "5", ONE: "5"}).keys() == {ZERO}


def test_without_the_source_every_age_is_unknown() -> None:
    source = Timed(down="The source does not answer.")
    assert unread_times(source, {ZERO: "5", ONE: "5"}) == {}
    lags = lags_at(source, {ZERO: "5"})
    assert (lags.records, lags.seconds({}, START)) == ({ZERO: None}, {})
    assert lags.trouble == "The source does not answer."


def test_a_shard_s_stall_is_counted_from_the_first_measurement() -> None:
    now_s = 0.0
    standing = StalledShards(lambda: now_s)

    def look(count: int | None, cursor: str | None) -> float | None:
        behind = {} if cursor is None else {ZERO: cursor}
        return standing.seconds(Lags({ZERO: count}, behind)).get(ZERO)

    assert look(5, "7") == 0
    now_s = 30.0
    assert [look(6, "7"), look(None, "7")] == [30, 30], "counted or not, they are unread"
    assert look(None, None) is None, "the source did not answer"
    now_s = 40.0
    assert [look(6, "7"), look(4, "9"), look(0, None)] == [40, 0, 0]
    now_s = 9_000.0
    assert look(1, "9") == 0, "a record after a quiet time begins a new count"
