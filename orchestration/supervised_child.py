"""A child process that is started again when it has died, after a wait that grows to a bound."""

from __future__ import annotations

from collections.abc import Collection

from lease_store.liveness import Clock
from orchestration.child_processes import ChildProcess

PAUSE_FIRST_S = 1.0
PAUSE_MAX_S = 30.0
STEADY_S = 60.0
"""One that has run for so long begins with the shortest wait again, in seconds."""


class SupervisedChild:
    """Looks after a child that was started; `look` has to be called every second or so.

    Args:
        child: the process, entered.
        clock: monotonic seconds.
        final: exit codes after which it is not started again, because it says itself what a person
            has to put right.
    """

    def __init__(self, child: ChildProcess, clock: Clock, final: Collection[int] = ()) -> None:
        self.child = child
        self._clock = clock
        self._final = frozenset(final)
        self._began_at = clock()
        self._pause_s = PAUSE_FIRST_S
        self._again_at: float | None = None
        self._over = False

    def look(self) -> str:
        """Start the child again if that is due; a sentence when it has just died, or nothing."""
        now = self._clock()
        if self._over:
            return ""
        if self._again_at is not None:
            if now >= self._again_at:
                self._start(now)
            return ""
        code = self.child.exit_code()
        if code is None:
            return ""
        return self._died(code, now)

    def _start(self, now: float) -> None:
        # What the dead one left running would be in the way of the next.
        self.child.stop()
        self._again_at, self._began_at = None, now
        self.child.__enter__()

    def _died(self, code: int, now: float) -> str:
        name = f"{self.child.name[0].upper()}{self.child.name[1:]}"
        if code in self._final:
            self._over = True
            return f"{name} ended, and is not started again: {self.child.last_line()}"
        if now - self._began_at > STEADY_S:
            self._pause_s = PAUSE_FIRST_S
        pause_s, self._pause_s = self._pause_s, min(2 * self._pause_s, PAUSE_MAX_S)
        self._again_at = now + pause_s
        return (
            f"{name} ended with code {code}, and is started again in {pause_s:.0f} s: see "
            f"{self.child.log}."
        )
