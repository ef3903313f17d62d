"""A node's real code server: killed, it is started again; silent, it is ended; nothing is left."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest

from dagster_leasehold.lease_store.process_identity import Existence
from dagster_leasehold.lease_store.rules.liveness import steady_clock
from dagster_leasehold.orchestration.instance import create_instance
from dagster_leasehold.orchestration.settings import Settings
from dagster_leasehold.orchestration.supervision import code_server
from dagster_leasehold.orchestration.supervision.code_server import (
    ADOPTABLE_AGE_MAX_S,
    STATE_FILE,
    AdoptableServer,
    CodeServer,
    adoptable_server,
)
from dagster_leasehold.orchestration.supervision.dagster_processes import (
    DEFINITIONS_MODULE,
    child_environment,
)
from dagster_leasehold.orchestration.supervision.node_directory import Endpoint, server_id
from dagster_leasehold.orchestration.supervision.preflight import reserved_port
from tests.acceptance.leasehold_process import assert_nothing_runs
from tests.declared import declare
from tests.ports import free_port
from tests.waiting import wait_for

pytestmark = [pytest.mark.long, pytest.mark.dagster_processes, pytest.mark.timeout(600)]
START_S = 240.0


until = partial(wait_for, "the code server", timeout_s=START_S)


@pytest.fixture
def home(tmp_path: Path) -> Path:
    create_instance(Settings(home=tmp_path / "home"))
    declare(tmp_path / "home", "demo")
    return tmp_path / "home"


def environment_of(home: Path) -> dict[str, str]:
    """The environment of a server; pytest changes its own variable as a test continues."""
    own = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    return child_environment(Settings(home=home), own)


@pytest.fixture
def server(home: Path) -> Iterator[CodeServer]:
    settings = Settings(home=home)
    new_server = CodeServer(
        DEFINITIONS_MODULE,
        Endpoint("127.0.0.1", free_port()),
        settings.node_folder("a"),
        environment_of(home),
        steady_clock,
    )
    yield new_server
    new_server.stop()


def test_a_code_server_is_restarted_after_it_dies_and_killed_if_it_hangs(
    server: CodeServer,
    home: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    until(server.check)
    first = server.sessions[-1].pid
    os.kill(first, signal.SIGKILL)
    until(lambda: not server.check())
    until(server.check)
    second = server.sessions[-1].pid
    assert second != first
    assert "The code server ended with code -9" in capsys.readouterr().out

    monkeypatch.setattr(code_server, "HUNG_S", 2.0)
    for process in [psutil.Process(second), *psutil.Process(second).children(recursive=True)]:
        process.suspend()
    until(lambda: server.silent_s > 2.0 and not server.check())
    until(server.check)
    assert server.sessions[-1].pid not in (first, second)
    assert "it is restarted" in capsys.readouterr().out

    server.stop()
    assert_nothing_runs(home)


class Left:
    """A server at work, noted as the death of its agent leaves it."""

    def __init__(self, server: CodeServer, home: Path) -> None:
        until(server.check)
        self.environment = environment_of(home)
        self.folder = Settings(home=home).node_folder("a")
        [self.process] = server.sessions
        self.state = server.state("first")
        self.state.write(self.folder)

    def server_for(
        self, module: str = DEFINITIONS_MODULE, **variables: str
    ) -> AdoptableServer | None:
        """Return the code server that an agent with this module and these variables starts."""
        return adoptable_server(self.folder, module, "127.0.0.1", self.environment | variables)

    def successor(self, listen: Endpoint, **how: Any) -> CodeServer:
        environment = how.pop("environment", self.environment)
        return CodeServer(DEFINITIONS_MODULE, listen, self.folder, environment, steady_clock, **how)


def test_the_successor_of_a_killed_agent_adopts_its_server(
    server: CodeServer, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Goal: nothing that the server has started is interrupted. Method: two objects, no `stop`."""
    left = Left(server, home)
    process, note = left.process, left.folder / STATE_FILE
    candidate = left.server_for(INVOCATION_ID="another start's")
    assert candidate is not None
    assert (candidate.process, candidate.listen) == (process, server.listen)
    with reserved_port(candidate.listen.port, served=True) as port:
        assert port == candidate.listen.port
    os.utime(note, (0, 0))
    successor = left.successor(candidate.listen, adoptable=candidate)
    successor.adopt_runs(left.state)
    try:
        assert successor.check(), "it answers, and was not started"
        assert time.time() - note.stat().st_mtime < START_S, "it got a heartbeat"
        assert successor.sessions == [process]
        os.kill(process.pid, signal.SIGKILL)
        printed: list[str] = []

        def ended() -> bool:
            # A killed process can be alive for a moment after its last answer.
            answers = successor.check()
            printed.append(capsys.readouterr().out)
            return not answers and "The code server ended: see" in "".join(printed)

        until(ended)
        until(successor.check)
        assert successor.sessions[-1] != process
    finally:
        successor.stop()
    assert_nothing_runs(home)


def test_a_server_that_is_too_old_or_has_other_settings_is_not_adopted(
    server: CodeServer, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Goal: a server without heartbeats refuses runs; one with other settings runs them wrongly."""
    left = Left(server, home)
    process, other = left.process, {"LEASEHOLD_OUTPUT": "s3://elsewhere"}
    assert left.server_for(**other) is None
    assert left.server_for("another.module") is None
    at = time.time() - ADOPTABLE_AGE_MAX_S - 1
    os.utime(left.folder / STATE_FILE, (at, at))
    assert left.server_for() is None
    listen = Endpoint("127.0.0.1", free_port())
    like = left.successor(listen)
    like.adopt_runs(left.state)
    assert like.sessions == [process], "its runs continue, if there are any"
    until(lambda: process.existence() is Existence.GONE)  # a killed process takes a moment to end
    assert not capsys.readouterr().out
    until(lambda: not server.check())
    until(server.check)
    process = server.sessions[-1]
    unlike = left.successor(listen, environment=left.environment | other)
    unlike.adopt_runs(server.state("first"))
    assert unlike.sessions == []
    assert process.existence() is Existence.GONE
    assert "Ended 2 processes" in capsys.readouterr().out


def test_another_server_on_the_port_is_not_adopted(server: CodeServer, home: Path) -> None:
    until(server.check)
    listening = server.listen
    other = CodeServer(
        DEFINITIONS_MODULE, listening, home / "other", dict(os.environ), steady_clock
    )
    assert server_id(listening) is not None
    try:
        for _ in range(5):
            assert not other.check()
            time.sleep(0.2)
    finally:
        other.stop()
