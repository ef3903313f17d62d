"""Declarative automation and freshness below a stream, with a real daemon and runs that consume."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest

from dagster_leasehold.assets.windows.hourly_asset import hour_key
from dagster_leasehold.lease_store.times import utc_now
from dagster_leasehold.orchestration.settings import Settings
from dagster_leasehold.shard_sources.local_log import LocalLog
from dagster_leasehold.shard_sources.local_log.format import Record
from tests.dagster_deployment import DagsterDeployment, dagster_deployment
from tests.waiting import wait_for

DONE_S = 180.0
MADE = """query ($key: AssetKeyInput!) { assetOrError(assetKey: $key) { ... on Asset {
    assetMaterializations { partition runId } } } }"""
FRESH = """{ assetNodes(assetKeys: [{path: ["orders"]}]) {
    freshnessStatusInfo { freshnessStatus } } }"""
HOUR, MINUTE = timedelta(hours=1), timedelta(minutes=1)

pytestmark = [
    pytest.mark.release,
    pytest.mark.dagster_processes,
    pytest.mark.spark,
    pytest.mark.timeout(900),
]


def made(deployment: DagsterDeployment, asset: str) -> list[tuple[str | None, str]]:
    """Return partition and run of each materialization of an asset, the newest first."""
    answer = deployment.graphql(MADE, key={"path": [asset]})["assetOrError"]
    return [(each["partition"], each["runId"]) for each in answer.get("assetMaterializations", [])]


def test_downstream_assets_run_after_commits_of_their_stream(tmp_path: Path) -> None:
    """News comes while `mindful` works, and while one shard of three has no records."""
    home = tmp_path / "home"
    settings = Settings(home=home, nodes=("node-a",))
    log = LocalLog.create(home / "logs" / "orders", 3)
    this_hour = utc_now().replace(minute=0, second=0, microsecond=0)

    def append(shard: str, *hours_ago: int) -> None:
        times = [this_hour - ago * HOUR + n * MINUTE for ago in hours_ago for n in range(20)]
        log.append(shard, [Record(shard.encode(), event_time=time) for time in times])

    for shard in ("0", "1"):
        append(shard, 6, 5, 4)
    with dagster_deployment(settings, module="tests.acceptance.automated_definitions") as dagster:
        wait_for("the first run below the stream", (home / "began").exists, DONE_S)
        looked(dagster)
        append("1", 3)
        wait_for("news of shard 1", lambda: len(made(dagster, "orders")) == 3, DONE_S)
        (home / "go").touch()
        wait_for("the news that came meanwhile", lambda: len(made(dagster, "mindful")) == 2, DONE_S)
        assert len(made(dagster, "forgetful")) == 1
        hours = {hour_key(this_hour - ago * HOUR) for ago in (6, 5)}
        wait_for("old hours", lambda: hours <= {at for at, _ in made(dagster, "each_hour")}, DONE_S)
        wait_for("both shards", lambda: {*dict(made(dagster, "per_shard"))} == {"0", "1"}, DONE_S)
        first = [run for _, run in made(dagster, "per_shard")[-2:]]
        assert first[0] == first[1], "one run made both"

        assert made(dagster, "complete") == [], "shard 2 has no records"
        append("2", 3)
        wait_for("an asset of all shards", lambda: made(dagster, "complete"), DONE_S)
        (node,) = dagster.graphql(FRESH)["assetNodes"]
        assert node["freshnessStatusInfo"]["freshnessStatus"] == "HEALTHY"


def looked(deployment: DagsterDeployment) -> None:
    """Wait until the daemon has evaluated the conditions once more, and starts the next
    evaluation.
    """
    ticks = "ticks(limit: 50) { timestamp }"

    def newest() -> list[float]:
        return [tick["timestamp"] for tick in deployment.sensor_state("automation", ticks)["ticks"]]

    before = max(newest(), default=0.0)
    wait_for("the daemon", lambda: sum(at > before for at in newest()) > 1, DONE_S)
