"""Strands: functions that can be put to sleep in the middle and woken again, one at a time.

The code under simulation is the ordinary synchronous code of this project, so it has to be
interrupted from inside its calls. Greenlets do that a hundred times faster than threads; where
the package is not installed, threads that hand a baton to each other do the same.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Protocol

from typing_extensions import override

try:
    from greenlet import getcurrent, greenlet
except ImportError:  # pragma: no cover - depends on the installation
    greenlet = None
    getcurrent = None


class Strand(Protocol):
    """A function under way."""

    def resume(self) -> None:
        """Let it go on, from outside, until it suspends itself or ends."""
        ...

    def suspend(self) -> None:
        """Stop here, from inside, until it is resumed."""
        ...


class GreenletStrand(Strand):
    """A strand on a stack of its own, in the scheduler's thread."""

    def __init__(self, function: Callable[[], None]) -> None:
        assert greenlet is not None
        self._greenlet = greenlet(function)

    @override
    def resume(self) -> None:
        assert getcurrent is not None
        self._greenlet.parent = getcurrent()
        self._greenlet.switch()

    @override
    def suspend(self) -> None:
        parent = self._greenlet.parent
        assert parent is not None
        parent.switch()


class ThreadStrand(Strand):
    """A strand in a thread of its own; a baton keeps either it or the scheduler waiting."""

    def __init__(self, function: Callable[[], None]) -> None:
        self._mine = threading.Semaphore(0)
        self._schedulers = threading.Semaphore(0)
        self._function = function
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    @override
    def resume(self) -> None:
        self._mine.release()
        self._schedulers.acquire()
        if self._error is not None:
            raise self._error

    @override
    def suspend(self) -> None:
        self._schedulers.release()
        self._mine.acquire()

    def _run(self) -> None:
        self._mine.acquire()
        try:
            self._function()
        except BaseException as error:
            self._error = error
        self._schedulers.release()


def new_strand(function: Callable[[], None]) -> Strand:
    """Return a strand for a function that has not begun yet."""
    return GreenletStrand(function) if greenlet is not None else ThreadStrand(function)
