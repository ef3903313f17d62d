"""Tasks that run side by side, so that one that hangs delays no other."""

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
    """Runs tasks on daemon threads, which no process waits for when it ends.

    It belongs to one thread, which starts the tasks and takes their results.

    Args:
        at_once: the most tasks at the same time.
    """

    def __init__(self, at_once: int = AT_ONCE) -> None:
        self._at_once = at_once
        self._waiting = deque[Callable[[], T]]()
        self._running = 0
        self._results: SimpleQueue[T | BaseException] = SimpleQueue()

    @property
    def under_way(self) -> int:
        """The number of tasks without a result taken."""
        return self._running + len(self._waiting)

    def start(self, tasks: Iterable[Callable[[], T]]) -> None:
        """Start some tasks; those beyond `at_once` start as results are taken."""
        self._waiting.extend(tasks)
        while self._waiting and self._running < self._at_once:
            self._running += 1
            context, task = contextvars.copy_context(), self._waiting.popleft()
            threading.Thread(
                target=context.run, args=(self._run, task), name="apart", daemon=True
            ).start()

    def done(self, wait_s: float | None = 0.0) -> list[T]:
        """Return the results so far; wait for the first result for so long, None for any time.

        An error of a task is raised here.
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
        """Forget the tasks that have not started."""
        self._waiting.clear()

    def _run(self, task: Callable[[], T]) -> None:
        try:
            self._results.put(task())
        except BaseException as error:
            self._results.put(error)
