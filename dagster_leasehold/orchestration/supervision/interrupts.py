"""Handling of Ctrl-C, SIGTERM and SIGHUP: they end a block, set an event, or are deferred.

The long-running commands use it, and the modules that start child processes.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from types import FrameType

NUMBERS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
AGAIN_S = 0.02
STOPPING = b"Stopping; this takes a few seconds.\n"

Handler = Callable[[int, FrameType | None], object]


@contextmanager
def handled_by(handler: Handler, *numbers: signal.Signals) -> Generator[None]:
    """Install a handler for these signals within the block."""
    before = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield
    finally:
        for number, handler_before in before.items():
            signal.signal(number, handler_before)


class Interruption(KeyboardInterrupt):
    """The exception that a signal raises in the block that it ends.

    Args:
        dropped: called when the last reference to the exception is gone.
    """

    def __init__(self, dropped: Callable[[], None]) -> None:
        super().__init__()
        self._dropped = dropped

    def __del__(self) -> None:
        self._dropped()


@contextmanager
def ended_by_signals() -> Generator[None]:
    """Make SIGTERM and SIGHUP end the block as Ctrl-C does, so that no child outlives it.

    The first signal ends the block; later signals are ignored, so that its children can end. If
    code in the block catches the interruption, it is raised again. The same holds if Python drops
    it, as Python does with exceptions in finalizers and in callbacks of weak references.
    """
    over = False

    def interrupt(number: int, frame: FrameType | None) -> None:
        del frame
        for other in NUMBERS:
            signal.signal(other, signal.SIG_IGN)
        if number != signal.SIGALRM:
            # Not `sys.stderr`: it raises if the signal interrupts a write to it.
            with suppress(OSError):
                os.write(2, STOPPING)
        raise Interruption(raise_again)

    def raise_again() -> None:
        # A timer raises it a moment later, when the finalizer or callback has returned.
        if not over:
            signal.setitimer(signal.ITIMER_REAL, AGAIN_S)

    hook = sys.unraisablehook

    def report(dropped: sys.UnraisableHookArgs) -> None:
        if not isinstance(dropped.exc_value, Interruption):
            hook(dropped)

    sys.unraisablehook = report
    try:
        with handled_by(interrupt, *NUMBERS, signal.SIGALRM):
            try:
                yield
            finally:
                over = True
                signal.setitimer(signal.ITIMER_REAL, 0)
    finally:
        sys.unraisablehook = hook


@contextmanager
def stop_event() -> Generator[threading.Event]:
    """Yield an event that Ctrl-C, SIGTERM and SIGHUP set; the block has to check it."""
    stop = threading.Event()
    with handled_by(lambda _number, _frame: stop.set(), *NUMBERS):
        yield stop


@contextmanager
def held_back() -> Generator[None]:
    """Defer signals until the end of the block, which must be short.

    Only signals with a Python handler are deferred. On another thread than the main one this does
    nothing, because signals interrupt only the main thread.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    deferred: list[int] = []
    handled = [number for number in NUMBERS if callable(signal.getsignal(number))]
    try:
        with handled_by(lambda number, _frame: deferred.append(number), *handled):
            yield
    finally:
        if deferred:
            signal.raise_signal(deferred[0])
