"""The processes that `leasehold` commands started on a home, and their end if a command is killed.

`dev`, `stop` and `status` use it. As a program (`python -m` this module, with a home and the
identity of the command), it is the guard of a command: it waits until its standard input closes. If
it has not received `GOODBYE` there, the command was killed, and the guard ends its processes.
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
from dagster_leasehold.orchestration.supervision.interrupts import held_back

LOCK_FILE = "running.lock"
GOODBYE = b"goodbye"
POLL_S = 0.05
LOG_FOLDERS = (".", "nodes/*", "nodes/*/spark", "spark")
"""The folders of a home where child processes have their logs and notes."""


def noted_children(home: Path) -> Iterator[tuple[Path, ChildNote]]:
    """Yield the path and content of the notes of all child processes on a home."""
    for folder in LOG_FOLDERS:
        for path in sorted(home.glob(f"{folder}/*{NOTE_SUFFIX}")):
            if (note := ChildNote.read(path)) is not None:
                yield path, note


def commands_at_work(home: Path) -> set[ProcessIdentity]:
    """Return the live commands with child processes, except agents, which are children of `dev`."""
    notes = [note for _, note in noted_children(home)]
    parents = {note.parent for note in notes} - {note.process for note in notes}
    return {each for each in parents if each.existence() is Existence.ALIVE}


@dataclass(frozen=True, slots=True)
class Usage:
    """The processes of one kind on a home, and their memory.

    Attributes:
        name: the name of the child process; its descendants are included.
        processes: the number of processes.
        memory_bytes: the sum of their proportional set sizes, or of their resident set sizes if
            the system does not provide the former.
    """

    name: str
    processes: int
    memory_bytes: int


def usages(home: Path) -> list[Usage]:
    """Return the processes of a home on this host; the commands that started them come first."""
    parts: dict[str, list[psutil.Process]] = {}
    for command in commands_at_work(home):
        with suppress(psutil.NoSuchProcess):
            parts.setdefault("leasehold", []).append(psutil.Process(command.pid))
    for _, note in noted_children(home):
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
        return 0  # it has just ended, or is another user's
    return getattr(memory, "pss", memory.rss)


def end_leftovers(home: Path) -> list[str]:
    """End the child processes on a home whose parents are gone; return their names."""
    names: list[str] = []
    for path, note in noted_children(home):
        if note.parent.existence() is not Existence.GONE:
            continue
        if end_session(note.process, note.stop_timeout_s):
            names.append(note.name)
        # Another command can have written its own note to this path meanwhile.
        if ChildNote.read(path) == note:
            path.unlink(missing_ok=True)
    return names


@contextmanager
def running_alone(home: Path) -> Generator[None]:
    """Lock a home, which one `leasehold dev` can use at a time.

    It first ends the processes that a killed command left running. If this process is killed within
    the block, a guard ends the processes that the block has started.

    Raises:
        InvalidSetting: another command uses the home, or the folder cannot be created.
    """
    try:
        home.mkdir(parents=True, exist_ok=True)
        lock = FileLock(home / LOCK_FILE, timeout=0)
        lock.acquire()
    except Timeout:
        raise InvalidSetting(
            f"Another `leasehold dev` is at work in {home}: stop it with "
            "`leasehold stop`, or name another folder with --home."
        ) from None
    except OSError as error:
        raise InvalidSetting(f"The home {home} cannot be used: {error.strerror}.") from None
    try:
        for name in end_leftovers(home):
            say(f"Ended {name}, which an earlier command had left running.")
        with _guarded(home):
            yield
    finally:
        lock.release()


@contextmanager
def _guarded(home: Path) -> Generator[None]:
    """Run the guard during the block."""
    command = ProcessIdentity.of(os.getpid())
    with held_back():
        guard = subprocess.Popen(
            [sys.executable, "-m", __name__, str(home.absolute()), str(command)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
    try:
        yield
    finally:
        guard.communicate(GOODBYE)


def _guard(home: Path, command: ProcessIdentity | None) -> None:
    if sys.stdin.buffer.read() == GOODBYE or command is None:
        return
    # The system closes the files of a killed process shortly before it removes the process.
    while command.existence() is Existence.ALIVE:
        time.sleep(POLL_S)
    end_leftovers(home)


if __name__ == "__main__":
    _guard(Path(sys.argv[1]), ProcessIdentity.parse(sys.argv[2]))
