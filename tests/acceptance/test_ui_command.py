"""`leasehold ui` on a home with a log: it consumes, shows what it did, and ends on SIGTERM."""

from __future__ import annotations

import json
import signal
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from dagster_leasehold.shard_sources.local_log import LocalLog
from tests.acceptance.leasehold_process import assert_nothing_runs, cat, running
from tests.ports import free_port
from tests.unit.docs.recorded_output import assert_printed

pytestmark = [
    pytest.mark.long,
    pytest.mark.dagster_processes,
    pytest.mark.spark,
    pytest.mark.timeout(900),
]
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


def test_it_consumes_and_shows_it_and_ends_with_all_its_children(tmp_path: Path) -> None:
    home = tmp_path / "home"
    log = LocalLog.create(home / "logs" / "demo", 2)
    for row in log.list_shards():
        log.append(row.shard, [f"{row.shard}-{number}".encode() for number in range(5)])
    (home / "leasehold.toml").write_text('[[streams]]\nname = "demo"\nidle_limit_s = 1\n')
    with running("ui", "--home", home, "--port", free_port(), folder=tmp_path) as ui:
        ui.until(lambda: "Open http://127.0.0.1:" in ui.text, timeout_s=120)
        address = ui.text.split("Open ")[1].split(" in")[0]
        ui.until(lambda: shown(address)["runsOrError"]["count"] >= 1, timeout_s=240)
        data = shown(address)
        assert data["assetNodeOrError"]["partitionStats"] == {
            "numPartitions": 2,
            "numMaterialized": 2,
        }
        assert data["workspaceOrError"]["locationEntries"] == [{"name": "leasehold"}]
        assert ui.end(signal.SIGTERM) == 0
        assert_printed(("ui",), ui.text, **{".leasehold": str(home)})
    assert_nothing_runs(home)
    assert len(cat(home)) == 10
