"""The example as a user runs it: loaded by its commands, consumed and made hourly by Dagster."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from dagster import AssetKey, DagsterInstance

from dagster_leasehold.lease_store import open_store
from dagster_leasehold.lease_store.errors import UnknownGroup
from dagster_leasehold.lease_store.identifiers import GroupKey
from dagster_leasehold.lease_store.rules.verification import verify
from dagster_leasehold.lease_store.store import LeaseStore
from dagster_leasehold.lease_store.window_rows import EventWindow
from dagster_leasehold.orchestration.settings import Settings
from dagster_leasehold.shard_sources.local_log import LocalLog
from tests.acceptance.leasehold_process import COMMAND, environment
from tests.dagster_deployment import ROOT, dagster_deployment
from tests.waiting import wait_for

pytestmark = pytest.mark.release

EXAMPLE = ROOT / "examples/access_log"
KEY = GroupKey.parse("default", "access")
ORDERS = GroupKey.parse("default", "orders")
HOUR = "2026-03-01-12:00"
CONSUMED_S = 240.0


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A copy of the example, in which the commands of its README are run."""
    copy = tmp_path / "access_log"
    shutil.copytree(EXAMPLE, copy)
    return copy


def run(project: Path, *command: str) -> str:
    """One command in the project's folder, with the example and Leasehold on the path."""
    done = subprocess.run(
        [sys.executable, "-m", *command],
        cwd=project,
        env=environment() | {"PYTHONPATH": f"{project}:{ROOT}"},
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def commands() -> list[str]:
    """The commands of the README, in order."""
    text = (EXAMPLE / "README.md").read_text("utf-8")
    blocks = re.findall(r"^```console\n(.*?)^```$", text, re.M | re.S)
    return [line[2:] for block in blocks for line in block.splitlines()]


def line(minute: str, path: str = "/cart", status: int = 200) -> bytes:
    return (
        f'10.0.0.9 - - [01/Mar/2026:{minute}:00 +0000] "GET {path} HTTP/1.1" {status} 10'
    ).encode()


def hours(store: LeaseStore) -> dict[str, EventWindow]:
    try:
        return {f"{window.start:%H}": window for window in store.windows(KEY)}
    except UnknownGroup:
        return {}


def published(store: LeaseStore) -> int | None:
    """The number of orders in their table."""
    publication = store.publication(ORDERS)
    return publication and publication.records


def rows(settings: Settings, window: EventWindow) -> dict[str, tuple[int, int]]:
    """Requests and errors of each path, as the files of an hour hold them."""
    root = settings.output_folder(KEY.stream, KEY.group)
    tables = [pq.read_table(str(root / file.path)) for file in window.files]
    requests = [row for table in tables for row in table.to_pylist()]
    return {row["path"]: (row["requests"], row["errors"]) for row in requests}


@pytest.mark.spark
@pytest.mark.dagster_processes
@pytest.mark.timeout(900)
def test_hours_are_computed_once_all_shards_have_passed_them(project: Path) -> None:
    """Goal: real daemon, real Spark; a split in mid-flight, then a record that comes late."""
    load, load_orders, validate, dev, *shows = (command.split() for command in commands())
    assert dev == ["dg", "dev"]
    assert "Loaded 6 records" in run(project, *COMMAND[2:], *load[1:])
    assert "Loaded 4 records" in run(project, *COMMAND[2:], *load_orders[1:])
    assert "1 failed" not in run(project, *validate)
    settings = Settings(home=project / ".leasehold")
    log, store = LocalLog.open(settings.log_folder(KEY.stream)), open_store(settings.store_url)
    path = {"PYTHONPATH": f"{project}:{ROOT}"}
    started = dagster_deployment(
        settings, module="access_log.definitions", environment=path, location="access_log"
    )
    with started, DagsterInstance.from_config(str(settings.dagster_home)) as instance:

        def says(*words: str) -> bool:
            """Return True if the newest tick of the sensor that ended says these words."""
            sensor = next(
                (s for s in instance.all_instigator_state() if s.name.endswith("_watermark")), None
            )
            if sensor is None:
                return False
            ticks = instance.get_ticks(sensor.instigator_origin_id, sensor.selector_id, limit=2)
            return any(all(word in str(tick.skip_reason) for word in words) for tick in ticks)

        # Lines went by turns: shard 0 has come to 13:10, shard 1 to 12:20 and a line that is none.
        wait_for("shard 1 to hold", lambda: says("shard 1 has reached", "12:20"), CONSUMED_S)
        assert hours(store) == {}, "no hour is asked for before every shard has passed it"
        asked_before = instance.get_runs_count()

        first, second = log.split("1")
        log.append(first, [line("13:05")])
        wait_for(
            "a child without output to hold",
            lambda: says(f"shard {second}, which has no output yet"),
            CONSUMED_S,
        )
        assert hours(store) == {}
        log.append(second, [line("12:50", "/login"), line("13:20")])
        made = wait_for("hour 12", lambda: hours(store).get("12"), CONSUMED_S)
        assert rows(settings, made) == {"/search": (2, 1), "/cart": (2, 0), "/login": (1, 0)}
        assert (made.generation, made.late, list(hours(store))) == (1, 0, ["12"])
        assert instance.get_runs_count() > asked_before

        log.append("0", [line("12:59", "/login", 503)])
        again = wait_for(
            "hour 12 again",
            lambda: (window := hours(store)["12"]).generation == 2 and window,
            CONSUMED_S,
        )
        assert (again.late, again.rerun) == (1, False)
        assert rows(settings, again)["/login"] == (2, 1)
        events = instance.fetch_materializations(AssetKey("traffic_per_hour"), limit=50).records
        assert {record.partition_key for record in events} >= {HOUR}
        assert verify(store, KEY) == []

        wait_for("the orders to be published", lambda: published(store) == 3, CONSUMED_S)
        outputs = {
            " ".join(command[1:]): run(project, *COMMAND[2:], *command[1:]) for command in shows
        }
    assert "snapshot" in outputs["where orders 0 1"]
    renaming = "table evolve orders --rename item=product"
    assert "Nothing was changed" in outputs[renaming]
    assert "Applied." in outputs[f"{renaming} --apply"]
    assert '"product": "ink"' in outputs["cat orders"]
    assert "gift" not in outputs["cat orders"]
    assert outputs["cat orders --route writing"].count('"kind": "writing"') == 2
    assert "paper" not in outputs["cat orders --route writing"]
    files = [file for batch in store.batches(KEY) for file in batch.files if not file.quarantine]
    assert {dict(file.partition).get("status") for file in files} >= {200, 500, 503}
