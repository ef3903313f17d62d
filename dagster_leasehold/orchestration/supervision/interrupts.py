"""Handling of Ctrl-C, SIGTERM and SIGHUP: they end a block, set an event, or are deferred."""

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
    """The exception by which a signal ends a block.

    Args:
        dropped: called when Python deletes the exception.
    """

    def __init__(self, dropped: Callable[[], None]) -> None:
        super().__init__()
        self._dropped = dropped

    def __del__(self) -> None:
        self._dropped()


@contextmanager
def ended_by_signals() -> Generator[None]:
    """Make SIGTERM and SIGHUP end the block like Ctrl-C, so that no child outlives it.

    The first signal ends the block; later signals are ignored, so that its children can end. The
    interruption is raised again if code in the block catches it, or if Python drops it, like any
    exception in finalizers and in callbacks of weak references.
    """
    over = False

    def interrupt(number: int, frame: FrameType | None) -> None:
        del frame
        for other in NUMBERS:
            signal.signal(other, signal.SIG_IGN)
        if number != signal.SIGALRM:
            # Not `sys.stderr`, which raises if the signal interrupts a write to it.
            with suppress(OSError):
                os.write(2, STOPPING)
        raise Interruption(raise_again)

    def raise_again() -> None:
        # A timer raises it again after the finalizer or callback has returned.
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
    """Yield an event that Ctrl-C, SIGTERM and SIGHUP set; the block must check it."""
    stop = threading.Event()
    with handled_by(lambda _number, _frame: stop.set(), *NUMBERS):
        yield stop


@contextmanager
def deferred_signals() -> Generator[None]:
    """Defer signals until the end of the block, which must be short.

    Only signals with a Python handler are deferred. On a thread other than the main one, this does
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
