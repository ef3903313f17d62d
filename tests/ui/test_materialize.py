"""A user's way in a browser: open the asset, choose a shard, materialize it, see it green."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from dagster_leasehold.lease_store import open_store
from dagster_leasehold.lease_store.identifiers import GroupKey
from dagster_leasehold.lease_store.store import LeaseStore
from dagster_leasehold.orchestration.settings import Settings
from dagster_leasehold.shard_sources.local_log import LocalLog
from tests.dagster_deployment import ROOT, dagster_deployment
from tests.declared import declare, stream_text
from tests.ui.browsing import no_run_works
from tests.ui.conftest import SCREENSHOT_VARIABLE
from tests.waiting import wait_for

if TYPE_CHECKING:
    from playwright.sync_api import Page

KEY = GroupKey.parse("default", "demo")
SHARDS, RECORDS, NEWER = 8, 300, 50
CONSUMED_S, GREEN_S, LAUNCHED_MS = 400.0, 300.0, 120_000

pytestmark = [
    pytest.mark.long,
    pytest.mark.browser,
    pytest.mark.dagster_processes,
    pytest.mark.spark,
    pytest.mark.timeout(1200),
]


def checkpoints(store: LeaseStore) -> dict[str, str | None]:
    if KEY not in {group.key for group in store.groups()}:
        return {}
    return {row.shard: row.check_point for row in store.snapshot(KEY).shards}


def test_a_shard_is_materialized_by_clicking_and_turns_green(tmp_path: Path, page: Page) -> None:
    """Sensors consume all records first. Then they stop, and a click consumes newer records."""
    home = tmp_path / "home"
    settings = Settings(home=home, nodes=("node-a", "node-b"))
    log = LocalLog.create(home / "logs" / "demo", SHARDS)
    declare(home, stream_text("demo", pace="Pace(commit_interval_s=0, idle_limit_s=1)"))
    for row in log.list_shards():
        log.append(row.shard, [f"{row.shard}-{number}".encode() for number in range(RECORDS)])
    store = open_store(settings.store_url)
    with dagster_deployment(settings) as deployment:
        consumed = {str(shard): str(RECORDS) for shard in range(SHARDS)}
        wait_for("all records", lambda: checkpoints(store) == consumed, CONSUMED_S)
        deployment.stop_sensor("demo_rebalance")
        wait_for("the last run to end", lambda: no_run_works(deployment), CONSUMED_S)
        log.append("1", [b"newer"] * NEWER)

        materialize(page, deployment.url, "1")
        show_partition(page, deployment.url, "1", end_cursor=RECORDS + NEWER)
        if os.environ.get(SCREENSHOT_VARIABLE):
            page.screenshot(path=ROOT / "docs" / "images" / "ui.png")
        assert checkpoints(store)["1"] == str(RECORDS + NEWER)
        assert {
            shard for shard, cursor in checkpoints(store).items() if cursor == str(RECORDS)
        } == {*consumed} - {"1"}


def materialize(page: Page, url: str, shard: str) -> None:
    """Click through the asset's page."""
    page.goto(f"{url}/assets/demo?view=partitions")
    page.get_by_text(shard, exact=True).first.click()
    page.get_by_role("button", name="Materialize").first.click()
    page.get_by_role("button", name="Launch 1 run").click(timeout=LAUNCHED_MS)
    page.get_by_text("Materializing (1)").or_(page.get_by_text("Launched run")).first.wait_for(
        timeout=LAUNCHED_MS
    )


def show_partition(page: Page, url: str, shard: str, *, end_cursor: int) -> None:
    """Wait until the partition's page shows the new materialization, in green."""
    row = page.get_by_role("row").filter(has_text="end_cursor")

    def shown() -> bool:
        # The page does not renew this panel by itself.
        page.goto(f"{url}/assets/demo?view=partitions&partition={shard}")
        row.first.wait_for(timeout=LAUNCHED_MS)
        return str(end_cursor) in row.first.inner_text()

    wait_for("the new materialization in the page", shown, GREEN_S)
    page.get_by_text("Materialized", exact=True).wait_for(timeout=LAUNCHED_MS)
    records = page.get_by_role("row").filter(has_text="records").first
    assert str(NEWER) in records.inner_text()
    page.get_by_text("Failed (0)").wait_for(timeout=LAUNCHED_MS)
