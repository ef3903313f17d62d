"""`leasehold dev` on a home: it consumes, shows progress, and ends with all its processes."""

from __future__ import annotations

import json
import signal
import time
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from dagster_leasehold.shard_sources.local_log import LocalLog
from tests.acceptance.leasehold_process import (
    Running,
    assert_nothing_runs,
    cat,
    leasehold,
    processes_of,
    running,
)
from tests.declared import declare, stream_text
from tests.ports import free_port
from tests.unit.docs.recorded_output import assert_printed

pytestmark = [
    pytest.mark.long,
    pytest.mark.dagster_processes,
    pytest.mark.spark,
    pytest.mark.timeout(900),
]
GONE_S = 60.0
QUERY = (
    "{ runsOrError(filter: {statuses: [SUCCESS]}) { ... on Runs { count } } "
    'assetNodeOrError(assetKey: {path: ["demo"]}) { ... on AssetNode '
    "{ partitionStats { numPartitions numMaterialized } } } "
    "workspaceOrError { ... on Workspace { locationEntries { name } } } }"
)


def shown(address: str) -> dict[str, Any]:
    """Return the runs, partitions and code locations of the pages."""
    body, form = json.dumps({"query": QUERY}).encode(), {"Content-Type": "application/json"}
    request = urllib.request.Request(f"{address}/graphql", body, form)
    with urllib.request.urlopen(request, timeout=60) as reply:
        return json.load(reply)["data"]


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A home with a log of two shards and ten records."""
    home = tmp_path / "home"
    log = LocalLog.create(home / "logs" / "demo", 2)
    for row in log.list_shards():
        log.append(row.shard, [f"{row.shard}-{number}".encode() for number in range(5)])
    declare(home, stream_text("demo", pace="Pace(idle_limit_s=1)"))
    return home


def open_pages(dev: Running) -> str:
    """Return the address once the command has printed it."""
    dev.until(lambda: "Open http://127.0.0.1:" in dev.text, timeout_s=120)
    return dev.text.split("Open ")[1].split(" in")[0]


@pytest.mark.parametrize(
    "how",
    [
        pytest.param(signal.SIGTERM, marks=pytest.mark.release, id="SIGTERM"),
        pytest.param(signal.SIGINT, id="Ctrl-C"),
    ],
)
def test_dev_consumes_shows_progress_and_ends_with_all_its_children(
    home: Path, how: signal.Signals
) -> None:
    with running("dev", "--home", home, "--port", free_port(), folder=home.parent) as dev:
        address = open_pages(dev)
        dev.until(lambda: shown(address)["runsOrError"]["count"] >= 1, timeout_s=240)
        data = shown(address)
        assert data["assetNodeOrError"]["partitionStats"] == {
            "numPartitions": 2,
            "numMaterialized": 2,
        }
        assert data["workspaceOrError"]["locationEntries"] == [{"name": "leasehold"}]
        assert dev.end(how) == 0
        assert_printed(("dev",), dev.text, **{".leasehold": str(home)})
        assert "Traceback" not in dev.text
    assert_nothing_runs(home)
    assert len(cat(home)) == 10


@pytest.mark.release
def test_dev_prints_at_most_two_lines_in_an_idle_minute(home: Path) -> None:
    with running("dev", "--home", home, "--port", free_port(), folder=home.parent) as dev:
        open_pages(dev)
        before = dev.text
        time.sleep(60)
        assert dev.text.removeprefix(before).count("\n") <= 2
        assert dev.end(signal.SIGTERM) == 0
    assert_nothing_runs(home)


def test_processes_of_a_killed_dev_end_by_themselves(home: Path) -> None:
    """Method: kill -9 on the command alone, as the kernel does when memory runs out."""
    with running("dev", "--home", home, "--port", free_port(), folder=home.parent) as dev:
        address = open_pages(dev)
        dev.until(lambda: shown(address)["runsOrError"]["count"] >= 1, timeout_s=240)
        dev.end(signal.SIGKILL)
    deadline = time.monotonic() + GONE_S
    while processes_of(home):
        assert time.monotonic() < deadline, processes_of(home)
        time.sleep(0.5)


def test_stop_ends_dev_from_another_terminal(home: Path) -> None:
    with running("dev", "--home", home, "--port", free_port(), folder=home.parent) as dev:
        open_pages(dev)
        assert leasehold("status", "--home", home, folder=home.parent).code == 0
        done = leasehold("stop", "--home", home, folder=home.parent, timeout_s=120)
        assert done.code == 0, done.err
        assert_printed(("stop",), done.out)
        dev.until_ended(30)
    assert_nothing_runs(home)
    again = leasehold("stop", "--home", home, folder=home.parent)
    assert (again.code, again.out) == (0, f"No processes run on {home}.\n")
