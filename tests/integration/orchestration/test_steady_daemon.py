"""The real daemon beside a code server that stays: killed, it is started again."""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from dagster_leasehold.orchestration.instance import create_instance
from dagster_leasehold.orchestration.settings import Settings
from dagster_leasehold.orchestration.supervision.child_processes import ChildProcess
from dagster_leasehold.orchestration.supervision.dagster_processes import child_environment, daemon
from tests.acceptance.leasehold_process import assert_nothing_runs

pytestmark = [pytest.mark.dagster_processes, pytest.mark.timeout(600)]
START_S = 240.0
TICKED = "Checking for new runs for sensor: demo_rebalance"


def until(reached: Callable[[], object]) -> None:
    deadline = time.monotonic() + START_S
    while not reached():
        assert time.monotonic() < deadline
        time.sleep(0.2)


def servers(background: ChildProcess) -> list[psutil.Process]:
    """The code servers that the daemon has."""
    children = psutil.Process(background.pid).children(recursive=True)
    return [child for child in children if "grpc" in child.cmdline()]


def test_its_sensors_tick_on_the_one_server_also_after_that_was_killed(tmp_path: Path) -> None:
    settings = Settings(home=tmp_path / "home")
    create_instance(settings)
    environment = child_environment(settings, os.environ) | {"TMPDIR": str(tmp_path)}
    log = settings.home / "daemon.log"
    with daemon(settings, environment) as background:
        until(lambda: log.exists() and TICKED in log.read_text("utf-8"))
        (first,) = servers(background)
        first.send_signal(signal.SIGKILL)
        until(lambda: "The code server ended with code -9" in log.read_text("utf-8"))
        until(lambda: servers(background))
        (second,) = servers(background)
        assert second.pid != first.pid
        again = len(re.findall(TICKED, log.read_text("utf-8")))
        until(lambda: len(re.findall(TICKED, log.read_text("utf-8"))) > again + 1)
        assert servers(background) == [second]
    assert_nothing_runs(settings.home)
    assert list(tmp_path.glob("leasehold-*")) == []
