from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest

from dagster_leasehold.orchestration.settings import DEFINITIONS_MODULE
from dagster_leasehold.orchestration.supervision import steady_daemon
from dagster_leasehold.orchestration.supervision.steady_daemon import HUNG_S, SteadyServer


class FakeProcess:
    """A process that runs until it is told otherwise."""

    def __init__(self, command: list[str], **named: Any) -> None:
        del named
        self.command = command
        self.code: int | None = None

    def poll(self) -> int | None:
        return self.code

    def kill(self) -> None:
        self.code = -9


class Scene:
    """A server whose processes, answers and time are the test's."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.started: list[FakeProcess] = []
        self.now, self.answers = 1000.0, True
        # First of all, since it loads Dagster, which starts a process as it is loaded.
        monkeypatch.setattr("dagster._grpc.client.DagsterGrpcClient.heartbeat", self.heartbeat)
        monkeypatch.setattr(subprocess, "Popen", self.start)
        monkeypatch.setattr(steady_daemon, "steady_clock", lambda: self.now)
        self.server = SteadyServer(DEFINITIONS_MODULE, folder)

    def start(self, command: list[str], **named: Any) -> FakeProcess:
        self.started.append(FakeProcess(command, **named))
        return self.started[-1]

    def heartbeat(self, *arguments: Any) -> None:
        if not self.answers:
            raise ConnectionError(*arguments)

    def look_after(self, seconds: float) -> None:
        self.now += seconds
        self.server.look()


@pytest.fixture
def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Scene:
    return Scene(tmp_path, monkeypatch)


def test_the_workspace_leads_to_the_socket_of_the_server(scene: Scene, tmp_path: Path) -> None:
    (process,) = scene.started
    socket = str(tmp_path / "code.sock")
    assert process.command[process.command.index("--socket") + 1] == socket
    assert f"socket: {socket}\n" in scene.server.workspace
    assert "location_name: leasehold\n" in scene.server.workspace


def test_a_server_that_ended_is_started_again_after_waits_that_grow(scene: Scene) -> None:
    scene.started[-1].code = 1
    scene.look_after(5.0)
    assert len(scene.started) == 1
    scene.look_after(1.5)
    assert len(scene.started) == 2
    scene.started[-1].code = 1
    scene.look_after(5.0)
    scene.look_after(1.5)
    assert len(scene.started) == 2
    scene.look_after(1.0)
    assert len(scene.started) == 3


def test_a_server_that_hangs_is_ended_and_one_that_loads_is_not(scene: Scene) -> None:
    scene.answers = False
    scene.look_after(HUNG_S - 1.0)
    assert scene.started[0].code is None
    scene.answers = True
    scene.look_after(5.0)
    scene.answers = False
    scene.look_after(HUNG_S)
    assert scene.started[0].code is None
    scene.look_after(1.0)
    assert scene.started[0].code == -9
    scene.look_after(5.0)
    scene.look_after(5.0)
    assert len(scene.started) == 2


def test_a_server_that_ends_while_it_loads_is_not_waited_for(scene: Scene) -> None:
    scene.answers, scene.started[0].code = False, 1
    scene.server.wait_until_ready()
