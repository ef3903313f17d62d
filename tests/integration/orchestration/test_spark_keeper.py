"""A node's real Spark server: warm before its runs, used by them, and started again."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dagster_leasehold.assets.spark.connect_server import ConnectServer, running
from dagster_leasehold.lease_store.rules.liveness import steady_clock
from dagster_leasehold.orchestration.settings import Settings
from dagster_leasehold.orchestration.supervision.dagster_processes import child_environment
from dagster_leasehold.orchestration.supervision.spark_warm_up import SparkKeeper
from tests.acceptance.leasehold_process import assert_nothing_runs
from tests.integration.assets.runs import PROJECT, RECORDS, new_home, store_of, stream_of
from tests.waiting import wait_for

pytestmark = [pytest.mark.long, pytest.mark.spark, pytest.mark.timeout(1200)]
START_S, RUN_S = 400.0, 400.0
RUN = (
    "import os, sys; from pathlib import Path\n"
    "from tests.integration.assets.runs import consume\n"
    "home, folder = map(Path, sys.argv[1:])\n"
    "reports = consume(home, folder, 'run-1')\n"
    "os._exit({str(report.stopped) for report in reports.values()} != {'caught_up'})\n"
)
FIRST_JOB = (
    "import os, sys; from pathlib import Path\n"
    "from dagster_leasehold.assets.spark.spark_session import connect_address\n"
    "from dagster_leasehold.orchestration.supervision.spark_warm_up import run_first_job\n"
    "folder = Path(sys.argv[1])\n"
    "os._exit(run_first_job(connect_address(folder), folder) != 1)\n"
)


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    (tmp_path / "home").mkdir()
    return Settings(home=tmp_path / "home", agents=True, agent_node="a")


@pytest.fixture
def keeper(settings: Settings) -> Iterator[SparkKeeper]:
    new_keeper = SparkKeeper(settings, child_environment(settings, os.environ), steady_clock)
    yield new_keeper
    new_keeper.stop()


def served(keeper: SparkKeeper, is_right: Callable[[ConnectServer], bool], folder: Path) -> int:
    """The process of the node's server, once it is ready."""

    def right() -> ConnectServer | None:
        keeper.check()
        server = running(folder)
        return server if server is not None and is_right(server) else None

    return wait_for("the node's server", right, START_S).pid


def run(program: str, *arguments: Path) -> int:
    """Return the exit code of a program that uses Spark in a separate process."""
    command = [sys.executable, "-c", program, *map(str, arguments)]
    return subprocess.run(command, cwd=PROJECT, check=False, timeout=RUN_S).returncode


def test_runs_use_the_server_of_the_node_and_start_another_after_it_dies(
    keeper: SparkKeeper, settings: Settings
) -> None:
    folder = settings.spark_folder
    assert folder == settings.node_folder("a") / "spark", "each node has a server of its own"
    first = served(keeper, lambda _: True, folder)
    home = new_home(settings.home)
    assert run(FIRST_JOB, folder) == 0, "what the warm-up does succeeds: it would say nothing"
    assert run(RUN, home, folder) == 0
    rows = store_of(home).snapshot(stream_of(home).key).shards
    assert {row.check_point for row in rows} == {str(RECORDS)}
    used = running(folder)
    assert used is not None
    assert used.pid == first, "the run started none"

    os.killpg(first, signal.SIGKILL)
    keeper.check()
    assert run(FIRST_JOB, folder) == 0
    assert served(keeper, lambda _: True, folder) != first
    keeper.stop()
    assert running(folder) is None
    assert [path.name for path in folder.glob("warm-up-*")] == []
    assert_nothing_runs(settings.home)
