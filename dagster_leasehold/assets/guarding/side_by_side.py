"""Runs tasks side by side, so that a task that hangs does not delay the others."""

from __future__ import annotations

import contextvars
import threading
from collections import deque
from collections.abc import Callable, Iterable
from queue import Empty, SimpleQueue
from typing import Generic, TypeVar

AT_ONCE = 4

T = TypeVar("T")


class SideBySide(Generic[T]):
    """Runs tasks on daemon threads, which do not delay the end of the process.

    One thread owns it: it starts the tasks and takes their results.

    Args:
        at_once: the most tasks at the same time.
    """

    def __init__(self, at_once: int = AT_ONCE) -> None:
        self._at_once = at_once
        self._waiting = deque[Callable[[], T]]()
        self._running = 0
        self._results: SimpleQueue[T | BaseException] = SimpleQueue()

    @property
    def in_flight(self) -> int:
        """The number of tasks whose results were not yet taken."""
        return self._running + len(self._waiting)

    def start(self, tasks: Iterable[Callable[[], T]]) -> None:
        """Start tasks. Beyond `at_once`, each task starts when a result is taken."""
        self._waiting.extend(tasks)
        while self._waiting and self._running < self._at_once:
            self._running += 1
            context, task = contextvars.copy_context(), self._waiting.popleft()
            threading.Thread(
                target=context.run, args=(self._run, task), name="side by side", daemon=True
            ).start()

    def done(self, wait_s: float | None = 0.0) -> list[T]:
        """Return the results so far, after waiting up to `wait_s` for the first (None: forever).

        Raises the error of a task.
        """
        results: list[T] = []
        while self._running:
            try:
                if wait_s == 0.0 or results:
                    result = self._results.get_nowait()
                else:
                    result = self._results.get(timeout=wait_s)
            except Empty:
                break
            self._running -= 1
            self.start(())
            if isinstance(result, BaseException):
                raise result
            results.append(result)
        return results

    def drop(self) -> None:
        """Discard the tasks that have not started."""
        self._waiting.clear()

    def _run(self, task: Callable[[], T]) -> None:
        try:
            self._results.put(task())
        except BaseException as error:
            self._results.put(error)
