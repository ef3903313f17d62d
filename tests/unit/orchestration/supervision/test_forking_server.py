"""The process that forks a code server's runs, and the server's end of the pipe to it."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from queue import Empty
from typing import Any

import pytest

from dagster_leasehold.orchestration.supervision import forking_server
from dagster_leasehold.orchestration.supervision.forking_server import (
    Forker,
    Messages,
    Stop,
    fork_runs,
)

END_S = 20.0


def serve(pipe: Connection) -> None:
    """Fork runs; in a run, do its work."""
    forking_server.RUN_MODULES = ("numpy",)
    fork_runs(pipe)()


class Forking:
    """The process that forks runs, and the server's end of the pipe to it."""

    def __init__(self) -> None:
        processes = multiprocessing.get_context("spawn")
        self.pipe, other = processes.Pipe()
        self.process = processes.Process(target=serve, args=(other,))
        self.process.start()
        other.close()

    def end(self) -> None:
        self.process.kill()
        until(lambda: not self.process.is_alive())


def until(reached: Callable[[], object]) -> None:
    deadline = time.monotonic() + END_S
    while not reached():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.fixture
def ended(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The exit codes with which the server, here the process of the tests, wanted to end."""
    codes: list[int] = []
    monkeypatch.setattr(os, "_exit", codes.append)
    return codes


@pytest.fixture
def forking(ended: list[int]) -> Iterator[Forking]:
    started = Forking()
    yield started
    if not ended:
        started.end()
        until(lambda: ended)


class Run:
    """A run's process, started as Dagster's server starts one."""

    def __init__(self, forker: Forker, target: Callable[..., object], *args: object) -> None:
        self.messages, self.stop = forker.Queue(), forker.Event()
        self.process = forker.Process(target=target, args=[*args, self.messages, self.stop])
        self.process.start()

    def message(self) -> Any:
        heard: list[Any] = []

        def hear() -> bool:
            try:
                heard.append(self.messages.get_nowait())
            except Empty:
                assert self.process.is_alive()
            return bool(heard)

        until(hear)
        return heard[0]

    def end(self) -> int | None:
        until(lambda: not self.process.is_alive())
        return self.process.exitcode


def tell(what: object, messages: Any, _stop: object) -> None:
    messages.put((what, os.getppid()))


def draw(messages: Any, _stop: object) -> None:
    import random

    import numpy as np

    messages.put((np.random.random(), random.random()))


def wait_for_stop(messages: Any, stop: Any) -> None:
    assert isinstance(stop, type(multiprocessing.Event()))
    messages.put(os.getpid())
    try:
        time.sleep(END_S)
    except KeyboardInterrupt:
        raise SystemExit(7) from None


def continue_after(file: str, messages: Any, _stop: object) -> None:
    messages.put("began")
    until(Path(file).exists)
    messages.put("to a server that is gone")
    Path(file).write_text("continued")


def test_a_forked_run_reports_its_start_and_its_end(forking: Forking) -> None:
    forker = Forker(forking.pipe)
    first, second = (Run(forker, tell, what) for what in ("first", "second"))
    heard = [first.message(), second.message()]
    assert heard == [("first", forking.process.pid), ("second", forking.process.pid)]
    assert (first.end(), second.end()) == (0, 0)


def test_a_killed_run_ends_with_its_signal(forking: Forking) -> None:
    run = Run(Forker(forking.pipe), wait_for_stop)
    os.kill(run.message(), signal.SIGKILL)
    assert run.end() == -signal.SIGKILL


def test_interrupting_a_run_interrupts_no_other(forking: Forking) -> None:
    forker = Forker(forking.pipe)
    stopped, other = Run(forker, wait_for_stop), Run(forker, wait_for_stop)
    assert stopped.message() != other.message()
    stopped.stop.set()
    assert stopped.end() == 7
    assert other.process.is_alive()
    other.stop.set()
    assert other.end() == 7
    other.stop.set()  # Dagster's server might, a moment after the end


def test_a_signal_to_the_process_group_ends_runs_and_not_the_forking_server(
    forking: Forking,
) -> None:
    forker = Forker(forking.pipe)
    run = Run(forker, wait_for_stop)
    pid = run.message()
    for each in (forking.process.pid, pid):
        os.kill(each or 0, signal.SIGTERM)
    assert run.end() == -signal.SIGTERM
    assert Run(forker, tell, "next").message()[0] == "next"


def test_runs_draw_different_numbers(forking: Forking) -> None:
    forker = Forker(forking.pipe)
    first, second = Run(forker, draw).message(), Run(forker, draw).message()
    assert first[0] != second[0]
    assert first[1] != second[1]


def test_a_run_continues_after_the_forking_server_and_the_code_server_end(
    forking: Forking, ended: list[int], tmp_path: Path
) -> None:
    run = Run(Forker(forking.pipe), continue_after, str(tmp_path / "go"))
    assert run.message() == "began"
    forking.end()
    until(lambda: ended == [1])
    (tmp_path / "go").touch()
    until(lambda: (tmp_path / "go").read_text() == "continued")


def test_the_forking_server_ends_with_the_code_server_and_runs_continue(tmp_path: Path) -> None:
    forking, path = Forking(), str(tmp_path / "go")
    forking.pipe.send((0, (continue_after, [path, Messages(), Stop()])))
    assert forking.pipe.recv() == (0, "began", None)
    forking.pipe.close()
    until(lambda: forking.process.exitcode == 0)
    (tmp_path / "go").touch()
    until(lambda: (tmp_path / "go").read_text() == "continued")


MIRRORING = """
import os, sys
import psutil
from dagster._core.execution.compute_logs import mirror_stream_to_file
from dagster_leasehold.assets.dagster_internals import mirror_output_with
from dagster_leasehold.orchestration.supervision.forking_server import mirrored

mirror_output_with(mirrored)
with mirror_stream_to_file(sys.stdout, sys.argv[1]):
    print("of Python")
    os.system("echo of a program")
    print(psutil.Process().children())
print("outside")
"""


def test_the_output_of_a_run_is_captured_and_mirrored_without_processes(tmp_path: Path) -> None:
    captured = tmp_path / "captured"
    command = [sys.executable, "-c", MIRRORING, str(captured)]
    mirror = subprocess.run(command, capture_output=True, text=True, timeout=END_S, check=True)
    assert sorted(captured.read_text().splitlines()) == ["[]", "of Python", "of a program"]
    assert mirror.stdout == f"{captured.read_text()}outside\n"
