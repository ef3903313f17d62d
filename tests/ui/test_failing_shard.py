"""A shard that fails while the others continue: red with the reason, and green again by itself."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from dagster_leasehold.assets.progress_check import PROGRESS
from dagster_leasehold.lease_store import open_store
from dagster_leasehold.lease_store.identifiers import GroupKey, ShardId
from dagster_leasehold.orchestration.settings import Settings
from dagster_leasehold.shard_sources.local_log import LocalLog
from tests.dagster_deployment import ROOT, DagsterDeployment, dagster_deployment
from tests.ui.conftest import CONSUMED_S, SCREENSHOT_VARIABLE
from tests.waiting import wait_for

if TYPE_CHECKING:
    from playwright.sync_api import Page

MODULE = "tests.acceptance.failing_definitions"
KEY = GroupKey.parse("default", "visits")
STREAM, FAILING, SHARDS = "visits", "1", ("0", "1", "2", "3")
GREEN_S, RED_S = 5.0, 60.0
CHECKS = """query($key: AssetKeyInput!) { assetNodeOrError(assetKey: $key) { ... on AssetNode {
    assetChecksOrError { ... on AssetChecks { checks { name
        executionForLatestMaterialization { status evaluation { success description } }
    } } }
    assetPartitionStatuses { ... on DefaultPartitionStatuses { materializedPartitions } }
} } }"""

pytestmark = [
    pytest.mark.long,
    pytest.mark.browser,
    pytest.mark.dagster_processes,
    pytest.mark.spark,
    pytest.mark.timeout(600),
]


def node_of(deployment: DagsterDeployment) -> dict[str, Any]:
    return deployment.graphql(CHECKS, key={"path": [STREAM]})["assetNodeOrError"]


def green(deployment: DagsterDeployment) -> set[str]:
    """The partitions that Dagster shows as materialized."""
    return set(node_of(deployment)["assetPartitionStatuses"]["materializedPartitions"])


def progress(deployment: DagsterDeployment) -> tuple[bool, str] | None:
    """The newest outcome of the check `progress`, and its sentence."""
    for each in node_of(deployment)["assetChecksOrError"]["checks"]:
        execution = each["executionForLatestMaterialization"]
        if each["name"] == PROGRESS and execution and execution["evaluation"]:
            outcome = execution["evaluation"]
            return bool(outcome["success"]), outcome["description"]
    return None


def test_a_failing_shard_is_red_within_a_minute_and_green_once_fixed(
    tmp_path: Path, page: Page
) -> None:
    home = tmp_path / "home"
    settings = Settings(home=home, nodes=("node-a",))
    log = LocalLog.create(home / "logs" / STREAM, len(SHARDS))
    store = open_store(settings.store_url)
    with dagster_deployment(settings, module=MODULE) as deployment:

        def committed(shard: str, end: int) -> bool:
            rows = {row.shard: row.check_point for row in store.snapshot(KEY).shards}
            return rows.get(ShardId(shard)) == str(end)

        for shard in SHARDS:
            log.append(shard, [b"first"] * 10)
        grouped = lambda: KEY in {group.key for group in store.groups()}  # noqa: E731
        wait_for("the group", grouped, CONSUMED_S)
        wait_for("the first commits", lambda: all(committed(s, 10) for s in SHARDS), CONSUMED_S)
        begun_s = time.monotonic()
        wait_for("the first green", lambda: green(deployment) == {*SHARDS}, GREEN_S)
        print(f"green {time.monotonic() - begun_s:.1f} s after the last first commit")  # noqa: T201

        (home / "broken").touch()
        begun_s = time.monotonic()
        for shard in SHARDS:
            log.append(shard, [b"second"] * 10)

        def red() -> bool:
            outcome = progress(deployment)
            return outcome is not None and not outcome[0]

        wait_for("a red check", red, RED_S)
        print(f"red {time.monotonic() - begun_s:.1f} s after the append")  # noqa: T201
        sentence = (progress(deployment) or (True, ""))[1]
        assert f"shard {FAILING} of {STREAM}/default" in sentence
        assert "price" in sentence
        page.goto(f"{deployment.url}/assets/{STREAM}?view=checks&checkDetail={PROGRESS}")
        page.get_by_text("price").first.wait_for()
        if os.environ.get(SCREENSHOT_VARIABLE):
            page.screenshot(path=ROOT / "docs" / "images" / "failing-shard.png")

        (home / "broken").unlink()
        wait_for("the commit", lambda: committed(FAILING, 20), CONSUMED_S)
        wait_for("a green check", lambda: (progress(deployment) or (False,))[0], RED_S)
    store.close()
