"""Children that are started again when they have died, after a wait that grows to a bound."""

from __future__ import annotations

from collections.abc import Collection

from dagster_leasehold.lease_store.rules.failing_steps import retry_wait_s
from dagster_leasehold.lease_store.rules.liveness import Clock
from dagster_leasehold.orchestration.supervision.child_processes import ChildProcess

PAUSE_FIRST_S = 1.0
PAUSE_MAX_S = 30.0
STEADY_S = 60.0
"""A child that has run for so long begins with the shortest wait again, in seconds."""


class RestartWaits:
    """The waits before a child is started again: they double with each start that does not last.

    Args:
        first_s: the shortest wait, in seconds.
        max_s: the longest wait, in seconds.
    """

    def __init__(self, first_s: float = PAUSE_FIRST_S, max_s: float = PAUSE_MAX_S) -> None:
        self._first_s = first_s
        self._max_s = max_s
        self._failures = 0

    def settle(self, ran_s: float) -> None:
        """Begin with the shortest wait again, if the child has run for long."""
        if ran_s > STEADY_S:
            self._failures = 0

    def next_s(self) -> float:
        """Count a failure, and return the wait after it in seconds."""
        self._failures += 1
        return retry_wait_s(self._failures, first_s=self._first_s, max_s=self._max_s)


class SupervisedChild:
    """Supervision of a child that was started; `look` has to be called every second or so.

    Args:
        child: the process, entered.
        clock: monotonic seconds.
        explained: exit codes with which it says in its last line what a person has to put right.
            It is started again after the longest wait, and the same line is passed on once.
    """

    def __init__(self, child: ChildProcess, clock: Clock, explained: Collection[int] = ()) -> None:
        self.child = child
        self._clock = clock
        self._explained = frozenset(explained)
        self._began_at = clock()
        self._waits = RestartWaits()
        self._again_at: float | None = None
        self._reason = ""

    def look(self) -> str:
        """Start the child again if that is due; return a sentence if it has just died."""
        now = self._clock()
        if self._again_at is not None:
            return self._start(now) if now >= self._again_at else ""
        code = self.child.exit_code()
        return "" if code is None else self._died(code, now)

    def _start(self, now: float) -> str:
        try:
            # What the dead one left running would be in the way of the next.
            self.child.stop()
            self.child.__enter__()
        except OSError as error:
            return self._put_off(now, f"could not be started: {error.strerror or error}.")
        self._again_at, self._began_at = None, now
        return ""

    def _died(self, code: int, now: float) -> str:
        if code in self._explained:
            return self._put_off(now, f"ended: {self.child.last_line()}")
        self._waits.settle(now - self._began_at)
        pause_s = self._waits.next_s()
        self._again_at, self._reason = now + pause_s, ""
        return (
            f"{self.child.title} ended with code {code}, and is started again in {pause_s:.0f} s: "
            f"see {self.child.log}."
        )

    def _put_off(self, now: float, reason: str) -> str:
        """Try again after the longest wait; return the sentence, unless it is as before."""
        self._again_at = now + PAUSE_MAX_S
        before, self._reason = self._reason, reason
        if reason == before:
            return ""
        return f"{self.child.title} {reason} It is tried again every {PAUSE_MAX_S:.0f} s."
