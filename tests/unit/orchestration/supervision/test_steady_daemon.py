from __future__ import annotations

import subprocess
from pathlib import Path
from threading import Event
from typing import Any

import dagster as dg
import pytest
from dagster._core.definitions.run_request import InstigatorType
from dagster._core.remote_origin import (
    ManagedGrpcPythonEnvCodeLocationOrigin,
    RemoteRepositoryOrigin,
)
from dagster._core.scheduler.instigation import (
    InstigatorState,
    InstigatorStatus,
    SensorInstigatorData,
)
from dagster._core.types.loadable_target_origin import LoadableTargetOrigin

from dagster_leasehold.orchestration.settings import DEFINITIONS_MODULE
from dagster_leasehold.orchestration.supervision import steady_daemon
from dagster_leasehold.orchestration.supervision.forking_server import PROGRAM
from dagster_leasehold.orchestration.supervision.steady_daemon import (
    HUNG_S,
    ClockWatch,
    SteadyServer,
    delete_future_ticks,
)


class FakeProcess:
    """A process that runs until a test stops it."""

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
        self.server.check()


@pytest.fixture
def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Scene:
    return Scene(tmp_path, monkeypatch)


@pytest.mark.parametrize(("agents", "program"), [("false", PROGRAM), ("true", "dagster")])
def test_the_code_server_launches_forked_runs(
    agents: str, program: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LEASEHOLD_AGENTS", agents)
    [process] = Scene(tmp_path, monkeypatch).started
    assert process.command[1:5] == ["-m", program, "api", "grpc"]


def test_the_workspace_leads_to_the_socket_of_the_server(scene: Scene, tmp_path: Path) -> None:
    (process,) = scene.started
    socket = str(tmp_path / "code.sock")
    assert process.command[process.command.index("--socket") + 1] == socket
    assert f"socket: {socket}\n" in scene.server.workspace
    assert "location_name: leasehold\n" in scene.server.workspace


def test_an_ended_server_is_restarted_after_growing_waits(scene: Scene) -> None:
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


def test_a_hanging_server_is_ended_and_a_loading_one_is_not(scene: Scene) -> None:
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


class Clocks:
    """Both clocks of a host."""

    def __init__(self) -> None:
        self.wall_s, self.steady_s = 1_000_000.0, 50.0
        self.watch = ClockWatch(lambda: self.wall_s, lambda: self.steady_s)

    def set_back_s(self, *, set_by_s: float) -> float:
        self.wall_s += 5.0 + set_by_s
        self.steady_s += 5.0
        return self.watch.set_back_s()


def test_a_clock_that_was_set_back_is_detected_once() -> None:
    clocks = Clocks()
    for set_by_s in (0.0, 3_600.0, -0.4, -0.4):
        assert clocks.set_back_s(set_by_s=set_by_s) == 0.0
    assert clocks.set_back_s(set_by_s=-5_400.0) == pytest.approx(5_400.0)
    assert clocks.set_back_s(set_by_s=0.0) == 0.0


@pytest.mark.parametrize(("ahead_s", "stays"), [(-5.0, True), (5_400.0, False)])
def test_ticks_with_future_times_are_deleted(ahead_s: float, stays: bool) -> None:
    target = LoadableTargetOrigin(module_name=DEFINITIONS_MODULE)
    location = ManagedGrpcPythonEnvCodeLocationOrigin(target, "leasehold")
    sensor = RemoteRepositoryOrigin(location, "__repository__").get_instigator_origin("launching")
    at_s = 1_000_000.0 + ahead_s
    data = SensorInstigatorData(at_s, cursor="until 7", last_tick_start_timestamp=at_s)
    state = InstigatorState(sensor, InstigatorType.SENSOR, InstigatorStatus.RUNNING, data)
    with dg.instance_for_test() as instance:
        instance.add_instigator_state(state)
        delete_future_ticks(instance, 1_000_000.0)
        (after,) = instance.all_instigator_state()
    assert isinstance(after.instigator_data, SensorInstigatorData)
    assert (after.instigator_data.last_tick_timestamp is not None) is stays
    assert (after.instigator_data.last_tick_start_timestamp is not None) is stays
    assert after.instigator_data.cursor == "until 7"
    assert after.status is InstigatorStatus.RUNNING


def test_the_daemon_restarts_if_the_clock_was_set_back_and_otherwise_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    set_back, began = Event(), list[int]()

    def run() -> None:
        began.append(len(began))
        if len(began) < 3:
            set_back.set()
        raise (SystemExit if len(began) == 1 else KeyboardInterrupt)

    monkeypatch.setattr(steady_daemon, "delete_future_ticks", lambda *_: None)
    with dg.instance_for_test(), pytest.raises(KeyboardInterrupt):
        steady_daemon.run_daemon(run, set_back)
    assert began == [0, 1, 2]
