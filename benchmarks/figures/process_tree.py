"""The memory and the CPU time of processes with their children, those that have ended included."""

from __future__ import annotations

import ctypes
import os
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager, suppress

import psutil

from dagster_leasehold.orchestration.supervision.forking_server import PROGRAM

SAMPLE_S = 0.5
MEBIBYTE = 2**20
PARTS = {
    "java": "Spark",
    "pyspark": "Spark's workers",
    "connect_watch": "Spark's watcher",
    "webserver": "webserver",
    "daemon": "Dagster's daemon",
    "grpc": "code servers",
    " node ": "agents",
    " dev ": "leasehold dev",
    "mariadbd": "database",
    "mysqld": "database",
}
"""The part of a process, by a word of its command line; the first one that is in it."""
_SET_CHILD_SUBREAPER = 36


def part_of(process: psutil.Process) -> str:
    """Return the part that a process is of."""
    try:
        line = " ".join(process.cmdline())
        # A run has the command line of its code server, whose grandchild has forked it.
        if PROGRAM in line and all(PROGRAM in each.cmdline() for each in process.parents()[:2]):
            return "runs"
    except psutil.Error:
        return "others"
    return next((part for word, part in PARTS.items() if word in line), "others")


def trees(pids: Iterable[int]) -> Iterator[psutil.Process]:
    """Yield these processes and all below them, each once; those that are gone are left out."""
    seen: set[int] = set()
    for pid in pids:
        try:
            root = psutil.Process(pid)
            tree = [root, *root.children(recursive=True)]
        except psutil.Error:
            continue
        for process in tree:
            if process.pid not in seen:
                seen.add(process.pid)
                yield process


def memory_bytes(processes: Iterable[psutil.Process]) -> int:
    """Return the sum of the proportional sizes of processes."""
    total = 0
    for process in processes:
        try:
            memory = process.memory_full_info()
        except psutil.Error:
            continue
        total += getattr(memory, "pss", memory.rss)
    return total


@contextmanager
def peak_memory(others: Callable[[], Iterable[int]], *, own: bool = True) -> Generator[list[int]]:
    """Sample this process, `others` and all below them; the highest sum is in the list after.

    Without `own`, this process and its other children do not count.
    """
    peak = [0]
    always = [os.getpid()] if own else []
    done = threading.Event()

    def sample() -> None:
        while not done.wait(SAMPLE_S):
            peak[0] = max(peak[0], memory_bytes(trees([*always, *others()])))

    thread = threading.Thread(target=sample, daemon=True)
    thread.start()
    try:
        yield peak
    finally:
        done.set()
        thread.join()


def adopt_orphans() -> None:
    """Let every process below this one whose parent ends become a child of this one (Linux).

    So a server that left its starter behind is still part of the tree.
    """
    if sys.platform != "linux":
        raise RuntimeError("Only Linux tells the CPU time of processes whose parent has ended.")
    if ctypes.CDLL(None, use_errno=True).prctl(_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl refuses to make this process a subreaper")


def cpu_below() -> float:
    """Return the seconds of CPU time of all processes below this one, those that ended included.

    The time of this process itself is not part of it. A process that ends leaves its time to its
    parent as soon as that has waited for it.
    """
    own = os.times()
    return own.children_user + own.children_system + sum(cpu_by_part().values())


def cpu_by_part() -> dict[str, float]:
    """Return the seconds of CPU time of the processes below this one, by `part_of`.

    A process that has ended counts for the part of its parent.
    """
    spent: dict[str, float] = defaultdict(float)
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.Error):
            times = process.cpu_times()
            own_s, below_s = times.user + times.system, times.children_user + times.children_system
            spent[part_of(process)] += own_s + below_s
    return spent


def wait_for_orphans(own: Iterable[int]) -> None:
    """Take the time of adopted processes that have ended; `own` are those that others wait for."""
    others = set(own)
    for process in psutil.Process().children():
        with suppress(psutil.Error, ChildProcessError):
            if process.pid not in others and process.status() == psutil.STATUS_ZOMBIE:
                os.waitpid(process.pid, os.WNOHANG)


class CpuClock:
    """The cores that were in use below this process, between two looks."""

    def __init__(self) -> None:
        self.restart()

    def restart(self) -> None:
        """Begin to count now."""
        self._cpu_s, self._at_s = cpu_below(), time.monotonic()

    def cores(self) -> float:
        """Return the cores in use since the last beginning."""
        return (cpu_below() - self._cpu_s) / (time.monotonic() - self._at_s)
