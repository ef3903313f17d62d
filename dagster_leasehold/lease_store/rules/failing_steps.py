"""Failing steps of a recurring round: each fails alone, and is retried with a bounded back-off.

A round (a sensor's tick) has steps for shards, nodes or runs. A step that raises is logged and
skipped until it is due again, and the round continues. The round ends if the lease store fails
twice in a row, because every further step would wait as long, and at errors that the caller names.
"""

from __future__ import annotations

import logging
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from dagster_leasehold.lease_store import errors
from dagster_leasehold.lease_store.errors import one_line, without_secrets

_LOG = logging.getLogger(__name__)
FIRST_WAIT_S = 5.0
WAIT_MAX_S = 300.0
STEPS_MAX = 10_000
"""The most failing steps that are kept; beyond this limit, the first due one is dropped."""
SHOWN_MAX = 20
SILENCE_MAX = 2
CALLS_MAX = 64
"""The most calls of one step for many items."""
_UNAVAILABLE = (errors.StoreError, errors.SourceUnavailable)
_UNAVAILABLE_MAX = 3
"""An unreachable service fails for all items and for both halves."""
_DOUBLINGS_MAX = 32

Answer = TypeVar("Answer")
Item = TypeVar("Item")


def retry_wait_s(failures: int, *, first_s: float, max_s: float, jitter: float = 0.0) -> float:
    """Return the wait after failures in a row, which doubles from `first_s` to `max_s`.

    `jitter`, in [0, 1), shortens the wait by up to a half, so that retries spread.
    """
    doublings = min(max(failures, 1) - 1, _DOUBLINGS_MAX)
    return min(first_s * 2.0**doublings, max_s) * (1 - jitter / 2)


def sentence_of(error: BaseException) -> str:
    """Return an error as one line; an unforeseen error begins with its type."""
    if isinstance(error, errors.LeaseholdError):
        return str(error)
    text = one_line(without_secrets(str(error)))
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def log_frames(step: str, error: BaseException) -> None:
    """Log the stack of an unforeseen error, without its message, which can contain secrets."""
    if not isinstance(error, errors.LeaseholdError):
        frames = "".join(traceback.format_tb(error.__traceback__))
        _LOG.warning("%s failed in:\n%s", step, frames)


@dataclass(slots=True)
class _Failure:
    count: int
    due_s: float
    sentence: str
    round: int


@dataclass(slots=True)
class FailingSteps:
    """The failing steps of one process's rounds, and when each is due again.

    Attributes:
        first_s: the wait after a step's first failure, in seconds.
        max_s: the longest wait, in seconds.
        jitter: returns the jitter of `retry_wait_s`.
    """

    clock: Callable[[], float]
    first_s: float = FIRST_WAIT_S
    max_s: float = WAIT_MAX_S
    jitter: Callable[[], float] = lambda: 0.0
    _failures: dict[str, _Failure] = field(default_factory=dict[str, _Failure])
    _notes: list[str] = field(default_factory=list[str])
    _silence: int = 0
    _round: int = 0

    def begin(self) -> None:
        """Start a round: clear the notes, and drop steps that are long overdue."""
        self._notes, self._silence, self._round = [], 0, self._round + 1
        now_s = self.clock()
        self._failures = {
            step: failure
            for step, failure in self._failures.items()
            if now_s - failure.due_s <= 2 * self.max_s
        }

    @property
    def notes(self) -> list[str]:
        """A line for each step that failed in this round or waits."""
        now_s = self.clock()
        lines = [
            *self._notes,
            *(
                f"{step} is tried again in {failure.due_s - now_s:.0f} s ({failure.sentence})"
                for step, failure in self._failures.items()
                if failure.due_s > now_s and failure.round != self._round
            ),
        ]
        more = len(lines) - SHOWN_MAX
        return lines[:SHOWN_MAX] + ([f"and {more} further lines"] if more > 0 else [])

    @property
    def waiting(self) -> int:
        """The number of failed steps that are not due yet."""
        now_s = self.clock()
        return sum(failure.due_s > now_s for failure in self._failures.values())

    def error_of(self, step: str) -> str:
        """Return the last error of a step, or empty."""
        failure = self._failures.get(step)
        return failure.sentence if failure else ""

    def wait_s(self, step: str) -> float:
        """Return the seconds until a step is due again; 0 if it is due now."""
        failure = self._failures.get(step)
        return max(0.0, failure.due_s - self.clock()) if failure else 0.0

    def attempt(
        self,
        step: str,
        action: Callable[[], Answer],
        otherwise: Answer,
        *,
        at_once: bool = False,
        raises: tuple[type[Exception], ...] = (),
    ) -> Answer:
        """Take a step if it is due; return `otherwise` if it is not, or if it fails.

        Args:
            step: its name for people, the same in every round: `shard 7`.
            otherwise: the answer without a successful step.
            at_once: True to retry in every round, for example a node's heartbeat.
            raises: errors that end the round.

        Raises:
            StoreError: the second in a row within this round.
        """
        if not at_once and self.wait_s(step):
            return otherwise
        try:
            answer = action()
        except raises:
            raise
        except errors.StoreError as error:
            self._silence += 1
            if self._silence >= SILENCE_MAX:
                raise
            self.note(step, error, at_once=at_once)
            return otherwise
        except Exception as error:
            self.note(step, error, at_once=at_once)
            return otherwise
        self._silence = 0
        self._failures.pop(step, None)
        return answer

    def attempt_all(
        self,
        items: Mapping[str, Item],
        action: Callable[[list[Item]], Answer],
        *,
        raises: tuple[type[Exception], ...] = (),
    ) -> list[Answer]:
        """Take one step for many items; divide failing items in halves until each fails alone.

        Args:
            items: by the name of each item's step; items that are not due are skipped.
            action: the step for some items; repeating it is harmless.
            raises: errors that end the round.

        Returns:
            The answers for all items except failed and skipped ones.

        Raises:
            StoreError, SourceUnavailable: the service failed for all items and for both halves.
        """
        due = [(step, item) for step, item in items.items() if not self.wait_s(step)]
        parts, answers, unavailable = [due] if due else [], list[Answer](), 0
        for _ in range(CALLS_MAX):
            if not parts:
                break
            part = parts.pop(0)
            try:
                answers.append(action([item for _, item in part]))
            except raises:
                raise
            except Exception as error:
                unavailable = unavailable + 1 if isinstance(error, _UNAVAILABLE) else 0
                if unavailable and (unavailable == _UNAVAILABLE_MAX or len(due) == 1):
                    raise
                if len(part) == 1:
                    self.note(part[0][0], error)
                else:
                    middle = len(part) // 2
                    parts += [part[:middle], part[middle:]]
                continue
            unavailable = 0
            for step, _ in part if self._failures else ():
                self._failures.pop(step, None)
        if remaining := sum(len(part) for part in parts):
            self._notes.append(f"{remaining} further steps are left to the next round")
        return answers

    def note(self, step: str, error: Exception, *, at_once: bool = False) -> None:
        """Record a failed step."""
        before = self._failures.pop(step, None)
        count = before.count + 1 if before else 1
        jitter = self.jitter()
        again_s = retry_wait_s(count, first_s=self.first_s, max_s=self.max_s, jitter=jitter)
        wait_s = 0.0 if at_once else again_s
        if len(self._failures) >= STEPS_MAX:
            del self._failures[min(self._failures, key=lambda name: self._failures[name].due_s)]
        sentence = sentence_of(error)
        self._failures[step] = _Failure(count, self.clock() + wait_s, sentence, self._round)
        again = f"tried again in {wait_s:.0f} s" if wait_s else "tried again in the next round"
        self._notes.append(f"{step} failed ({sentence}), {again}")
        _LOG.warning("%s failed (%s), %s", step, sentence, again)
        log_frames(step, error)
