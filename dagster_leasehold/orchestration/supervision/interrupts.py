"""Ctrl-C, SIGTERM and SIGHUP: they end a block, or wait until it is ready for them."""

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
    """Have these signals call a handler within the block."""
    before = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield
    finally:
        for number, handler_before in before.items():
            signal.signal(number, handler_before)


class Interruption(KeyboardInterrupt):
    """The exception that a signal raises in a block that it ends.

    Args:
        dropped: called when the last holder has released the interruption.
    """

    def __init__(self, dropped: Callable[[], None]) -> None:
        super().__init__()
        self._dropped = dropped

    def __del__(self) -> None:
        self._dropped()


@contextmanager
def ended_by_signals() -> Generator[None]:
    """Have SIGTERM and SIGHUP end the block as Ctrl-C does, so that no child outlives it.

    The first signal ends it; later ones wait until its children have ended. Nothing in the
    block can catch the interruption for good. Where Python itself drops it, as it drops all that is
    raised in a finalizer or in the callback of a weak reference, it is raised again.
    """
    over = False

    def interrupt(number: int, frame: FrameType | None) -> None:
        del frame
        for other in NUMBERS:
            signal.signal(other, signal.SIG_IGN)
        if number != signal.SIGALRM:
            # Not `sys.stderr`, which refuses to be used within a use of itself.
            with suppress(OSError):
                os.write(2, STOPPING)
        raise Interruption(raise_again)

    def raise_again() -> None:
        # A moment later, when the block is out of what dropped it.
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
    """Yield an event that Ctrl-C, SIGTERM and SIGHUP set; the block continues until it looks."""
    stop = threading.Event()
    with handled_by(lambda _number, _frame: stop.set(), *NUMBERS):
        yield stop


@contextmanager
def held_back() -> Generator[None]:
    """Have signals that would end the block wait until its end; for a few steps only.

    Only those with a handler of ours can wait, and only the main thread is ever interrupted.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    waiting: list[int] = []
    handled = [number for number in NUMBERS if callable(signal.getsignal(number))]
    try:
        with handled_by(lambda number, _frame: waiting.append(number), *handled):
            yield
    finally:
        if waiting:
            signal.raise_signal(waiting[0])
