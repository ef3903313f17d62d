"""The identity of a process, and a look at whether that very process still exists.

A process number means something only within one boot of one machine and one namespace of process
numbers (a container has its own), and numbers are used again. So a process is named by all four:
boot id, pid namespace, number and start, counted in clock ticks since boot. None of them follows
the wall clock, and two containers of one host name have different ones.

1. A container ends, and the inode number of its namespace goes to the next one.
2. A process there gets the number of one that was noted in the first.
3. Its start differs: the noted process is gone, which is right, for its namespace is.

Systems without `/proc` have neither boot id nor namespaces: there the host's name stands for both,
and the start is what psutil says, which a step of the wall clock can move; two seconds of
difference are overlooked.
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
"""Of `/proc/PID/stat`, counted from behind the program's name, which can hold anything."""
_ENDED = frozenset("ZXx")
_DIGITS_MAX = 18
_CENTISECONDS = 100
_TOLERANCE = 2 * _CENTISECONDS


class Existence(StrEnum):
    """Result of a look for a process; `UNKNOWN` where this process cannot see it."""

    ALIVE = "alive"
    GONE = "gone"
    UNKNOWN = "unknown"


def current_place(proc: Path = PROC) -> str:
    """Return the name of the boot and pid namespace of this process; empty if it has none.

    A host name stands for it on systems without `/proc`.
    """
    if not (proc / "self").is_symlink():
        return f"host-{platform.node()}"
    try:
        if os.readlink(proc / "self") != str(os.getpid()):
            # It is another namespace's table: its numbers are not ours.
            return ""
        boot = (proc / "sys/kernel/random/boot_id").read_text().strip()
        return f"{boot}.{(proc / 'self/ns/pid').stat().st_ino}"
    except OSError:
        return ""


def current_boot(proc: Path = PROC) -> str:
    """Return a name of this boot of the machine that a step of the wall clock leaves alone."""
    try:
        return (proc / "sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        import psutil

        return str(int(psutil.boot_time()))


@dataclass(frozen=True, slots=True)
class ProcessIdentity:
    """One process, never mistaken for another one.

    Attributes:
        place: boot and pid namespace, as `current_place` names them.
        pid: its number there.
        started: when it began, in clock ticks since boot; in hundredths of a second since 1970 on
            systems without `/proc`.
    """

    place: str
    pid: int
    started: int

    @classmethod
    def of(cls, pid: int, proc: Path = PROC) -> Self:
        """Return the identity of the process that has this number here and now.

        Raises:
            ProcessLookupError: there is none.
        """
        started = start_of(pid, proc)
        if started is None:
            raise ProcessLookupError(f"There is no process {pid}.")
        return cls(current_place(proc), pid, started)

    @classmethod
    def parse(cls, note: str) -> Self | None:
        """Return the identity that `str` wrote; None for any other text."""
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
        """True if its number means the same process here as in the process that noted it."""
        return self.place != "" and self.place == current_place()

    def existence(self, proc: Path = PROC) -> Existence:
        """Look for it; `UNKNOWN` from another place, or where the system hides it from us."""
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
        """Return True if a process of its number with this start is the same one."""
        tolerance = _TOLERANCE if self.place.startswith("host-") else 0
        return abs(started - self.started) <= tolerance


def start_of(pid: int, proc: Path = PROC) -> int | None:
    """Return the start of a process, as `ProcessIdentity.started`; None if it does not exist.

    Raises:
        PermissionError: there is one, but the system hides it from us.
    """
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
    """Raise PermissionError for a process of another user that `hidepid` keeps from view."""
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return


def _ended(pid: int, proc: Path) -> bool:
    """Return True if the process has ended, and only its exit code is left to be asked for."""
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
