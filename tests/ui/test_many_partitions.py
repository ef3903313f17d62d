"""A user's steps in a browser: a thousand partitions at once, the failed ones, some, a replay."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from dagster_leasehold.assets.partitions import asset_op_name
from dagster_leasehold.lease_store import open_store
from dagster_leasehold.lease_store.identifiers import ShardId
from dagster_leasehold.lease_store.rules.verification import verify
from dagster_leasehold.lease_store.store import LeaseStore
from dagster_leasehold.orchestration.settings import Settings
from dagster_leasehold.shard_sources.local_log import LocalLog
from tests.acceptance.test_backfill import ended
from tests.dagster_deployment import DagsterDeployment, dagster_deployment
from tests.ui import many_partitions
from tests.ui.browsing import add_config, choose_partitions, no_run_works
from tests.ui.many_partitions import ASSET_SENSOR, KEY, MULTI_ASSET_SENSOR, STREAM
from tests.waiting import wait_for

if TYPE_CHECKING:
    from playwright.sync_api import Page

SHARDS, DONE_S, LAUNCHED_MS = 1_000, 400.0, 60_000
REFUSED = [str(number) for number in range(7, SHARDS, 50)]
"""Twenty partitions, none beside another."""
CHOSEN = ("4", "5", "6")
RUNS_MAX = 4
"""The queue starts three runs of a backfill at once; the first takes over the queued ones."""
SCREENSHOTS_VARIABLE = "LEASEHOLD_SCREENSHOTS"

pytestmark = [
    pytest.mark.release,
    pytest.mark.browser,
    pytest.mark.dagster_processes,
    pytest.mark.spark,
    pytest.mark.timeout(1200),
]


@dataclass(frozen=True)
class Scene:
    """A thousand shards that two nodes hold, each with a record that only the test consumes."""

    deployment: DagsterDeployment
    store: LeaseStore
    log: LocalLog

    def backfills(self) -> set[str]:
        query = "{ partitionBackfillsOrError { ... on PartitionBackfills { results { id } } } }"
        results = self.deployment.graphql(query)["partitionBackfillsOrError"]["results"]
        return {each["id"] for each in results}

    def runs(self, backfill: str) -> list[str]:
        query = """query ($f: RunsFilter!) { runsOrError(filter: $f) {
            ... on Runs { results { status } } } }"""
        chosen = {"tags": [{"key": "dagster/backfill", "value": backfill}]}
        runs = self.deployment.graphql(query, f=chosen)["runsOrError"]["results"]
        return [run["status"] for run in runs]

    def all_is_published(self) -> None:
        """Wait for the table: a replay skips unpublished batches."""
        wait_for("the publication", lambda: not self.store.unpublished(KEY), DONE_S)

    def run(self, run: str) -> dict[str, Any]:
        query = """query ($id: ID!) { runOrError(runId: $id) { ... on Run {
            status runConfig tags { key value } } } }"""
        return self.deployment.graphql(query, id=run)["runOrError"]

    def partitions(self) -> dict[str, int]:
        query = """query ($k: AssetKeyInput!) { assetNodeOrError(assetKey: $k) { ... on AssetNode {
            partitionStats { numMaterialized numFailed } } } }"""
        node = self.deployment.graphql(query, k={"path": [STREAM]})["assetNodeOrError"]
        return node["partitionStats"]

    def materializations(self) -> Counter[str]:
        """The number of materializations of each partition."""
        query = """query ($k: AssetKeyInput!) { assetOrError(assetKey: $k) { ... on Asset {
            assetMaterializations(limit: 5000) { partition } } } }"""
        asset = self.deployment.graphql(query, k={"path": [STREAM]})["assetOrError"]
        return Counter(event["partition"] for event in asset["assetMaterializations"])

    def seen(self, sensor: str) -> set[str]:
        """The partitions that a sensor of the user has seen."""
        path = self.deployment.settings.home / sensor
        return set(path.read_text().split()) if path.exists() else set()

    def all_is_seen(self, count: int) -> None:
        for sensor in (ASSET_SENSOR, MULTI_ASSET_SENSOR):
            wait_for(
                f"{count} partitions in {sensor}",
                lambda sensor=sensor: len(self.seen(sensor)) == count,
                DONE_S,
            )


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Generator[Scene]:
    home = tmp_path_factory.mktemp("many") / "home"
    settings = Settings(home=home, nodes=("node-a", "node-b"))
    log = LocalLog.create(home / "logs" / STREAM, SHARDS)
    (home / "refused").write_bytes(b"bad")
    store = open_store(settings.store_url)
    with dagster_deployment(settings, module=many_partitions.__name__) as deployment:

        def held() -> bool:
            groups = {group.key for group in store.groups()}
            rows = store.snapshot(KEY).shards if KEY in groups else []
            return len(rows) == SHARDS and all(row.consumer_owner for row in rows)

        wait_for("owners of all shards", held, DONE_S)
        deployment.stop_sensor(f"{STREAM}_rebalance")
        for number in range(SHARDS):
            log.append(str(number), [b"bad" if str(number) in REFUSED else b"good"])
        yield Scene(deployment, store, log)
    store.close()


def test_a_thousand_partitions_are_one_run_and_only_failed_ones_are_selected_again(
    many: Scene, page: Page
) -> None:
    first = launch(page, many, "All", f"{SHARDS} partitions")
    assert ended(many.deployment, first) == "COMPLETED_FAILED"
    assert many.runs(first) == ["FAILURE"]
    good = SHARDS - len(REFUSED)
    assert many.partitions() == {"numMaterialized": good, "numFailed": len(REFUSED)}
    events = many.materializations()
    assert set(events.values()) == {1}
    assert not events.keys() & set(REFUSED)
    many.all_is_seen(good)
    show(page, many, first, "all")

    (many.deployment.settings.home / "refused").unlink()
    second = launch(page, many, "Failed and missing", f"{len(REFUSED)} partitions")
    assert ended(many.deployment, second) == "COMPLETED_SUCCESS"
    runs = many.runs(second)
    assert len(runs) <= RUNS_MAX
    assert set(runs) == {"SUCCESS"}
    assert many.partitions() == {"numMaterialized": SHARDS, "numFailed": 0}
    assert set(many.materializations().values()) == {1}
    many.all_is_seen(SHARDS)
    show(page, many, second, "failed")
    ends = {row.shard: row.check_point for row in many.store.snapshot(KEY).shards}
    assert ends == dict.fromkeys(map(str, range(SHARDS)), "1")
    assert verify(many.store, KEY) == []


def test_one_partition_is_replayed_from_the_launchpad(many: Scene, page: Page) -> None:
    many.all_is_published()
    op = asset_op_name(many_partitions.stream_of(many.deployment.settings))
    page.goto(f"{many.deployment.url}/assets/{STREAM}?view=partitions")
    page.get_by_role("button", name="Materialize").first.click(modifiers=["Shift"])
    # While its partitions are loading, the field takes a text and loses it.
    page.get_by_role("button", name="Add new partition").wait_for()
    page.get_by_placeholder("Partition").fill("3")
    page.keyboard.press("Enter")
    # Dagster fetches the partition's own config, and replaces the text of the editor.
    page.get_by_text("partition: 3", exact=True).first.wait_for()
    editor = page.locator(".CodeMirror").first
    editor.click()
    page.keyboard.press("Control+A")
    config = f"{{ops: {{{op}: {{config: {{from: begin}}}}}}}}"
    page.keyboard.insert_text(config)
    editor.get_by_text(config, exact=True).first.wait_for()
    page.get_by_text("No errors").wait_for()
    screenshot(page, "launchpad")
    page.get_by_role("button", name="Materialize").last.click()
    page.wait_for_url("**/runs/*")
    run = page.url.rpartition("/")[2].partition("?")[0]
    launched = many.run(run)
    assert {"key": "dagster/partition", "value": "3"} in launched["tags"]
    assert launched["runConfig"]["ops"][op]["config"] == {"from": "begin"}
    wait_for("the runs to end", lambda: no_run_works(many.deployment), DONE_S)
    assert many.run(run)["status"] == "SUCCESS"
    assert [row.generation for row in many.store.batches(KEY, ShardId("3"))] == [1]
    assert [row.generation for row in many.store.batches(KEY, ShardId("4"))] == [0]


def test_a_range_of_chosen_partitions_is_one_run(many: Scene, page: Page) -> None:
    before = many.materializations()
    for shard in CHOSEN:
        many.log.append(shard, [b"newer"])
    backfill = launch(page, many, CHOSEN, f"{len(CHOSEN)} partitions")
    assert ended(many.deployment, backfill) == "COMPLETED_SUCCESS"
    assert many.runs(backfill) == ["SUCCESS"]
    assert many.materializations() - before == Counter(CHOSEN)
    ends = {row.shard: row.check_point for row in many.store.snapshot(KEY).shards}
    assert {shard for shard, end in ends.items() if end == "2"} == set(CHOSEN)


def test_all_partitions_are_replayed_by_a_backfill_with_config(many: Scene, page: Page) -> None:
    many.all_is_published()
    op = asset_op_name(many_partitions.stream_of(many.deployment.settings))
    events = many.materializations()
    generations = {batch.batch_id: batch.generation for batch in many.store.batches(KEY)}
    config = f"{{ops: {{{op}: {{config: {{from: begin}}}}}}}}"
    backfill = launch(page, many, "All", f"{SHARDS} partitions", config=config)
    assert ended(many.deployment, backfill) == "COMPLETED_SUCCESS"
    assert many.runs(backfill) == ["SUCCESS"]
    assert many.materializations() - events == Counter(map(str, range(SHARDS)))
    assert {batch.batch_id: batch.generation for batch in many.store.batches(KEY)} == {
        batch_id: generation + 1 for batch_id, generation in generations.items()
    }
    assert verify(many.store, KEY) == []


def launch(
    page: Page, many: Scene, selection: str | Sequence[str], count: str, *, config: str = ""
) -> str:
    """Click through the dialog of the asset's page; return the id of the backfill."""
    wait_for("the runs before to end", lambda: no_run_works(many.deployment), DONE_S)
    before = many.backfills()
    page.goto(f"{many.deployment.url}/assets/{STREAM}?view=partitions")
    page.get_by_role("button", name="Materialize").first.click()
    if isinstance(selection, str):
        page.get_by_role("button", name=selection, exact=True).click()
    else:
        choose_partitions(page, STREAM, selection)
    page.get_by_text(count).first.wait_for()
    page.get_by_text("Backfills all partitions in a single run.").wait_for()
    if config:
        add_config(page, config)
    page.get_by_role("button", name="Launch backfill").click()
    (backfill,) = wait_for("the backfill", lambda: many.backfills() - before, DONE_S)
    return backfill


def show(page: Page, many: Scene, backfill: str, name: str) -> None:
    """Open the backfill's page and its runs."""
    page.goto(f"{many.deployment.url}/runs/b/{backfill}")
    page.get_by_text("100% completed").wait_for(timeout=LAUNCHED_MS)
    screenshot(page, name)
    page.goto(f"{many.deployment.url}/runs/b/{backfill}?tab=runs")
    page.get_by_role("link", name="View").first.wait_for(timeout=LAUNCHED_MS)
    screenshot(page, f"{name}-runs")


def screenshot(page: Page, name: str) -> None:
    if folder := os.environ.get(SCREENSHOTS_VARIABLE):
        page.screenshot(path=Path(folder) / f"{name}.png")
