"""Child processes: nothing of them outlives their block, however they behave."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest

from dagster_leasehold.orchestration.supervision.child_processes import ChildProcess
from dagster_leasehold.orchestration.supervision.interrupts import ended_by_signals
from tests.waiting import wait_for

# A child that ignores SIGTERM, with a grandchild that does too; both write their numbers.
STUBBORN = """
import os, signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
os.fork()
open(sys.argv[1], 'a').write(f'{os.getpid()}\\n')
time.sleep(600)
"""


until = partial(wait_for, "the processes", timeout_s=20)


def child(program: str, tmp_path: Path, stop_timeout_s: float = 0.5) -> ChildProcess:
    return ChildProcess(
        "the child",
        [sys.executable, "-c", program, str(tmp_path / "pids")],
        log=tmp_path / "logs" / "child.log",
        environment=dict(os.environ),
        stop_timeout_s=stop_timeout_s,
    )


def test_a_stubborn_child_and_its_child_are_killed(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    with child(STUBBORN, tmp_path) as running:
        until(lambda: pids.exists() and len(pids.read_text().splitlines()) == 2)
        assert running.exit_code() is None
        numbers = [int(line) for line in pids.read_text().splitlines()]
        assert all(psutil.pid_exists(number) for number in numbers)
    until(lambda: not any(psutil.pid_exists(number) for number in numbers))


def test_children_end_when_the_block_fails(tmp_path: Path) -> None:
    numbers: set[int] = set()
    # A server of another test may be a child of this process, too.
    others = {process.pid for process in psutil.Process().children()}

    def interrupted() -> None:
        with child("import time; time.sleep(600)", tmp_path) as it:
            numbers.update({process.pid for process in psutil.Process().children()} - others)
            assert it.exit_code() is None
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert numbers
    assert not any(psutil.pid_exists(number) for number in numbers)


def test_an_interrupt_while_it_starts_leaves_no_child(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Goal: between the start of a child and the moment that its number is noted down."""
    started: list[subprocess.Popen[bytes]] = []
    real = subprocess.Popen

    def interrupted(*arguments: Any, **options: Any) -> subprocess.Popen[bytes]:
        started.append(real(*arguments, **options))
        os.kill(os.getpid(), signal.SIGTERM)
        return started[0]

    monkeypatch.setattr(subprocess, "Popen", interrupted)
    with (
        pytest.raises(KeyboardInterrupt),
        ended_by_signals(),
        child("import time; time.sleep(600)", tmp_path, stop_timeout_s=20),
    ):
        pytest.fail("the block is not entered")
    assert [process.poll() for process in started] == [-signal.SIGTERM]


def test_the_exit_and_the_last_output_of_a_child_are_known(tmp_path: Path) -> None:
    with child("import sys; print('so long'); sys.exit(7)", tmp_path) as it:
        until(lambda: it.exit_code() is not None)
        assert it.exit_code() == 7
        assert it.last_line() == "so long"
