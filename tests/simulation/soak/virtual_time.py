"""Virtual time: a clock that is advanced by hand, and strands of real code that wait on it.

Code that sleeps on an event, starts a thread or reads monotonic seconds is the project's own; only
the modules `threading` and `time` that it sees are replaced. A wait that would have ended several
times within one advance of the clock ends once: that is the coarsening.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from queue import Empty
from typing import Any

from greenlet import getcurrent, greenlet

STEPS_AT_ONCE_MAX = 10_000


class Killed(BaseException):
    """Unwinds the strands of a process that was killed; nothing that they try has an effect."""


class Terminated(BaseException):
    """Raised by a launcher in a run that it terminates."""


@dataclass(eq=False)
class Process:
    """Strands that live and die together: an agent, a run.

    Attributes:
        name: for messages.
        dead: True once it was killed, or has ended.
    """

    name: str
    dead: bool = False


@dataclass(eq=False)
class _Strand:
    process: Process
    due_s: float
    body: greenlet | None = None
    raises: BaseException | None = None
    ended: bool = False


@dataclass(eq=False)
class VirtualTime:
    """The clock and all strands; `now_s` is monotonic seconds since the beginning."""

    now_s: float = 0.0
    _strands: list[_Strand] = field(default_factory=list)
    _current: _Strand | None = None

    def clock(self) -> float:
        """Return monotonic seconds."""
        return self.now_s

    def spawn(self, process: Process, function: Callable[[], None]) -> _Strand:
        """Start a strand of a process; it runs when time is next processed."""
        strand = _Strand(process, self.now_s)

        def body() -> None:
            try:
                if strand.raises is None:
                    function()
            except (Killed, Terminated):
                pass
            finally:
                strand.ended = True

        strand.body = greenlet(body)
        self._strands.append(strand)
        return strand

    def settle(self) -> None:
        """Resume the due strands, until none is due."""
        for _ in range(STEPS_AT_ONCE_MAX):
            due = [strand for strand in self._strands if strand.due_s <= self.now_s]
            if not due:
                return
            for strand in sorted(due, key=lambda each: each.due_s):
                self._resume(strand)
            self._strands = [strand for strand in self._strands if not strand.ended]
        raise AssertionError("a strand waits for no time at all, again and again")

    def sleep(self, seconds: float) -> None:
        """Put the current strand to sleep; outside of one, time stalls."""
        if self._current is not None:
            self.suspend_until(self.now_s + seconds)

    def suspend_until(self, due_s: float) -> None:
        """Put the current strand to sleep until a moment.

        Raises:
            Killed, Terminated: its process was ended while it slept.
        """
        strand = self._current
        assert strand is not None
        assert strand.body is not None
        strand.due_s = due_s
        parent = strand.body.parent
        assert parent is not None
        parent.switch()
        if strand.raises is not None:
            error, strand.raises = strand.raises, None
            raise error

    def end(self, process: Process, error: BaseException) -> None:
        """End a process: `Killed` at once and permanently, or `Terminated` at its next check."""
        process.dead = process.dead or isinstance(error, Killed)
        for strand in self._strands:
            if strand.process is process and not strand.ended:
                strand.raises, strand.due_s = error, self.now_s

    @property
    def current(self) -> Process | None:
        """The process of the current strand; None outside of one."""
        return self._current.process if self._current else None

    def wake(self, strand: _Strand) -> None:
        """Let a strand continue at the next step."""
        strand.due_s = min(strand.due_s, self.now_s)

    @property
    def strand(self) -> _Strand | None:
        """The current strand, if there is one."""
        return self._current

    def _resume(self, strand: _Strand) -> None:
        if strand.ended or strand.body is None:
            return
        before, self._current = self._current, strand
        strand.body.parent = getcurrent()
        try:
            strand.body.switch()
        finally:
            self._current = before

    def threading(self) -> Any:
        """Return a stand-in for the module `threading`."""
        return _Threading(self)

    def time(self) -> Any:
        """Return a stand-in for the module `time`."""
        return _Time(self)


class _Event:
    def __init__(self, virtual: VirtualTime) -> None:
        self._virtual = virtual
        self._is_set = False
        self._waiting: list[_Strand] = []

    def is_set(self) -> bool:
        return self._is_set

    def set(self) -> None:
        self._is_set = True
        for strand in self._waiting:
            self._virtual.wake(strand)

    def clear(self) -> None:
        self._is_set = False

    def wait(self, timeout: float | None = None) -> bool:
        strand = self._virtual.strand
        if not self._is_set and strand is not None:
            self._waiting.append(strand)
            try:
                limit_s = float("inf") if timeout is None else self._virtual.now_s + timeout
                self._virtual.suspend_until(limit_s)
            finally:
                self._waiting.remove(strand)
        return self._is_set


class _Thread:
    def __init__(
        self,
        virtual: VirtualTime,
        target: Callable[..., None],
        args: Sequence[Any] = (),
        kwargs: dict[str, Any] | None = None,
        name: str = "thread",
        daemon: bool = True,
    ) -> None:
        self._virtual = virtual
        self._body = lambda: target(*args, **(kwargs or {}))
        self._strand: _Strand | None = None
        self.name = name

    def start(self) -> None:
        process = self._virtual.current
        assert process is not None, "only a process starts threads"
        self._strand = self._virtual.spawn(process, self._body)

    def is_alive(self) -> bool:
        return self._strand is not None and not self._strand.ended

    def join(self, timeout: float | None = None) -> None:
        limit_s = self._virtual.now_s + (timeout or 0.0)
        while self.is_alive() and self._virtual.now_s < limit_s and self._virtual.strand:
            self._virtual.sleep(0.1)


class VirtualQueue:
    """A queue between strands, with the methods of `queue.SimpleQueue`."""

    def __init__(self, virtual: VirtualTime) -> None:
        self._items: deque[Any] = deque()
        self._filled = _Event(virtual)

    def put(self, item: Any) -> None:
        self._items.append(item)
        self._filled.set()

    def get(self, timeout: float | None = None) -> Any:
        while not self._items:
            self._filled.clear()
            if not self._filled.wait(timeout) and timeout is not None:
                raise Empty
        return self._items.popleft()

    def get_nowait(self) -> Any:
        if not self._items:
            raise Empty
        return self._items.popleft()

    def empty(self) -> bool:
        return not self._items


class _Threading:
    def __init__(self, virtual: VirtualTime) -> None:
        self._doubles = {"Event": partial(_Event, virtual), "Thread": partial(_Thread, virtual)}

    def __getattr__(self, name: str) -> Any:
        return self._doubles.get(name) or getattr(threading, name)


class _Time:
    def __init__(self, virtual: VirtualTime) -> None:
        self._virtual = virtual
        self.monotonic = virtual.clock
        self.sleep = virtual.sleep

    def __getattr__(self, name: str) -> Any:
        return getattr(time, name)
