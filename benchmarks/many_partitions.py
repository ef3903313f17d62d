"""The use of Dagster with ten thousand shards: ticks, queries, pages, the backfill form.

`python -m benchmarks.many_partitions [--shards 100 10000] [--screenshots FOLDER] [--json]` makes a
local log, serves it with a real code server, daemon and webserver on the loopback (SQLite), waits
until all shards are partitions with an owner, and looks at the pages with a headless Chromium.
Times are seconds; a page counts as shown when the thing that one opens it for can be read.
"""

from __future__ import annotations

import argparse
import contextlib
import re
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.figures import print_rows
from dagster_leasehold.lease_store import open_store
from dagster_leasehold.lease_store.identifiers import GroupKey
from dagster_leasehold.orchestration.settings import Settings
from dagster_leasehold.shard_sources.local_log import LocalLog
from tests.dagster_deployment import DagsterDeployment, dagster_deployment
from tests.ui.browsing import chromium_page
from tests.waiting import wait_for

if TYPE_CHECKING:
    from playwright.sync_api import Page

KEY = GroupKey.parse("default", "demo")
RECORDED_SHARDS, RECORDS = 4, 1_000
SETTLED_S, SHOWN_MS = 900.0, 120_000
TICKS, TICKS_MIN = 10, 4
TICKS_QUERY = """query ($s: SensorSelector!, $n: Int!) { sensorOrError(sensorSelector: $s) {
    ... on Sensor { sensorState { ticks(limit: $n, statuses: [SKIPPED, SUCCESS]) {
        timestamp endTimestamp } } } } }"""
STATUS_QUERY = """{ assetNodeOrError(assetKey: {path: ["demo"]}) { ... on AssetNode {
    partitionStats { numMaterialized numPartitions } } } }"""
KEYS_QUERY = """{ assetNodeOrError(assetKey: {path: ["demo"]}) { ... on AssetNode {
    partitionKeys } } }"""


def timed(action: Callable[[], object]) -> float:
    """Return the seconds that an action takes."""
    began = time.perf_counter()
    action()
    return round(time.perf_counter() - began, 2)


def owned(deployment: DagsterDeployment) -> int:
    """Count the shards that have an owner."""
    store = open_store(deployment.settings.store_url)
    try:
        if KEY not in {group.key for group in store.groups()}:
            return 0
        return sum(lease.consumer_owner is not None for lease in store.snapshot(KEY).shards)
    finally:
        store.close()


def partitioned(deployment: DagsterDeployment) -> int:
    """Count the shards that are partitions in Dagster."""
    stats = deployment.graphql(STATUS_QUERY)["assetNodeOrError"]["partitionStats"]
    return stats["numPartitions"]


def tick_seconds(deployment: DagsterDeployment, sensor: str) -> float:
    """Return the median of a sensor's last ticks, in seconds."""
    selector = {
        "repositoryName": "__repository__",
        "repositoryLocationName": "leasehold",
        "sensorName": sensor,
    }

    def ended() -> list[float]:
        answer = deployment.graphql(TICKS_QUERY, s=selector, n=TICKS)
        ticks = answer["sensorOrError"]["sensorState"]["ticks"]
        taken = [tick["endTimestamp"] - tick["timestamp"] for tick in ticks if tick["endTimestamp"]]
        return taken if len(taken) >= TICKS_MIN else []

    return round(statistics.median(wait_for(f"ticks of {sensor}", ended, SETTLED_S)), 2)


def pages(page: Page, url: str, shards: int, screenshots: Path | None) -> dict[str, float]:
    """Open the pages that a user opens; return the seconds that each takes to show."""
    page.set_default_timeout(SHOWN_MS)
    last = str(shards - 1)

    def keep(name: str) -> None:
        if screenshots is not None:
            page.screenshot(path=screenshots / f"{shards}-{name}.png")

    def partitions() -> None:
        page.goto(f"{url}/assets/demo?view=partitions")
        page.get_by_text("Materialized", exact=False).first.wait_for()
        page.get_by_text("0", exact=True).first.wait_for()

    def one_partition() -> None:
        page.goto(f"{url}/assets/demo?view=partitions&partition={last}")
        page.get_by_text(last, exact=True).first.wait_for()

    def form() -> None:
        page.get_by_role("button", name="Materialize").first.click()
        page.get_by_text("Select a partition").wait_for()

    def choice() -> None:
        page.get_by_text("Select a partition").click()
        page.keyboard.type(last)
        page.locator(".bp5-menu, [role=menu], [role=listbox]").get_by_text(
            last, exact=True
        ).first.wait_for()

    def everything() -> None:
        page.keyboard.press("Escape")
        page.get_by_role("button", name="All", exact=True).click()
        page.get_by_text(re.compile(rf"^{shards:,}|{shards} partitions")).first.wait_for()

    taken: dict[str, float] = {}
    actions = {
        "asset's partitions": partitions,
        "partition's page": one_partition,
        "backfill form": form,
        "choice of a partition": choice,
        "choice of all": everything,
    }
    for name, action in actions.items():
        if action is form:
            partitions()
        taken[f"{name} s"] = timed(action)
        keep(name.replace("'", "").replace(" ", "-"))
    return taken


def measure(shards: int, screenshots: Path | None) -> dict[str, Any]:
    """Return the figures of one deployment."""
    folder = Path(tempfile.mkdtemp(prefix="leasehold-partitions-"))
    settings = Settings(home=folder, nodes=("node-a", "node-b"))
    log = LocalLog.create(folder / "logs" / "demo", shards)
    for shard in range(RECORDED_SHARDS):
        log.append(str(shard), [b"record %d" % number for number in range(RECORDS)])
    try:
        with dagster_deployment(settings) as deployment:
            began = time.perf_counter()
            wait_for("all shards owned", lambda: owned(deployment) == shards, SETTLED_S)
            row: dict[str, Any] = {
                "shards": shards,
                "all owned s": round(time.perf_counter() - began, 1),
            }
            wait_for("all partitions", lambda: partitioned(deployment) == shards, SETTLED_S)
            row["all partitions s"] = round(time.perf_counter() - began, 1)
            for sensor in ("demo_housekeeping", "demo_rebalance"):
                row[f"{sensor[5:]} tick s"] = tick_seconds(deployment, sensor)
            for name, query in (("statuses", STATUS_QUERY), ("keys", KEYS_QUERY)):
                row[f"query of {name} s"] = timed(lambda query=query: deployment.graphql(query))
            with chromium_page(folder) as page:
                row.update(pages(page, deployment.url, shards, screenshots))
            return row
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--shards", type=int, nargs="+", default=[100, 10_000])
    parser.add_argument("--screenshots", type=Path, help="a folder for pictures of the pages")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    if arguments.screenshots is not None:
        arguments.screenshots.mkdir(parents=True, exist_ok=True)
    with contextlib.redirect_stdout(sys.stderr):
        measured = [measure(shards, arguments.screenshots) for shards in arguments.shards]
    rows = [
        {"measure": name} | {f"{row['shards']:,} shards": row[name] for row in measured}
        for name in measured[0]
        if name != "shards"
    ]
    print_rows(rows, as_json=arguments.json, note="Dagster's own storage in SQLite, one machine")


if __name__ == "__main__":
    main()
