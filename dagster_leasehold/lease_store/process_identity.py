"""The identity of a process, and a check if that process still exists.

A process is identified by boot id, pid namespace, pid and start ticks since boot. None of them
depends on the wall clock, and two containers with the same host name differ. The start matters:

1. A container ends, and the next container gets the inode number of its namespace.
2. A process there gets the same pid.
3. Its start differs, so the first process is certainly gone.

Systems without `/proc` have neither boot id nor namespaces. There the host's name replaces both,
and the start comes from psutil. A step of the wall clock can shift it, so two seconds are
tolerated.
"""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Self

PROC = Path("/proc")
_STATE_FIELD, _START_FIELD = 0, 19
"""Indexes in `/proc/PID/stat` after the program's name."""
_ENDED = frozenset("ZXx")
_DIGITS_MAX = 18
_CENTISECONDS = 100
_TOLERANCE = 2 * _CENTISECONDS


class Existence(StrEnum):
    """The existence of a process; `UNKNOWN` if it cannot be checked from here."""

    ALIVE = "alive"
    GONE = "gone"
    UNKNOWN = "unknown"


def current_place(proc: Path = PROC) -> str:
    """Return the boot and pid namespace of this process, or the host on systems without `/proc`.

    It is empty if it cannot be determined.
    """
    if not (proc / "self").is_symlink():
        return f"host-{platform.node()}"
    try:
        if os.readlink(proc / "self") != str(os.getpid()):
            # This is the process table of another namespace.
            return ""
        boot = (proc / "sys/kernel/random/boot_id").read_text().strip()
        return f"{boot}.{(proc / 'self/ns/pid').stat().st_ino}"
    except OSError:
        return ""


def current_boot(proc: Path = PROC) -> str:
    """Return an identifier of this boot."""
    try:
        return (proc / "sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        import psutil

        return str(int(psutil.boot_time()))


@dataclass(frozen=True, slots=True)
class ProcessIdentity:
    """The identity of a process.

    Attributes:
        place: see `current_place`.
        started: its start in clock ticks since boot, or in hundredths of a second since 1970 on
            systems without `/proc`.
    """

    place: str
    pid: int
    started: int

    @classmethod
    def of(cls, pid: int, proc: Path = PROC) -> Self:
        """Return the identity of a running process; raise ProcessLookupError if there is none."""
        started = start_of(pid, proc)
        if started is None:
            raise ProcessLookupError(f"There is no process {pid}.")
        return cls(current_place(proc), pid, started)

    @classmethod
    def parse(cls, note: str) -> Self | None:
        """Return the identity in a text from `str`, or None for other texts."""
        place, _, numbers = note.partition("|")
        pid, _, started = numbers.partition("|")
        whole = all(
            number.isascii() and number.isdecimal() and len(number) <= _DIGITS_MAX
            for number in (pid, started)
        )
        return cls(place, int(pid), int(started)) if whole else None

    def __str__(self) -> str:
        return f"{self.place}|{self.pid}|{self.started}"

    @property
    def same_place(self) -> bool:
        """True if it has the boot and pid namespace of this process."""
        return self.place != "" and self.place == current_place()

    def existence(self, proc: Path = PROC) -> Existence:
        """Check if it exists; `UNKNOWN` for another place, or if the system hides it."""
        if not self.place or self.place != current_place(proc):
            return Existence.UNKNOWN
        try:
            started = start_of(self.pid, proc)
        except PermissionError:
            return Existence.UNKNOWN
        if started is None or not self.began_at(started) or _ended(self.pid, proc):
            return Existence.GONE
        return Existence.ALIVE

    def began_at(self, started: int) -> bool:
        """Return True if a process with its pid and this start is the same process."""
        tolerance = _TOLERANCE if self.place.startswith("host-") else 0
        return abs(started - self.started) <= tolerance


def start_of(pid: int, proc: Path = PROC) -> int | None:
    """Return the start of a process; None if it does not exist; PermissionError if it is hidden."""
    if not (proc / "self").is_symlink():
        return _start_by_psutil(pid)
    fields = _stat_fields(pid, proc)
    return int(fields[_START_FIELD]) if fields else None


def _stat_fields(pid: int, proc: Path) -> list[str]:
    try:
        text = (proc / str(pid) / "stat").read_text(errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        _raise_if_hidden(pid)
        return []
    return text.rpartition(")")[2].split()


def _raise_if_hidden(pid: int) -> None:
    """Raise PermissionError for a process of another user that `hidepid` hides."""
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return


def _ended(pid: int, proc: Path) -> bool:
    """Return True if the process is a zombie or gone."""
    if not (proc / "self").is_symlink():
        import psutil

        try:
            return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
        except psutil.Error:
            return True
    fields = _stat_fields(pid, proc)
    return not fields or fields[_STATE_FIELD] in _ENDED


def _start_by_psutil(pid: int) -> int | None:
    import psutil

    try:
        return int(psutil.Process(pid).create_time() * _CENTISECONDS)
    except psutil.AccessDenied as error:
        raise PermissionError(str(error)) from error
    except psutil.Error:
        return None
