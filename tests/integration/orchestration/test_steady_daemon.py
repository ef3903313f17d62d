"""The real daemon beside a code server that stays: killed, it is started again."""

from __future__ import annotations

import os
import re
import signal
import sys
from contextlib import suppress
from functools import partial
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import urlopen

import psutil
import pytest

from dagster_leasehold.orchestration.instance import create_instance
from dagster_leasehold.orchestration.settings import DEFINITIONS_MODULE, Settings
from dagster_leasehold.orchestration.supervision.child_processes import ChildProcess
from dagster_leasehold.orchestration.supervision.dagster_processes import (
    DAEMON,
    LOOPBACK,
    child_environment,
)
from dagster_leasehold.orchestration.supervision.health_pages import HEALTH, READINESS
from tests.acceptance.leasehold_process import assert_nothing_runs
from tests.declared import declare
from tests.ports import free_port
from tests.waiting import wait_for

pytestmark = [pytest.mark.long, pytest.mark.dagster_processes, pytest.mark.timeout(600)]
START_S = 240.0
TICKED = "Checking for new runs for sensor: demo_rebalance"


until = partial(wait_for, "the daemon", timeout_s=START_S)


def servers(background: ChildProcess) -> list[psutil.Process]:
    """The code servers that the daemon has."""
    children = psutil.Process(background.pid).children()
    return [child for child in children if "grpc" in child.cmdline()]


def ready(pages: str) -> bool:
    with suppress(HTTPError), urlopen(f"http://{pages}{READINESS}", timeout=5) as page:
        return page.status == 200
    return False


def test_sensors_tick_on_one_code_server_also_after_it_was_killed(tmp_path: Path) -> None:
    settings = Settings(home=tmp_path / "home")
    create_instance(settings)
    declare(settings.home, "demo")
    environment = child_environment(settings, os.environ) | {"TMPDIR": str(tmp_path)}
    log = settings.home / "daemon.log"
    pages = f"{LOOPBACK}:{free_port()}"
    command = [sys.executable, "-m", DAEMON, DEFINITIONS_MODULE, "--health", pages]
    with ChildProcess("the daemon", command, log=log, environment=environment) as background:
        until(lambda: log.exists() and TICKED in log.read_text("utf-8"))
        assert urlopen(f"http://{pages}{HEALTH}", timeout=5).status == 200
        until(lambda: ready(pages))
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
