"""A user's way in a browser: replay chosen shards with config, beside live consumption."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from dagster_leasehold.assets.partitions import asset_op_name
from dagster_leasehold.lease_store.rules.verification import verify
from tests.acceptance.held_stream import committed
from tests.acceptance.replayed_stream import KEY, RECORDS_MAX, STREAM, stream_of
from tests.acceptance.test_backfill import ended, values
from tests.ui.browsing import add_config, choose_partitions
from tests.ui.conftest import CONSUMED_S, SHARDS, WAVE, WAVES, Scene
from tests.waiting import wait_for

if TYPE_CHECKING:
    from playwright.sync_api import Page

CHOSEN = ("0", "2")
NEWER = 30

pytestmark = [
    pytest.mark.long,
    pytest.mark.browser,
    pytest.mark.dagster_processes,
    pytest.mark.spark,
    pytest.mark.timeout(900),
]


@pytest.mark.release
def test_a_backfill_with_config_is_launched_by_clicking_and_turns_green(
    scene: Scene, page: Page
) -> None:
    settings, read = scene.deployment.settings, WAVES * WAVE
    (settings.home / "prefix").write_text("today ")
    op = asset_op_name(stream_of(settings))
    launch_backfill(page, scene.url, f"{{ops: {{{op}: {{config: {{to: '{RECORDS_MAX}'}}}}}}}}")
    scene.append(begin=read, count=NEWER)
    show_green(page, scene)
    scene.wait_until_consumed(read + NEWER)

    records = committed(scene.store, settings.output_folder(KEY.stream, KEY.group))
    for shard in SHARDS:
        replayed = "today " if shard in CHOSEN else ""
        assert records[shard][:read] == [
            *values(shard, 0, RECORDS_MAX, replayed),
            *values(shard, RECORDS_MAX, read),
        ]
        assert len(records[shard]) == read + NEWER
    generations = {b.batch_id: b.generation for b in scene.store.batches(KEY) if b.generation}
    assert generations == {f"{shard}.0": 1 for shard in CHOSEN}
    assert verify(scene.store, KEY) == []


def launch_backfill(page: Page, url: str, config: str) -> None:
    """Click through the dialog of the asset's page: some partitions, a config, launch."""
    page.goto(f"{url}/assets/{STREAM}?view=partitions")
    page.get_by_role("button", name="Materialize").first.click()
    choose_partitions(page, STREAM, CHOSEN)
    page.get_by_text(f"{len(CHOSEN)} partitions").first.wait_for()
    add_config(page, config)
    page.get_by_role("button", name="Launch backfill").click()
    page.get_by_role("button", name="Launch backfill").wait_for(state="detached")


def show_green(page: Page, scene: Scene) -> None:
    """Wait until the newest backfill's page shows that it is done, and the partitions are green."""
    query = """{ partitionBackfillsOrError(limit: 1) {
        ... on PartitionBackfills { results { id } } } }"""

    def launched() -> list[dict[str, str]]:
        return scene.deployment.graphql(query)["partitionBackfillsOrError"]["results"]

    (newest,) = wait_for("the backfill", launched, CONSUMED_S)
    page.goto(f"{scene.url}/runs/b/{newest['id']}")
    page.get_by_text("100% completed").wait_for(timeout=CONSUMED_S * 1_000)
    assert ended(scene.deployment, newest["id"]) == "COMPLETED_SUCCESS"
    page.goto(f"{scene.url}/assets/{STREAM}?view=partitions")
    page.get_by_text(f"Materialized ({len(SHARDS)})").wait_for()
    page.get_by_text("Failed (0)").wait_for()
