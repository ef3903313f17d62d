"""The process that forks a code server's runs, and the server's end of the pipe to it."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from queue import Empty
from typing import Any

import pytest

from dagster_leasehold.orchestration.supervision.forking_server import (
    Forker,
    Messages,
    Stop,
    fork_runs,
)

END_S = 20.0


def serve(pipe: Connection) -> None:
    """Fork runs; in a run, do its work."""
    import numpy  # noqa: F401

    fork_runs(pipe)()


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
def forking(ended: list[int]) -> Iterator[tuple[Connection, BaseProcess]]:
    processes = multiprocessing.get_context("spawn")
    own, other = processes.Pipe()
    process = processes.Process(target=serve, args=(other,))
    process.start()
    other.close()
    yield own, process
    process.kill()
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


def test_a_run_is_forked_and_tells_that_it_began_and_how_it_ended(forking: Any) -> None:
    pipe, process = forking
    forker = Forker(pipe)
    first, second = (Run(forker, tell, what) for what in ("first", "second"))
    assert first.message() == ("first", process.pid)
    assert second.message() == ("second", process.pid)
    assert (first.end(), second.end()) == (0, 0)


def test_a_killed_run_ends_with_its_signal(forking: Any) -> None:
    pipe, _ = forking
    run = Run(Forker(pipe), wait_for_stop)
    os.kill(run.message(), signal.SIGKILL)
    assert run.end() == -signal.SIGKILL


def test_a_run_is_interrupted_and_only_this_one(forking: Any) -> None:
    pipe, _ = forking
    forker = Forker(pipe)
    stopped, other = Run(forker, wait_for_stop), Run(forker, wait_for_stop)
    assert stopped.message() != other.message()
    stopped.stop.set()
    assert stopped.end() == 7
    assert other.process.is_alive()
    other.stop.set()
    assert other.end() == 7
    other.stop.set()  # Dagster's server might, a moment after the end


def test_a_signal_to_the_whole_group_ends_runs_and_not_what_forks_them(forking: Any) -> None:
    pipe, process = forking
    forker = Forker(pipe)
    run = Run(forker, wait_for_stop)
    pid = run.message()
    for each in (process.pid, pid):
        os.kill(each, signal.SIGTERM)
    assert run.end() == -signal.SIGTERM
    assert Run(forker, tell, "next").message() == ("next", process.pid)


def test_runs_draw_different_numbers(forking: Any) -> None:
    pipe, _ = forking
    forker = Forker(pipe)
    first, second = Run(forker, draw).message(), Run(forker, draw).message()
    assert first[0] != second[0]
    assert first[1] != second[1]


def test_a_run_continues_when_what_forked_it_dies_and_the_server_ends(
    forking: Any, ended: list[int], tmp_path: Path
) -> None:
    pipe, process = forking
    run = Run(Forker(pipe), continue_after, str(tmp_path / "go"))
    assert run.message() == "began"
    process.kill()
    until(lambda: ended == [1])
    (tmp_path / "go").touch()
    until(lambda: (tmp_path / "go").read_text() == "continued")


def test_what_forks_ends_with_its_server_and_runs_continue(tmp_path: Path) -> None:
    processes = multiprocessing.get_context("spawn")
    own, other = processes.Pipe()
    process = processes.Process(target=serve, args=(other,))
    process.start()
    other.close()
    path = str(tmp_path / "go")
    own.send((0, (continue_after, [path, Messages(), Stop()])))
    assert own.recv() == (0, "began", None)
    own.close()
    until(lambda: process.exitcode == 0)
    (tmp_path / "go").touch()
    until(lambda: (tmp_path / "go").read_text() == "continued")
