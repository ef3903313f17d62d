"""The processes that `leasehold` commands started on a home, and how they end after a kill.

As a program (`python -m` this module, with a home and the identity of the command), it is the guard
of a command: it waits until its standard input closes. If it closes without `GOODBYE`, the command
was killed, and the guard ends its processes.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil
from filelock import FileLock, Timeout

from dagster_leasehold.lease_store.errors import InvalidSetting
from dagster_leasehold.lease_store.process_identity import Existence, ProcessIdentity
from dagster_leasehold.lease_store.process_sessions import end_session, session_of
from dagster_leasehold.orchestration.presentation import say
from dagster_leasehold.orchestration.supervision.child_processes import NOTE_SUFFIX, ChildNote
from dagster_leasehold.orchestration.supervision.forked_programs import fork_of
from dagster_leasehold.orchestration.supervision.interrupts import deferred_signals

LOCK_FILE = "running.lock"
GOODBYE = b"goodbye"
POLL_S = 0.05
LOG_FOLDERS = (".", "nodes/*", "nodes/*/spark", "spark")
"""The folders of a home where child processes have their logs and notes."""


def child_notes(home: Path) -> Iterator[tuple[Path, ChildNote]]:
    """Yield the path and content of each child process's note on a home."""
    for folder in LOG_FOLDERS:
        for path in sorted(home.glob(f"{folder}/*{NOTE_SUFFIX}")):
            if (note := ChildNote.read(path)) is not None:
                yield path, note


def live_commands(home: Path) -> set[ProcessIdentity]:
    """Return the live commands with child processes, except agents that `dev` started."""
    notes = [note for _, note in child_notes(home)]
    parents = {note.parent for note in notes} - {note.process for note in notes}
    return {each for each in parents if each.existence() is Existence.ALIVE}


@dataclass(frozen=True, slots=True)
class Usage:
    """The processes of one kind on a home, and their memory.

    Attributes:
        name: the name of the child process; its descendants are included.
        memory_bytes: the sum of their proportional set sizes; if these are unknown, of resident set
            sizes.
    """

    name: str
    processes: int
    memory_bytes: int


def usages(home: Path) -> list[Usage]:
    """Return the processes of a home on this host, commands first."""
    parts: dict[str, list[psutil.Process]] = {}
    for command in live_commands(home):
        with suppress(psutil.NoSuchProcess):
            parts.setdefault("leasehold", []).append(psutil.Process(command.pid))
    for _, note in child_notes(home):
        if session := session_of(note.process):
            parts.setdefault(note.name, []).extend(session)
    return [
        Usage(name, len(processes), sum(map(_memory_bytes, processes)))
        for name, processes in parts.items()
    ]


def _memory_bytes(process: psutil.Process) -> int:
    try:
        memory = process.memory_full_info()
    except psutil.Error:
        return 0  # It has just ended, or belongs to another user.
    return getattr(memory, "pss", memory.rss)


def end_leftovers(home: Path) -> list[str]:
    """End the child processes on a home whose parents have ended; return their names."""
    names: list[str] = []
    for path, note in child_notes(home):
        if note.parent.existence() is not Existence.GONE:
            continue
        if end_session(note.process, note.stop_timeout_s):
            names.append(note.name)
        # Another command may have written its note to this path since.
        if ChildNote.read(path) == note:
            path.unlink(missing_ok=True)
    return names


@contextmanager
def home_lock(home: Path) -> Generator[None]:
    """Lock a home, so that only one `leasehold dev` uses it.

    Before the block, it ends the processes that a killed command left running. If this process is
    killed within the block, a guard ends the processes that the block started.

    Raises:
        InvalidSetting: another command uses the home, or the folder cannot be created.
    """
    try:
        home.mkdir(parents=True, exist_ok=True)
        lock = FileLock(home / LOCK_FILE, timeout=0)
        lock.acquire()
    except Timeout:
        raise InvalidSetting(
            f"Another `leasehold dev` runs in {home}: stop it with `leasehold stop`, or give "
            "another folder with --home."
        ) from None
    except OSError as error:
        raise InvalidSetting(f"The home {home} cannot be used: {error.strerror}.") from None
    try:
        for name in end_leftovers(home):
            say(f"Ended {name}, which an earlier command left running.")
        with _guarded(home):
            yield
    finally:
        lock.release()


@contextmanager
def _guarded(home: Path) -> Generator[None]:
    parent = ProcessIdentity.of(os.getpid())
    command = [sys.executable, "-m", __name__, str(home.absolute()), str(parent)]
    fork = fork_of(command, os.environ)
    with deferred_signals():
        guard = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            preexec_fn=fork,  # noqa: PLW1509
        )
    try:
        yield
    finally:
        guard.communicate(GOODBYE)


def _guard(home: Path, command: ProcessIdentity | None) -> None:
    if sys.stdin.buffer.read() == GOODBYE or command is None:
        return
    # The system closes a killed process's files shortly before it removes the process.
    while command.existence() is Existence.ALIVE:
        time.sleep(POLL_S)
    end_leftovers(home)


if __name__ == "__main__":
    _guard(Path(sys.argv[1]), ProcessIdentity.parse(sys.argv[2]))
