"""The memory of a process with its children, sampled while something runs."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager

import psutil

SAMPLE_S = 0.5
MEBIBYTE = 2**20


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


def memory_bytes(pids: Iterable[int]) -> int:
    """Return the sum of the proportional sizes of these processes and all below them."""
    total = 0
    for process in trees(pids):
        try:
            memory = process.memory_full_info()
        except psutil.Error:
            continue
        total += getattr(memory, "pss", memory.rss)
    return total


@contextmanager
def peak_memory(others: Callable[[], Iterable[int]]) -> Generator[list[int]]:
    """Sample this process, `others` and all below them; the highest sum is in the list after."""
    peak = [0]
    done = threading.Event()

    def sample() -> None:
        while not done.wait(SAMPLE_S):
            peak[0] = max(peak[0], memory_bytes([os.getpid(), *others()]))

    thread = threading.Thread(target=sample, daemon=True)
    thread.start()
    try:
        yield peak
    finally:
        done.set()
        thread.join()
