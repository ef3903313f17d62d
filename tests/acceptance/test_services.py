"""`leasehold up` and `node` print what their page says."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from orchestration.settings import Settings
from shard_sources.local_log import LocalLog
from tests.acceptance.leasehold_process import assert_nothing_runs, running
from tests.unit.docs.recorded_output import assert_printed


@pytest.mark.spark
@pytest.mark.dagster_processes
@pytest.mark.timeout(400)
def test_up_and_its_nodes_say_where_they_are(tmp_path: Path) -> None:
    home = tmp_path / "home"
    LocalLog.create(Settings(home=home).log_folder("demo"), 2)
    with running("up", "--home", home, "--nodes", 1, folder=tmp_path) as up:

        def node_says() -> str:
            logs = (home / "nodes").rglob("*.log")
            return "\n".join(path.read_text(errors="replace") for path in logs)

        up.until(lambda: "Open http://127.0.0.1:" in up.text, timeout_s=150)
        up.until(lambda: "answers at" in node_says(), timeout_s=150)
        assert up.end(signal.SIGTERM, timeout_s=120) == 0
        assert_printed(("up",), up.text, **{".leasehold": str(home)})
        assert_printed(("node",), node_says())
    assert_nothing_runs(home)
