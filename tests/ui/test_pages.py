"""The pages of a user: shards as partitions, plots, checks, ticks, sensors, the lease table."""

from __future__ import annotations

import os
import re
import time
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from rich.console import Console

from dagster_leasehold.assets.checks import LAG, NO_GAP, QUARANTINE_RATE
from dagster_leasehold.assets.progress_check import PROGRESS
from dagster_leasehold.assets.table_check import TABLE
from dagster_leasehold.lease_store.times import utc_now
from dagster_leasehold.orchestration.commands import top
from dagster_leasehold.orchestration.commands.report import report_of
from dagster_leasehold.orchestration.group_view import GroupReader
from dagster_leasehold.orchestration.report_page import page as report_page
from tests.acceptance.replayed_stream import STREAM
from tests.dagster_deployment import ROOT
from tests.ui.conftest import CONSUMED_S, SCREENSHOT_VARIABLE, SHARDS, Scene
from tests.waiting import wait_for

if TYPE_CHECKING:
    from playwright.sync_api import Page

PLOTTED = ("records", "lag_after", "records_per_second")
SHOWN_S = 90.0
CUT_OFF = """table => {
    const right = table.getBoundingClientRect().right;
    for (let box = table.parentElement; box; box = box.parentElement) {
        const hides = getComputedStyle(box).overflowX !== "visible";
        if (hides && box.getBoundingClientRect().right + 1 < right) return true;
    }
    return false;
}"""
"""Return True if a part of a table lies outside of its page."""

pytestmark = [
    pytest.mark.long,
    pytest.mark.browser,
    pytest.mark.dagster_processes,
    pytest.mark.spark,
    pytest.mark.timeout(600),
]


def test_shards_are_partitions_of_the_asset_and_green(scene: Scene, page: Page) -> None:
    page.goto(f"{scene.url}/assets/{STREAM}?view=partitions")
    page.get_by_text(f"{len(SHARDS)} Partitions Selected").wait_for()
    page.get_by_text(f"Materialized ({len(SHARDS)})").wait_for()
    page.get_by_text("Failed (0)").wait_for()


def test_the_asset_names_its_automation_its_kinds_and_its_columns(scene: Scene, page: Page) -> None:
    page.set_viewport_size({"width": 1400, "height": 900})
    page.goto(f"{scene.url}/assets/{STREAM}?view=overview")
    for text in ("Iceberg", "PySpark", "2 sensors"):
        page.get_by_text(text, exact=True).first.wait_for()
    page.get_by_text("The position of the record in its shard").first.wait_for()
    if os.environ.get(SCREENSHOT_VARIABLE):
        page.get_by_text("file://").first.evaluate("address => address.style.display = 'none'")
        page.screenshot(path=ROOT / "docs" / "images" / "asset.png")
    page.get_by_text("2 sensors", exact=True).first.click()
    for sensor in ("rebalance", "housekeeping"):
        page.get_by_text(f"{STREAM}_{sensor}", exact=True).first.wait_for()


def test_the_list_of_runs_shows_only_tags_of_shards_and_records(scene: Scene, page: Page) -> None:
    page.goto(f"{scene.url}/runs")
    page.get_by_text("leasehold/shards:").first.wait_for()
    page.get_by_text("leasehold/records:").first.wait_for()
    shown = page.locator("body").inner_text()
    assert "leasehold/work_max" not in shown
    assert ".dagster/" not in shown


def test_the_first_line_of_a_run_appears_within_two_seconds_of_its_step(scene: Scene) -> None:
    query = """{ runsOrError(filter: {pipelineName: "consume_%s"}) { ... on Runs { results {
        eventConnection { events { __typename ... on MessageEvent { timestamp message } } }
    } } } }"""
    runs = scene.deployment.graphql(query % STREAM)["runsOrError"]["results"]
    assert runs
    for run in runs:
        events = run["eventConnection"]["events"]
        start, line = (
            int(next(each["timestamp"] for each in events if matches(each)))
            for matches in (
                lambda each: each["__typename"] == "ExecutionStepStartEvent",
                lambda each: each["message"].startswith("Consuming shards "),
            )
        )
        assert line - start <= 2_000, "milliseconds"


def test_records_lag_and_throughput_are_plotted(scene: Scene, page: Page) -> None:
    page.goto(f"{scene.url}/assets/{STREAM}?view=overview")
    page.get_by_role("button", name="Plots").first.click()
    for figure in PLOTTED:
        page.get_by_text(figure, exact=True).first.wait_for()
    assert page.locator("canvas").count() >= len(PLOTTED)


def test_checks_have_succeeded(scene: Scene, page: Page) -> None:
    page.goto(f"{scene.url}/assets/{STREAM}?view=checks")
    page.get_by_text("Checks (5)").wait_for()
    for check in (NO_GAP, LAG, PROGRESS, QUARANTINE_RATE, TABLE):
        page.get_by_text(check, exact=True).first.wait_for()
    page.get_by_text("Succeeded").nth(2).wait_for()


def test_a_tick_explains_itself(scene: Scene, page: Page) -> None:
    """Goal: the decision of a tick shows where the pointer rests on its result."""
    sensor = f"{STREAM}_rebalance"
    page.goto(f"{scene.url}/locations/leasehold/sensors/{sensor}")
    result = page.get_by_text("0 runs requested").first

    def explained() -> bool:
        page.mouse.move(0, 0)
        result.hover()
        page.wait_for_timeout(500)
        shown = page.locator("body").inner_text()
        return any(reason in shown for reason in scene.deployment.skip_reasons(sensor))

    wait_for("the explanation of a tick", explained, SHOWN_S)


def test_a_sensor_can_be_switched_off_and_on(scene: Scene, page: Page) -> None:
    """A click that a tick undid is made again, as a user does who sees the switch jump back."""
    sensor = f"{STREAM}_housekeeping"
    switch = page.locator("label:has(input[type=checkbox])").first
    for status in ("STOPPED", "RUNNING"):

        def switched(wanted: str = status) -> bool:
            page.goto(f"{scene.url}/locations/leasehold/sensors/{sensor}")
            if switch.is_checked() != (wanted == "RUNNING"):
                switch.click()
            return scene.deployment.takes_on(sensor, wanted)

        wait_for(status, switched, SHOWN_S)


def test_the_lease_table_shows_holders(scene: Scene, page: Page) -> None:
    page.goto(f"{scene.url}/assets/leases/{STREAM}_leases?view=overview")
    before = newest_run(scene)
    page.get_by_role("button", name="Materialize").first.click()
    wait_for("the launch", lambda: newest_run(scene) != before, SHOWN_S)
    rows = page.get_by_role("row")

    def held() -> bool:
        page.goto(f"{scene.url}/assets/leases/{STREAM}_leases?view=overview")
        page.get_by_text("Metadata", exact=True).first.wait_for()
        page.wait_for_timeout(1_000)
        return rows.filter(has_text="already_alloc").count() >= len(SHARDS)

    wait_for("the shards in the page", held, CONSUMED_S)
    for lease in scene.store.snapshot(scene.key).shards:
        cells = f"{lease.shard} {lease.state.value} {lease.consumer_owner}"
        texts = [" ".join(text.split()) for text in rows.all_inner_texts()]
        assert any(text.startswith(cells) for text in texts), (cells, texts)
    for table in page.get_by_role("table").all():
        assert not table.evaluate(CUT_OFF), "every column can be read"


def test_the_report_shows_holders_without_a_network(
    scene: Scene, page: Page, tmp_path: Path
) -> None:
    file, asked = tmp_path / "report.html", []
    page.on("request", lambda request: asked.append(request.url))
    view = GroupReader(scene.store, scene.key, scene.log).read()
    content = report_of(scene.store, scene.key, view, utc_now(), verified=True)
    file.write_text(report_page(content), "utf-8")
    page.goto(file.as_uri())
    assert asked == [file.as_uri()]
    picture = page.get_by_role("img", name="Which node held which shard")
    assert picture.evaluate("image => image.getBoundingClientRect().width") > 400
    assert page.get_by_text("Verified: each record was committed once").is_visible()
    if os.environ.get(SCREENSHOT_VARIABLE):
        page.screenshot(path=ROOT / "docs" / "images" / "report.png")
    shards = page.locator("section", has=page.get_by_role("searchbox")).locator("tbody tr:visible")
    assert shards.count() == len(SHARDS)
    page.get_by_role("searchbox").fill("already_alloc")
    assert shards.count() == len(SHARDS)
    page.get_by_role("searchbox").fill("no such shard")
    assert shards.count() == 0


@pytest.mark.skipif(not os.environ.get(SCREENSHOT_VARIABLE), reason="only makes a picture")
def test_top_is_drawn_for_the_docs(scene: Scene, page: Page) -> None:
    reader = GroupReader(scene.store, scene.key, scene.log)
    reader.read()
    time.sleep(1)
    terminal = Console(record=True, width=110, file=StringIO(), force_terminal=True)
    terminal.print(top.rendered(top.Page(), reader.read(), "", 14)[1])
    drawing = terminal.export_svg(title="leasehold top")
    # Without the fonts, which it would fetch.
    page.set_content(re.sub(r"@font-face \{.*?\}", "", drawing, flags=re.DOTALL))
    page.locator("svg").first.screenshot(path=ROOT / "docs" / "images" / "top.png")


def newest_run(scene: Scene) -> str:
    """The id of the run that was created last."""
    query = "{ runsOrError(limit: 1) { ... on Runs { results { id } } } }"
    return scene.deployment.graphql(query)["runsOrError"]["results"][0]["id"]
