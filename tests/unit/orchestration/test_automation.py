"""Declarative automation below a stream and its hours, as Dagster's daemon evaluates it."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from dagster_leasehold.assets.partitions import shard_partitions
from dagster_leasehold.assets.windows.hourly_asset import HourlyAsset, hour_key
from dagster_leasehold.lease_store.times import utc_now
from dagster_leasehold.orchestration.build import build_definitions
from dagster_leasehold.orchestration.resources import LeaseholdResource
from tests.unit.docs.test_docs import DOCS, fences
from tests.unit.sensors.streams import scripted_stream

When = dg.AutomationCondition
WHOLE = None
"""The only partition of an asset without partitions."""
CRON = "0 * * * *"
TOLERANT = When.eager().without(~When.any_deps_missing())
ANY_HOUR = When.eager().without(When.in_latest_time_window())
Asked = dict[str, set[str | None]]


def news() -> dg.AutomationCondition[Any]:
    """Return the condition that the how-to recommends."""
    page: dict[str, Any] = {}
    block = fences(DOCS / "how-to/react-to-commits.md", "python")[0]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        exec(block, page)
    return page["NEWS"]


@dataclass
class Scene:
    """A stream of two shards with six hours, assets below them, and evaluations of the daemon."""

    home: Path
    instance: dg.DagsterInstance
    now: datetime = field(default_factory=utc_now)
    below: list[dg.AssetsDefinition] = field(default_factory=list)
    cursor: Any = None

    def __post_init__(self) -> None:
        self.stream, _ = scripted_stream(name="orders")
        self.newest = self.now.replace(minute=0, second=0, microsecond=0) - timedelta(hours=1)
        since = self.newest - timedelta(hours=5)
        self.hours = HourlyAsset("per_hour", self.stream, lambda rows: rows, since=since)
        self.instance.add_dynamic_partitions("orders", ["0", "1"])
        self.partitions: dict[str, Any] = {
            "orders": shard_partitions(self.stream),
            "per_hour": self.hours.partitions,
        }

    def add(self, name: str, above: str, when: Any, *, whole: bool = False) -> None:
        """Add an asset below the stream or its hours, with the partitions of that or none."""
        partitions = None if whole else self.partitions[above]
        asset = dg.asset(
            name=name, deps=[above], partitions_def=partitions, automation_condition=when
        )
        self.below.append(asset(lambda: None))

    def definitions(self) -> dg.Definitions:
        return dg.Definitions.merge(
            build_definitions(
                [self.stream], LeaseholdResource(home=str(self.home)), hourly=[self.hours]
            ),
            dg.Definitions(assets=self.below),
        )

    def look(self, after: timedelta = timedelta(0)) -> Asked:
        """Return the partitions that the daemon asks for now."""
        defs = self.definitions()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            result = dg.evaluate_automation_conditions(
                defs, self.instance, cursor=self.cursor, evaluation_time=utc_now() + after
            )
        self.cursor = result.cursor
        return {
            asset.key.path[-1]: set(result.get_requested_partitions(asset.key))
            for asset in self.below
            if result.get_num_requested(asset.key)
        }

    def made(self, asset: str, *partitions: str | None) -> None:
        for partition in partitions:
            self.instance.report_runless_asset_event(
                dg.AssetMaterialization(asset, partition=partition)
            )

    def hour(self, before: int) -> str:
        return hour_key(self.newest - timedelta(hours=before))


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    with dg.DagsterInstance.ephemeral() as instance:
        yield Scene(tmp_path / "home", instance)


def test_assets_below_a_stream(scene: Scene) -> None:
    scene.add("shards_eager", "orders", When.eager())
    scene.add("shards_news", "orders", news())
    scene.add("eager", "orders", When.eager(), whole=True)
    scene.add("tolerant", "orders", TOLERANT, whole=True)
    scene.add("news", "orders", news(), whole=True)
    scene.add("missing", "orders", When.on_missing())
    per_shard, always = ("shards_eager", "shards_news"), {"tolerant": {WHOLE}, "news": {WHOLE}}
    assert scene.look() == {}
    scene.made("orders", "0")
    assert scene.look() == {**{name: {"0"} for name in per_shard}, **always}, "shard 1 has none yet"
    assert scene.look() == {}
    scene.made("orders", "1")
    everything = {**always, "eager": {WHOLE}}
    assert scene.look() == {**{name: {"1"} for name in per_shard}, **everything}
    assert scene.look() == {}
    scene.instance.add_dynamic_partitions("orders", ["2"])
    scene.made("orders", "0")
    assert scene.look() == {**{name: {"0"} for name in per_shard}, **always}, "a new shard has none"
    assert scene.look() == {}
    for asset in (dg.AssetKey("orders"), dg.AssetKey(["logs", "orders_log"])):
        scene.instance.report_runless_asset_event(dg.AssetObservation(asset))
    assert scene.look() == {}, "an observation is no news"
    scene.made("orders", "2")
    assert scene.look()["missing"] == {"2"}, "the others were missing from the beginning"


def test_assets_below_hours(scene: Scene) -> None:
    scene.add("newest_hour", "per_hour", When.eager())
    scene.add("any_hour", "per_hour", ANY_HOUR)
    scene.add("news_of_hour", "per_hour", news())
    scene.add("missing_hour", "per_hour", When.on_missing().without(When.in_latest_time_window()))
    scene.add("eager", "per_hour", When.eager(), whole=True)
    scene.add("news", "per_hour", news(), whole=True)
    assert scene.look() == {}
    late, newest = scene.hour(5), scene.hour(0)
    of_any = ("any_hour", "news_of_hour")
    scene.made("per_hour", late)
    assert scene.look() == {**{name: {late} for name in of_any}, "news": {WHOLE}}
    assert scene.look() == {}
    scene.made("per_hour", newest)
    assert scene.look() == {
        **{name: {newest} for name in of_any}, "newest_hour": {newest}, "news": {WHOLE}
    }  # fmt: skip
    assert scene.look() == {}
    scene.made("per_hour", *(scene.hour(before) for before in range(1, 5)))
    assert scene.look()["eager"] == {WHOLE}, "every hour is made"


def test_ticks_of_a_schedule(scene: Scene) -> None:
    scene.add("on_cron", "orders", When.on_cron(CRON), whole=True)
    ticked = When.cron_tick_passed(CRON).since_last_handled()
    scene.add("ticked", "orders", ticked, whole=True)
    scene.made("orders", "0", "1")
    assert scene.look() == {}
    hour = timedelta(hours=1)
    assert scene.look(hour) == {"ticked": {WHOLE}}, "with news or without"
    scene.made("orders", "0")
    assert scene.look(hour) == {"on_cron": {WHOLE}}, "it does not wait for shard 1"


def test_the_recommended_condition_requests_a_run_for_updates_during_a_run(scene: Scene) -> None:
    scene.add("tolerant", "orders", TOLERANT, whole=True)
    scene.add("news", "orders", news(), whole=True)
    scene.look()
    scene.made("orders", "0", "1")
    assert scene.look().keys() == {"tolerant", "news"}
    job = scene.definitions().resolve_implicit_global_asset_job_def()
    runs = [
        scene.instance.create_run_for_job(
            job, asset_selection=frozenset([asset.key]), status=dg.DagsterRunStatus.STARTED
        )
        for asset in scene.below
    ]
    assert scene.look() == {}
    scene.made("orders", "0")
    scene.look()
    for run, asset in zip(runs, scene.below, strict=True):
        scene.made(asset.key.path[-1], WHOLE)
        scene.instance.report_run_canceled(run)
    assert scene.look() == {"news": {WHOLE}}
