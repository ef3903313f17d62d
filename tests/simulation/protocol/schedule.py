"""Virtual time: the clock, and among equal times the seed, decide which strand runs next.

Real code that blocks has to let others continue, so each active function has a separate stack:
greenlets, which wait for each other in one thread.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable
from dataclasses import dataclass, field

from greenlet import getcurrent, greenlet


class Crashed(BaseException):
    """Unwinds a strand whose process was killed; nothing that it still tries has an effect."""


@dataclass(eq=False)
class Process:
    """Strands that live and die together: a code server, a run.

    Attributes:
        name: for messages.
        dead: True once it was killed, or has ended.
        paused_until: virtual time before which none of its strands continues.
    """

    name: str
    dead: bool = False
    paused_until: float = 0.0


@dataclass(eq=False)
class _Task:
    process: Process
    strand: greenlet | None = None
    ended: bool = False


@dataclass(eq=False)
class Schedule:
    """A seeded scheduler of strands and of calls, in virtual seconds.

    Attributes:
        chance: the one source of randomness of a simulation.
        now: virtual time.
    """

    chance: random.Random
    now: float = 0.0
    _queue: list[tuple[float, float, int, _Task | Callable[[], None]]] = field(
        default_factory=list[tuple[float, float, int, "_Task | Callable[[], None]"]]
    )
    _pushed: int = 0
    _current: _Task | None = None

    def spawn(self, process: Process, function: Callable[[], None], delay_s: float = 0.0) -> None:
        """Start a strand of a process after a delay."""
        task = _Task(process)

        def run() -> None:
            try:
                if not process.dead:
                    function()
            except Crashed:
                pass
            finally:
                task.ended = True

        task.strand = greenlet(run)
        self._push(self.now + delay_s, task)

    def call(self, delay_s: float, function: Callable[[], None]) -> None:
        """Call a function after a delay, outside any process."""
        self._push(self.now + delay_s, function)

    def sleep(self, seconds: float) -> None:
        """Put the current strand to sleep.

        Raises:
            Crashed: its process was killed while it slept.
        """
        task = self._current
        assert task is not None, "only a strand can sleep"
        if task.process.dead:
            raise Crashed
        self._push(self.now + seconds, task)
        assert task.strand is not None
        assert task.strand.parent is not None
        task.strand.parent.switch()
        if task.process.dead:
            raise Crashed

    def run(self, until: Callable[[], bool]) -> None:
        """Continue until a condition is met or nothing is left to do."""
        while self._queue and not until():
            time, _, _, entry = heapq.heappop(self._queue)
            if not isinstance(entry, _Task):
                self.now = max(self.now, time)
                entry()
                continue
            paused_until = entry.process.paused_until
            if time < paused_until and not entry.process.dead:
                self._push(paused_until, entry)
                continue
            self.now = max(self.now, time)
            self._resume(entry)

    def unwind(self) -> None:
        """Kill the remaining strands, so that none outlives the simulation."""
        while self._queue:
            entry = heapq.heappop(self._queue)[3]
            if isinstance(entry, _Task):
                entry.process.dead = True
                self._resume(entry)

    def _resume(self, task: _Task) -> None:
        if task.ended or task.strand is None:
            return
        self._current = task
        task.strand.parent = getcurrent()
        task.strand.switch()
        self._current = None

    def _push(self, time: float, entry: _Task | Callable[[], None]) -> None:
        self._pushed += 1
        heapq.heappush(self._queue, (time, self.chance.random(), self._pushed, entry))
