"""Works that are carried out side by side, so that one that hangs keeps no other one waiting."""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Callable, Iterable
from queue import Empty, SimpleQueue
from typing import Generic, TypeVar

AT_ONCE = 4
IDLE_S = 5.0
"""The time after which a thread without work ends, in seconds."""

T = TypeVar("T")


class SideBySide(Generic[T]):
    """Carries out works on threads of its own, which no process waits for when it ends.

    Args:
        at_once: the most works at the same time.
    """

    def __init__(self, at_once: int = AT_ONCE) -> None:
        self._at_once = at_once
        self._waiting: SimpleQueue[Callable[[], T]] = SimpleQueue()
        self._done: SimpleQueue[T | BaseException] = SimpleQueue()
        self._threads = 0
        self._under_way = 0
        self._lock = threading.Lock()

    @property
    def under_way(self) -> int:
        """The number of works that were begun or wait, without a result taken."""
        return self._under_way

    def start(self, works: Iterable[Callable[[], T]]) -> None:
        """Begin some works, as soon as there is room for each."""
        for work in works:
            self._under_way += 1
            with self._lock:
                self._waiting.put(work)
                if self._threads >= min(self._at_once, self._under_way):
                    continue
                self._threads += 1
            context = contextvars.copy_context()
            threading.Thread(
                target=context.run, args=(self._work_off,), name="apart", daemon=True
            ).start()

    def done(self, wait_s: float | None = 0.0) -> list[T]:
        """Return the results that have come in; wait for the first of them, None for any time.

        Errors of a work are raised here.
        """
        results: list[T] = []
        while self._under_way:
            try:
                if wait_s == 0.0 or results:
                    result = self._done.get_nowait()
                else:
                    result = self._done.get(timeout=wait_s)
            except Empty:
                break
            self._under_way -= 1
            if isinstance(result, BaseException):
                raise result
            results.append(result)
        return results

    def drop(self) -> None:
        """Forget the works that were not begun."""
        while True:
            try:
                self._waiting.get_nowait()
            except Empty:
                return
            self._under_way -= 1

    def _work_off(self) -> None:
        while True:
            try:
                work = self._waiting.get(timeout=IDLE_S)
            except Empty:
                with self._lock:
                    if self._waiting.empty():
                        self._threads -= 1
                        return
                continue
            try:
                self._done.put(work())
            except BaseException as error:
                self._done.put(error)
