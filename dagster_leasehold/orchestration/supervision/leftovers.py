"""The processes that a command of a home started, and their end if the command was killed.

As a program (`python -m` this module, with a home and the identity of the command that starts it),
it waits until its standard input closes. If the command has not said goodbye there, it was killed,
and its leftover processes are ended.
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
"""The folders of a home with logs of processes."""


def noted_children(home: Path) -> Iterator[tuple[Path, ChildNote]]:
    """Yield the notes of the processes that commands have started on a home."""
    for folder in LOG_FOLDERS:
        for path in sorted(home.glob(f"{folder}/*{NOTE_SUFFIX}")):
            if (note := ChildNote.read(path)) is not None:
                yield path, note


def commands_at_work(home: Path) -> set[ProcessIdentity]:
    """Return the commands that have started processes on a home, without agents among these."""
    notes = [note for _, note in noted_children(home)]
    parents = {note.parent for note in notes} - {note.process for note in notes}
    return {each for each in parents if each.existence() is Existence.ALIVE}


@dataclass(frozen=True, slots=True)
class Usage:
    """The processes of one kind on a home, and their memory.

    Attributes:
        name: of the started process, with its descendants.
        processes: their number.
        memory_bytes: the sum of their proportional sizes; of their resident sizes where the system
            does not tell those.
    """

    name: str
    processes: int
    memory_bytes: int


def usages(home: Path) -> list[Usage]:
    """Return the processes of a home on this host, the command that started them first."""
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
    """End the processes on a home whose parents are gone; return their names."""
    ended: list[str] = []
    for path, note in noted_children(home):
        if note.parent.existence() is not Existence.GONE:
            continue
        if end_session(note.process, note.stop_timeout_s):
            ended.append(note.name)
        # Another command might have started its own meanwhile, and noted that.
        if ChildNote.read(path) == note:
            path.unlink(missing_ok=True)
    return ended


@contextmanager
def running_alone(home: Path) -> Generator[None]:
    """Hold a home for one `leasehold dev` at a time.

    Processes that an earlier command left are ended first, and the block's own are ended after
    it, even if this process is killed.

    Raises:
        InvalidSetting: another one is at work on it, or it cannot be made.
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
    # The system closes the files of a killed process a moment before the process is gone.
    while command.existence() is Existence.ALIVE:
        time.sleep(POLL_S)
    end_leftovers(home)


if __name__ == "__main__":
    _guard(Path(sys.argv[1]), ProcessIdentity.parse(sys.argv[2]))
