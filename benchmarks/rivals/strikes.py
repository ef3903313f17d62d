"""Kills and freezes of whole workers: which, when, and in the middle of what."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from itertools import cycle, islice

import psutil

MARK = "BENCHMARK_WORKER"
"""The variable of the environment by which the processes of a worker are known."""


class Verb(StrEnum):
    KILL = "kill"
    FREEZE = "freeze"


class Moment(StrEnum):
    """The work that a strike comes into.

    Attributes:
        WRITING: right after the worker has begun a file.
        WAITING: half a commit interval after it began its newest one.
    """

    WRITING = "writing"
    WAITING = "waiting"


KINDS = (
    (Verb.FREEZE, Moment.WRITING),
    (Verb.KILL, Moment.WAITING),
    (Verb.FREEZE, Moment.WAITING),
    (Verb.KILL, Moment.WRITING),
)


@dataclass(frozen=True, slots=True)
class Strike:
    """A kill or a freeze of one of two workers, so many seconds after the beginning."""

    at_s: float
    verb: Verb
    moment: Moment
    worker: int


@dataclass(frozen=True, slots=True)
class Schedule:
    """Strikes one slot apart, after a calm; the same for all contestants.

    Each kind of strike comes once before any comes twice, in random order.
    """

    seed: int
    count: int
    calm_s: float = 8.0
    slot_s: float = 25.0

    def strikes(self) -> list[Strike]:
        """Return the strikes, in their order."""
        chance = random.Random(self.seed)
        kinds = list(islice(cycle(KINDS), self.count))
        chance.shuffle(kinds)
        return [
            Strike(self.calm_s + number * self.slot_s, verb, moment, chance.randrange(2))
            for number, (verb, moment) in enumerate(kinds)
        ]


def marked(marks: Iterable[str]) -> Iterator[psutil.Process]:
    """Yield the processes that carry one of these marks."""
    wanted = set(marks)
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if process.environ().get(MARK) in wanted and process.status() != psutil.STATUS_ZOMBIE:
                yield process


def send(mark: str, number: signal.Signals, processes: Iterable[psutil.Process] = ()) -> None:
    """Send a signal to a worker: to these of its processes at once, and then to all others.

    A process that is being started while the signal goes round is found in the next round.
    """
    reached: set[int] = set()
    waiting = list(processes) or list(marked([mark]))
    while waiting:
        for process in waiting:
            with suppress(ProcessLookupError):
                os.kill(process.pid, number)
            reached.add(process.pid)
        waiting = [process for process in marked([mark]) if process.pid not in reached]
