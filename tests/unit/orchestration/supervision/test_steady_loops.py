from __future__ import annotations

import ast
import time
from collections.abc import Generator, Iterator
from importlib import import_module
from pathlib import Path
from threading import Event
from typing import Any, cast

import pytest
from dagster._daemon.daemon import IntervalDaemon

from dagster_leasehold.orchestration.supervision.steady_loops import LOOPS, wait_by

INTERVAL_S = 1.0


class Looking(IntervalDaemon[Any]):
    """A loop of Dagster's that counts its looks."""

    looks = 0

    @classmethod
    def daemon_type(cls) -> str:
        return "LOOKING"

    def run_iteration(self, workspace_process_context: object) -> Iterator[None]:
        self.looks += 1
        yield


class Shutdown(Event):
    """Waits of no time, each of which lets the clocks of a host go on by half a second."""

    def __init__(self, clocks: dict[str, float]) -> None:
        super().__init__()
        self.clocks = clocks

    def wait(self, timeout: float | None = None) -> bool:
        for name in self.clocks:
            self.clocks[name] += timeout or 0.0
        return False


@pytest.fixture(autouse=True)
def loops() -> Generator[None]:
    """Dagster's modules have their clock back at the end."""
    yield
    for name in LOOPS:
        vars(import_module(name))["time"] = time


def looks_after_a_step_back(clocks: dict[str, float]) -> int:
    """Return how often a loop looks within ten seconds of its host, whose clock is set back."""
    daemon = Looking(INTERVAL_S)
    loop = daemon.core_loop(cast(Any, None), Shutdown(clocks))
    next(loop)
    clocks["wall"] -= 3_600.0
    end_s = clocks["steady"] + 10.0
    while clocks["steady"] < end_s:
        next(loop)
    return daemon.looks


def test_a_loop_looks_on_after_the_clock_was_set_back(monkeypatch: pytest.MonkeyPatch) -> None:
    clocks = {"wall": 10_000.0, "steady": 5.0}
    monkeypatch.setattr(time, "time", lambda: clocks["wall"])
    assert looks_after_a_step_back(clocks) == 1, "Dagster itself waits for an hour"
    wait_by(lambda: clocks["steady"])
    assert looks_after_a_step_back(clocks) > 5


@pytest.mark.parametrize("name", LOOPS)
def test_dagster_uses_the_time_of_its_loops_for_waits_alone(name: str) -> None:
    """A release that notes a time of day by it would note one that no clock shows."""
    source = import_module(name).__file__
    assert source is not None
    tree = ast.parse(Path(source).read_text("utf-8"))
    used = {
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and node.value.id == "time"
    }
    assert used <= {"time", "sleep"}
