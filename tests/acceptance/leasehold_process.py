"""Runs `leasehold` in a separate process, as a user does, and checks its output and its
leftovers.
"""

from __future__ import annotations

import base64
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from dagster_leasehold.orchestration.settings import Settings
from tests.waiting import wait_for

COMMAND = (sys.executable, "-m", "dagster_leasehold.orchestration.command_line")
DEMO = (sys.executable, str(Path(__file__).parents[2] / "examples" / "demo.py"))
PREFIX = "LEASEHOLD_"
END_S = 240.0
"""A Spark that is starting is waited for before it is stopped."""


@dataclass(frozen=True)
class Finished:
    """A command that has ended."""

    code: int
    out: str
    err: str


def environment() -> dict[str, str]:
    """The environment of a command, without the settings of the user who runs the tests."""
    return {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(PREFIX) and name != "DAGSTER_HOME"
    }


def leasehold(
    *arguments: object,
    folder: Path,
    timeout_s: float = 60.0,
    program: Sequence[object] = COMMAND,
    **variables: str,
) -> Finished:
    """Run a command to its end in a working directory, with more environment."""
    done = subprocess.run(
        [*map(str, program), *(str(argument) for argument in arguments)],
        cwd=folder,
        env=environment() | variables,
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        timeout=timeout_s,
        check=False,
    )
    return Finished(done.returncode, done.stdout, done.stderr)


class Running:
    """A command at work; its output so far is in a file."""

    def __init__(self, process: subprocess.Popen[bytes], output: Path) -> None:
        self._process = process
        self._output = output

    @property
    def pid(self) -> int:
        """The number of its process."""
        return self._process.pid

    @property
    def text(self) -> str:
        """All that it has printed so far."""
        return self._output.read_text(errors="replace")

    def until(self, reached: Callable[[], bool], timeout_s: float) -> None:
        """Wait until something is so."""
        wait_for(
            "what a command does",
            reached,
            timeout_s,
            unless=lambda: self._process.poll() is not None,
            shown=lambda: self.text,
        )

    def until_ended(self, timeout_s: float) -> int:
        """Wait until it has ended by itself; the exit code."""
        return self._process.wait(timeout_s)

    def end(self, number: signal.Signals, timeout_s: float = END_S) -> int:
        """Send a signal and wait; the exit code."""
        self._process.send_signal(number)
        return self._process.wait(timeout_s)


@contextmanager
def running(
    *arguments: object, folder: Path, program: Sequence[object] = COMMAND, **variables: str
) -> Iterator[Running]:
    """A command at work in a working directory, with more environment; it ends with the block."""
    output = folder / "output.txt"
    with output.open("wb") as file:
        process = subprocess.Popen(
            [*map(str, program), *(str(argument) for argument in arguments)],
            cwd=folder,
            env=environment() | variables,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        yield Running(process, output)
    finally:
        if process.poll() is None:
            process.terminate()
            try:
                process.wait(END_S)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


def processes_of(home: Path) -> list[str]:
    """Command lines of the processes that work on a home."""
    commands: list[str] = []
    for process in psutil.process_iter():
        try:
            if process.pid == os.getpid() or process.status() == psutil.STATUS_ZOMBIE:
                continue
            if process.environ().get("LEASEHOLD_HOME") == str(home) or str(home) in " ".join(
                process.cmdline()
            ):
                commands.append(" ".join(process.cmdline())[:200])
        except psutil.Error:
            continue
    return commands


def sessions_of(home: Path, node: str) -> list[int]:
    """The process numbers of a node's code servers, as its agent noted them."""
    with suppress(OSError, ValueError):
        state = json.loads((Settings(home=home).node_folder(node) / "agent.json").read_text())
        return [int(note.split("|")[1]) for note in state["sessions"]]
    return []


def agents_of(home: Path, node: str) -> list[psutil.Process]:
    """The processes of a node's agent."""
    return [process for process in psutil.process_iter() if _is_agent(process, node, str(home))]


def kill_node(home: Path, node: str) -> None:
    """Kill -9 a node's agent, its code server and all of its runs at once."""
    sessions = set(sessions_of(home, node))
    agents = {process.pid for process in agents_of(home, node)}
    assert sessions, "its agent has noted a code server"
    assert agents, "its agent runs"
    for process in psutil.process_iter():
        with suppress(psutil.Error, OSError):
            if process.pid in agents or os.getsid(process.pid) in sessions:
                os.kill(process.pid, signal.SIGKILL)


def _is_agent(process: psutil.Process, node: str, home: str) -> bool:
    with suppress(psutil.Error):
        line = process.cmdline()
        own = home in line or process.environ().get("LEASEHOLD_HOME") == home
        return own and "node" in line and "--name" in line and node in line
    return False


@contextmanager
def standing_still(process: psutil.Process) -> Iterator[None]:
    """A process that is suspended for the block."""
    process.suspend()
    try:
        yield
    finally:
        process.resume()


def assert_nothing_runs(home: Path) -> None:
    """No process works on the home, at the latest after a moment."""
    wait_for(
        "the end of all processes",
        lambda: not processes_of(home),
        10,
        shown=lambda: processes_of(home),
    )


@dataclass(frozen=True)
class CatRecord:
    """A line of `leasehold cat`."""

    shard: str
    cursor: int
    value: bytes


def cat(home: Path) -> list[CatRecord]:
    """All committed records of the demo's stream, in the order of `leasehold cat`."""
    done = leasehold("cat", "demo", "--home", home, folder=home.parent)
    assert done.code == 0, done.err
    records: list[CatRecord] = []
    # Only a line feed ends a line: a carriage return within a value is escaped in JSON.
    for line in done.out.removesuffix("\n").split("\n") if done.out else []:
        row = json.loads(line)
        assert set(row) - {"value_base64", "key_base64"} <= {
            *("shard_id", "cursor", "event_time", "key", "value", "attributes")
        }
        value = row["value"].encode() if "value" in row else base64.b64decode(row["value_base64"])
        records.append(CatRecord(row["shard_id"], int(row["cursor"]), value))
    return records
