"""The watermark sensor: the hours that it requests, the late records, and its messages."""

from __future__ import annotations

import json
import uuid
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from dagster_leasehold.assets.deployment import LEASEHOLD, Deployment
from dagster_leasehold.assets.output.table.catching_up import catch_up
from dagster_leasehold.assets.table_settings import THE_LEASE_DATABASE, TableSettings
from dagster_leasehold.assets.windows.hourly_asset import (
    HourlyAsset,
    LateAction,
    LatePolicy,
    hour_key,
)
from dagster_leasehold.lease_store.group_rows import Timing
from dagster_leasehold.lease_store.identifiers import ShardId
from dagster_leasehold.lease_store.outcomes import Changed
from dagster_leasehold.lease_store.rules.event_frontier import HOUR
from dagster_leasehold.lease_store.window_rows import EventWindow
from dagster_leasehold.sensors.watermark import WatermarkRounds, build_watermark_sensor
from dagster_leasehold.shard_sources.local_log import LocalLog
from dagster_leasehold.shard_sources.local_log.format import Record
from dagster_leasehold.shard_sources.source import ShardBounds
from tests.ticks import tick
from tests.unit.assets.consumption_world import NODE, World
from tests.unit.assets.output.test_committed_output import NOON, compact

MINUTE = timedelta(minutes=1)
ZERO, ONE = ShardId("0"), ShardId("1")


class Scene:
    """A stream of two shards, an hourly asset of it, and ticks of its sensor."""

    def __init__(self, folder: Path, **declaration: Any) -> None:
        self.world = World(folder, records=0)
        self.now_s = 0.0
        self.deployment = Deployment(
            lambda: self.world.store, (NODE,), Timing(), output_folder=lambda _: self.world.place
        )
        given: dict[str, Any] = {"since": NOON} | declaration
        self.hourly = HourlyAsset("hourly", self.world.stream, lambda frame: frame, **given)
        self.cursor: str | None = None
        self.publishing = True
        self.in_work: set[datetime] = set()
        self.restart()

    def restart(self) -> None:
        """The code server's process ends and starts."""
        self.rounds = WatermarkRounds(self.hourly, self.deployment, lambda: self.now_s)

    def append(self, shard: str, *minutes: int, consume: bool = True) -> None:
        self.world.log.append(
            shard, [Record(b"%d" % at, event_time=NOON + at * MINUTE) for at in minutes]
        )
        if consume:
            self.consume()

    def consume(self) -> None:
        self.world.sync()
        self.world.consume(f"run-{uuid.uuid4()}")
        if self.publishing:
            self.publish()

    def publish(self) -> None:
        """Have all that is committed in the stream's table."""
        world, table = self.world, TableSettings()
        catch_up(world.store, world.key, world.place, table=table, catalog=THE_LEASE_DATABASE)

    def tick(self) -> dg.SensorResult:
        result = self.rounds.tick(self.cursor, lambda hours: self.in_work & set(hours))
        self.cursor = result.cursor
        return result

    def requested(self) -> list[str]:
        requests = self.tick().run_requests or []
        assert all(request.partition_key in str(request.run_key) for request in requests)
        return [str(request.run_key).removeprefix("hourly:") for request in requests]

    def make(self, hour: int) -> None:
        """Write the row of an hour as its run does."""
        store, key = self.world.store, self.world.key
        start = NOON + hour * HOUR
        former = store.windows(key, "hourly", since=start, until=start + HOUR)
        version = former[0].version + 1 if former else 1
        cursors = store.published_until(key) or {}
        covered = {shard: cursor for shard, cursor in cursors.items() if cursor}
        window = EventWindow(
            "hourly",
            start,
            start + HOUR,
            version=version,
            generation=version,
            covered=covered,
            late=former[0].late if former else 0,
        )
        assert store.put_window(key, window) == Changed()

    def late(self) -> dict[str, int]:
        windows = self.world.store.windows(self.world.key)
        return {hour_key(window.start): window.late for window in windows}


def hour(number: int, why: str = "complete") -> str:
    return f"{hour_key(NOON + number * HOUR)}:{why}"


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path)


def test_an_hour_is_requested_once_every_shard_has_passed_it(scene: Scene) -> None:
    scene.append("0", 5, 65)
    assert scene.requested() == []
    assert "held back by shard 1, which has no output yet" in str(scene.tick().skip_reason)
    scene.append("1", 5, 59)
    assert scene.requested() == []
    assert "shard 1 has reached 2026-03-01T12:59" in str(scene.tick().skip_reason)
    scene.append("1", 185)
    scene.append("0", 130)
    assert scene.requested() == [hour(0), hour(1)]
    assert scene.requested() == []


def test_a_lost_cursor_requests_the_same_run_keys(scene: Scene) -> None:
    scene.append("0", 65)
    scene.append("1", 65)
    first = scene.requested()
    scene.cursor = None
    assert scene.requested() == first == [hour(0)]
    assert len(scene.cursor or "") < 100


def test_a_split_in_progress_delays_hours(scene: Scene) -> None:
    scene.append("0", 30, 65)
    scene.append("1", 70, 200)
    scene.world.log.split("0")
    assert scene.requested() == []
    reason = str(scene.tick().skip_reason)
    assert "held back by shard 2, which is new to the group" in reason
    scene.consume()
    assert scene.world.lease("0").state == "over"
    assert "held back by shard 2, which has no output yet" in str(scene.tick().skip_reason)
    scene.append("2", 40, 130)
    assert scene.requested() == []
    scene.append("3", 61)
    assert scene.requested() == [hour(0)]


def test_an_idle_shard_delays_hours_without_idle_after_s(tmp_path: Path) -> None:
    for allowance_s, expected in ((None, []), (60.0, [hour(0)])):
        scene = Scene(tmp_path / str(allowance_s), idle_after_s=allowance_s)
        scene.append("0", 5, 65)
        scene.append("1", 5)
        assert scene.requested() == []
        scene.now_s += 59
        assert scene.requested() == []
        scene.append("1", 6, consume=False)
        scene.now_s += 59
        assert scene.requested() == [], "it has something to read, so it is not idle"
        scene.consume()
        assert scene.requested() == []
        scene.now_s += 61
        assert scene.requested() == expected


def test_a_restart_resets_the_idle_time(tmp_path: Path) -> None:
    scene = Scene(tmp_path, idle_after_s=60.0)
    scene.append("0", 65)
    scene.append("1", 5)
    assert scene.requested() == []
    scene.now_s += 61
    scene.restart()
    assert scene.requested() == []
    scene.now_s += 61
    assert scene.requested() == [hour(0)]


def test_a_source_without_bounds_is_read_from_the_checkpoints(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def bounds_after(self: LocalLog, cursors: dict[ShardId, str]) -> dict[ShardId, ShardBounds]:
        assert cursors == {ZERO: "1", ONE: "1"}
        return self.bounds(list(cursors))

    scene = Scene(tmp_path, idle_after_s=60.0)
    scene.append("0", 65)
    scene.append("1", 5)
    monkeypatch.setattr(LocalLog, "bounds_after", bounds_after, raising=False)
    assert scene.requested() == []
    scene.now_s += 61
    assert scene.requested() == [hour(0)]


def test_late_records_are_counted_once_and_dropped(scene: Scene) -> None:
    scene.append("0", 5, 125)
    scene.append("1", 5, 125)
    assert scene.requested() == [hour(0), hour(1)]
    scene.append("0", 7, 8, 130)
    scene.tick()
    assert scene.late() == {}, "the hours' runs may have read them: nobody can tell yet"
    scene.make(0)
    scene.append("0", 9, 66)
    scene.tick()
    scene.make(1)
    result = scene.tick()
    assert scene.late() == {"2026-03-01-12:00": 1, "2026-03-01-13:00": 0}
    assert result.run_requests == []
    for _ in range(2):
        scene.restart()
        scene.tick()
        assert scene.late()["2026-03-01-12:00"] == 1, "counted once"
    scene.append("1", 10, 11)
    (observation,) = scene.tick().asset_events
    assert observation.partition == "2026-03-01-12:00"
    assert observation.metadata["late_records"].value == 3


def test_late_records_are_counted_even_if_they_were_merged_first(scene: Scene) -> None:
    scene.append("0", 5, 65)
    scene.append("1", 5, 65)
    scene.tick()
    scene.make(0)
    scene.tick()
    scene.append("0", 7, 8, 70)
    compact(scene.world)
    scene.publish()
    scene.tick()
    assert scene.late() == {"2026-03-01-12:00": 2}


def test_late_records_are_counted_once_they_are_published(scene: Scene) -> None:
    scene.append("0", 5, 65)
    scene.append("1", 5, 65)
    scene.tick()
    scene.make(0)
    scene.publishing = False
    scene.append("0", 7, 8, 70)
    scene.tick()
    assert scene.late() == {"2026-03-01-12:00": 0}
    scene.publish()
    scene.tick()
    assert scene.late() == {"2026-03-01-12:00": 2}


def test_a_rerun_is_requested_with_a_separate_key_and_a_minimum_pause(tmp_path: Path) -> None:
    scene = Scene(tmp_path, late=LatePolicy(LateAction.RERUN, wait_s=60))
    scene.append("0", 5, 65)
    scene.append("1", 5, 65)
    assert scene.requested() == [hour(0)]
    scene.make(0)
    scene.append("0", 6)
    assert scene.requested() == [hour(0, "late.2")]
    assert scene.requested() == []
    scene.append("0", 7)
    assert scene.requested() == [], "the same hour again has to wait"
    scene.now_s += 61
    assert scene.requested() == [hour(0, "late.3")]
    scene.restart()
    assert scene.requested() == [], "the cursor tells that it was asked for"
    scene.make(0)
    scene.now_s += 61
    assert scene.requested() == []
    assert scene.late() == {"2026-03-01-12:00": 2}


def test_hours_in_the_future_of_this_host_wait(tmp_path: Path) -> None:
    """Dagster has no partition for an hour that its clock has not passed."""
    scene = Scene(tmp_path)
    years = 60 * 24 * 365 * 100
    scene.append("0", 5, years)
    scene.append("1", 5, years)
    assert len(scene.requested()) == 24, "and not more in one tick"
    at = NOON + 365 * 50 * 24 * HOUR
    scene.cursor = json.dumps({"next": at.isoformat(), "hours": {}})
    assert scene.requested() == []
    assert "in the future by this host's clock" in str(scene.tick().skip_reason)


def test_an_unavailable_source_is_reported_and_the_cursor_stays(
    scene: Scene, tmp_path: Path
) -> None:
    scene.append("0", 65)
    scene.append("1", 65)
    sensor = build_watermark_sensor(scene.hourly)
    (tmp_path / "log").rename(tmp_path / "gone")
    definitions = dg.Definitions(
        [dg.AssetSpec(scene.hourly.key)], sensors=[sensor], resources={LEASEHOLD: scene.deployment}
    )
    with dg.DagsterInstance.ephemeral() as instance:
        result = tick(definitions, sensor.name, instance, NOON.isoformat())
    assert "There is no log" in str(result.skip_message)
    assert json.loads(str(result.cursor))["next"] == NOON.isoformat()
