"""A node's real code server: killed, it is started again; silent, it is ended; nothing is left."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from dagster_leasehold.lease_store.rules.liveness import steady_clock
from dagster_leasehold.orchestration.instance import create_instance
from dagster_leasehold.orchestration.settings import Settings
from dagster_leasehold.orchestration.supervision import code_server
from dagster_leasehold.orchestration.supervision.code_server import CodeServer
from dagster_leasehold.orchestration.supervision.dagster_processes import (
    DEFINITIONS_MODULE,
    child_environment,
)
from dagster_leasehold.orchestration.supervision.node_directory import Endpoint, server_id
from tests.acceptance.leasehold_process import assert_nothing_runs
from tests.ports import free_port
from tests.unit.orchestration.consumed_home import declare

pytestmark = [pytest.mark.dagster_processes, pytest.mark.timeout(600)]
START_S = 240.0


def until(reached: Callable[[], object]) -> None:
    deadline = time.monotonic() + START_S
    while not reached():
        assert time.monotonic() < deadline
        time.sleep(0.2)


@pytest.fixture
def home(tmp_path: Path) -> Path:
    create_instance(Settings(home=tmp_path / "home"))
    declare(tmp_path / "home", "demo")
    return tmp_path / "home"


@pytest.fixture
def server(home: Path) -> Iterator[CodeServer]:
    settings = Settings(home=home)
    new_server = CodeServer(
        DEFINITIONS_MODULE,
        Endpoint("127.0.0.1", free_port()),
        settings.node_folder("a"),
        child_environment(settings, os.environ),
        steady_clock,
    )
    yield new_server
    new_server.stop()


def test_it_is_started_again_after_its_death_and_ended_when_it_hangs(
    server: CodeServer,
    home: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    until(server.look)
    first = server.sessions[-1].pid
    os.kill(first, signal.SIGKILL)
    until(lambda: not server.look())
    until(server.look)
    second = server.sessions[-1].pid
    assert second != first
    assert "The code server ended with code -9" in capsys.readouterr().out

    monkeypatch.setattr(code_server, "HUNG_S", 2.0)
    for process in [psutil.Process(second), *psutil.Process(second).children(recursive=True)]:
        process.suspend()
    until(lambda: server.silent_s > 2.0 and not server.look())
    until(server.look)
    assert server.sessions[-1].pid not in (first, second)
    assert "it is started again" in capsys.readouterr().out

    server.stop()
    assert_nothing_runs(home)


def test_another_server_on_its_port_is_not_taken_for_it(server: CodeServer, home: Path) -> None:
    until(server.look)
    listening = server._listen  # pyright: ignore[reportPrivateUsage]
    other = CodeServer(
        DEFINITIONS_MODULE, listening, home / "other", dict(os.environ), steady_clock
    )
    assert server_id(listening) is not None
    try:
        for _ in range(5):
            assert not other.look()
            time.sleep(0.2)
    finally:
        other.stop()
