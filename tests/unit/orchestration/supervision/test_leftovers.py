"""The processes of a command end with it, even if it is killed."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import psutil
import pytest

from dagster_leasehold.lease_store.process_identity import ProcessIdentity
from dagster_leasehold.orchestration.supervision import leftovers
from tests.waiting import wait_for

GONE_S = 30.0
COMMAND = """
import os, sys, time
from pathlib import Path
from dagster_leasehold.orchestration.supervision.child_processes import ChildProcess
from dagster_leasehold.orchestration.supervision.leftovers import home_lock
home = Path(sys.argv[1])
sleeper = ChildProcess(
    "the sleeper",
    [sys.executable, "-c", "import time; time.sleep(600)"],
    log=home / "sleeper.log",
    environment=dict(os.environ),
)
with home_lock(home), sleeper:
    print("at work", flush=True)
    sys.stdin.read()
"""


def sleepers(home: Path) -> list[psutil.Process]:
    """The processes whose output goes to a file of the home."""
    session: list[psutil.Process] = []
    for process in psutil.process_iter():
        try:
            if any(str(home) in file.path for file in process.open_files()):
                session.append(process)
        except psutil.Error:
            continue
    return session


@contextmanager
def at_work(home: Path) -> Generator[subprocess.Popen[bytes]]:
    """A command with a child, which ends when its input is closed."""
    command = subprocess.Popen(
        [sys.executable, "-c", COMMAND, home], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    with command:
        assert command.stdout
        assert command.stdout.readline() == b"at work\n"
        yield command


wait_until = partial(wait_for, "the sleepers", timeout_s=GONE_S)


def wait_until_gone(home: Path) -> None:
    wait_until(lambda: not sleepers(home))


def test_processes_of_a_home_are_counted_with_their_memory(tmp_path: Path) -> None:
    assert leftovers.usages(tmp_path) == []
    with at_work(tmp_path) as command:
        own, child = leftovers.usages(tmp_path)
        assert (own.name, own.processes, child.processes) == ("leasehold", 1, 1)
        # A process that is just being loaded has a page or two.
        wait_until(lambda: all(each.memory_bytes > 100_000 for each in leftovers.usages(tmp_path)))
        command.communicate()
    wait_until_gone(tmp_path)
    assert leftovers.usages(tmp_path) == []


@pytest.mark.parametrize("killed", [True, False], ids=["killed", "ended"])
def test_a_child_ends_with_its_command(tmp_path: Path, killed: bool) -> None:
    with at_work(tmp_path) as command:
        assert sleepers(tmp_path)
        if killed:
            command.send_signal(signal.SIGKILL)
        command.communicate()
        wait_until_gone(tmp_path)


def test_the_guard_waits_until_a_killed_command_has_ended(tmp_path: Path) -> None:
    """Method: its input is closed early, as the system does while it takes a process down."""
    with at_work(tmp_path) as command:
        guard = subprocess.Popen(
            [
                sys.executable,
                "-m",
                leftovers.__name__,
                tmp_path,
                str(ProcessIdentity.of(command.pid)),
            ],
            stdin=subprocess.DEVNULL,
        )
        with pytest.raises(subprocess.TimeoutExpired):
            guard.wait(1)
        assert sleepers(tmp_path)
        command.send_signal(signal.SIGKILL)
        command.communicate()
        assert guard.wait(GONE_S) == 0
        wait_until_gone(tmp_path)
