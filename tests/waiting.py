"""Waits for the results of a test, and clocks that start with it."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

POLL_S = 0.02

T = TypeVar("T")


def wait_for(
    what: str,
    probe: Callable[[], T | None],
    timeout_s: float = 60.0,
    *,
    unless: Callable[[], object] = bool,
    shown: Callable[[], object] = str,
) -> T:
    """Return the first true value of `probe`.

    A probe gets a third of the time at most: a command takes processors from the awaited work.

    Raises:
        AssertionError: `timeout_s` have passed, or `unless` has become true; with `shown`.
    """
    deadline = time.monotonic() + timeout_s
    while True:
        began = time.monotonic()
        if value := probe():
            return value
        assert not unless(), f"{what}: it has ended\n{shown()}"
        now = time.monotonic()
        assert now < deadline, f"waited {timeout_s:.0f} s in vain for {what}\n{shown()}"
        time.sleep(max(POLL_S, 2 * (now - began)))


class ClockFrom:
    """Monotonic seconds since something was so first: a slow start of Spark is no stall."""

    def __init__(self, begun: Callable[[], bool]) -> None:
        self._begun = begun
        self._began: float | None = None

    def monotonic(self) -> float:
        if self._began is None and self._begun():
            self._began = time.monotonic()
        return time.monotonic() - self._began if self._began is not None else 0.0
