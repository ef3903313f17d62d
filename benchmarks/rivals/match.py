"""One contestant under the kills and freezes of a schedule, from its start to its last record."""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from statistics import median
from typing import Any

import psutil

from benchmarks.figures.node_processes import RESTART_S
from benchmarks.figures.process_tree import MEBIBYTE, memory_bytes
from benchmarks.rivals.contestants import INTERVAL_S, Contestant
from benchmarks.rivals.log_feed import SHARDS, Feed
from benchmarks.rivals.output_files import Sightings, all_files, lost_and_doubled
from benchmarks.rivals.strikes import MARK, Moment, Schedule, Strike, Verb, marked, send

LOOK_S, POLL_S, AIM_S = 0.25, 0.05, 0.001
AIM_MAX_S = 4.0
"""The longest wait for a moment to strike at: a worker without records never comes to it."""
START_S, END_S = 120.0, 90.0
FREEZE_BEYOND_S = 3.0


@dataclass(slots=True)
class Worker:
    """A worker's place: the process that has it now, and what happens to it."""

    number: int
    mark: str
    process: subprocess.Popen[bytes]
    frozen_s: float | None = None
    replaced: bool = False


@dataclass(slots=True)
class Result:
    """The outcome of a match.

    Attributes:
        recoveries: seconds until the records behind each strike were readable; None is never.
        age_s: of records when they became readable, before the first strike.
        cores, memory_mib, processes: of all its processes, before the first strike.
    """

    records: int
    lost: int
    doubled: int
    recoveries: list[tuple[Strike, float | None]]
    age_s: float
    cores: float
    memory_mib: float
    processes: int

    def row(self, name: str) -> dict[str, Any]:
        """Return the cells of a row."""
        return {
            "contestant": name,
            "records": self.records,
            "lost": self.lost,
            "doubled": self.doubled,
            **self._recovery(Verb.KILL),
            **self._recovery(Verb.FREEZE),
            "age s": round(self.age_s, 1),
            "cores": round(self.cores, 2),
            "MiB": round(self.memory_mib),
            "processes": self.processes,
        }

    def _recovery(self, verb: Verb) -> dict[str, Any]:
        seconds = [took for strike, took in self.recoveries if strike.verb is verb]
        whole = [took for took in seconds if took is not None]
        shown = {"s": "", "max s": ""}
        if whole:
            shown = {"s": round(median(whole), 1), "max s": round(max(whole), 1)}
        if len(whole) < len(seconds):
            shown["max s"] = "never"
        return {f"{verb} {key}": value for key, value in shown.items()}


@dataclass(slots=True)
class Match:
    """A match, played by `play` in its contestant's block."""

    contestant: Contestant
    schedule: Schedule
    say: Callable[[str], None]
    _workers: dict[int, Worker] = field(default_factory=dict)
    _sightings: Sightings = field(default_factory=Sightings)
    _looked_s: float = 0.0
    _starts: int = 0

    def play(self) -> Result:
        """Start the workers, strike, and count.

        Raises:
            RuntimeError: it did not start.
        """
        with ExitStack() as stack:
            stack.callback(self._end)
            for number in range(self.contestant.workers):
                self._start(number)
            feed = stack.enter_context(Feed(self.contestant.log))
            self._until("all workers wrote", self._all_write, START_S)
            self.say("all workers write")
            began_s, cpu_s = time.monotonic(), self._cpu_s()
            self._spend_until(began_s + self.schedule.calm_s)
            calm_s = time.monotonic()
            cores = (self._cpu_s() - cpu_s) / (calm_s - began_s)
            processes = list(marked(self._marks()))
            memory = memory_bytes(processes) / MEBIBYTE
            moments: list[tuple[Strike, float]] = []
            for strike in self.schedule.strikes():
                self._spend_until(began_s + strike.at_s)
                moments.append((strike, self._strike(strike)))
            self._spend_until(began_s + moments[-1][0].at_s + self.schedule.slot_s)
            feed.__exit__()
            with suppress(RuntimeError):
                self._until("all was read", lambda: self._sightings.readable(feed.end), END_S)
            # Whoever woke up last has written what it still had, by now.
            self._spend_until(time.monotonic() + 2 * INTERVAL_S)
            lost, doubled = lost_and_doubled(self.contestant.readable(), feed.end)
        calm = [append for append in feed.appends if began_s < append[0] < calm_s]
        recoveries = [
            (strike, self._sightings.recovery_s(at_s, feed.appends)) for strike, at_s in moments
        ]
        for strike, seconds in recoveries:
            self.say(f"{strike.verb} of worker {strike.worker} while {strike.moment}: {seconds}")
        return Result(
            records=feed.end * SHARDS,
            lost=lost,
            doubled=doubled,
            recoveries=recoveries,
            age_s=self._sightings.age_s(calm),
            cores=cores,
            memory_mib=memory,
            processes=len(processes),
        )

    def _strike(self, strike: Strike) -> float:
        """Strike a worker at its moment, and return when that was."""
        worker = self._victim(strike.worker)
        processes = list(marked([worker.mark]))
        self._aim(worker.number, strike.moment)
        freeze = strike.verb is Verb.FREEZE
        at_s = time.monotonic()
        send(worker.mark, signal.SIGSTOP if freeze else signal.SIGKILL, processes)
        worker.frozen_s = at_s if freeze else None
        self.say(f"{strike.verb} worker {worker.number} while {strike.moment}")
        return at_s

    def _victim(self, number: int) -> Worker:
        standing = [each for each in self._workers.values() if each.frozen_s is None]
        return self._workers[number] if self.contestant.workers > 1 else standing[-1]

    def _aim(self, number: int, moment: Moment) -> None:
        """Return when a worker has just begun a file, or half an interval after that."""
        alone = self.contestant.workers == 1
        before = set(all_files(str(self.contestant.output)))
        deadline = time.monotonic() + AIM_MAX_S
        while time.monotonic() < deadline:
            begun = set(all_files(str(self.contestant.output))) - before
            if begun and (alone or number in self.contestant.writers(begun)):
                break
            before |= begun
            time.sleep(AIM_S)
        else:
            self.say(f"worker {number} began no file in {AIM_MAX_S:.0f} s")
        if moment is Moment.WAITING:
            time.sleep(INTERVAL_S / 2)

    def _spend_until(self, end_s: float) -> None:
        while time.monotonic() < end_s:
            self._look()

    def _until(self, what: str, reached: Callable[[], bool], patience_s: float) -> None:
        deadline = time.monotonic() + patience_s
        while not reached():
            if time.monotonic() > deadline:
                raise RuntimeError(f"{self.contestant.name}: waited in vain until {what}")
            self._look()

    def _look(self) -> None:
        """Supervise the workers, and note what has become readable."""
        time.sleep(POLL_S)
        now_s = time.monotonic()
        if now_s - self._looked_s >= LOOK_S:
            self._sightings.look(self.contestant.readable(), now_s)
            self._looked_s = now_s
        for worker in list(self._workers.values()):
            self._supervise(worker, now_s)

    def _supervise(self, worker: Worker, now_s: float) -> None:
        """Wake a worker, replace a single one that is silent, start one that has ended."""
        timeout_s = self.contestant.timeout_s
        if worker.frozen_s is not None:
            silent_s = now_s - worker.frozen_s
            if silent_s >= timeout_s + FREEZE_BEYOND_S:
                send(worker.mark, signal.SIGCONT)
                worker.frozen_s = None
                self.say(f"worker {worker.number} wakes up")
            elif silent_s >= timeout_s and self.contestant.workers == 1 and not worker.replaced:
                # Nobody can know that it will wake up: to its supervisor its host is gone.
                worker.replaced = True
                self._start(max(self._workers) + 1)
        elif worker.process.poll() is not None:
            self.say(f"worker {worker.number} has ended")
            send(worker.mark, signal.SIGKILL)
            del self._workers[worker.number]
            if self.contestant.workers > 1 or not self._workers:
                time.sleep(RESTART_S)
                self._start(worker.number)

    def _start(self, number: int) -> None:
        self._starts += 1
        mark = f"{self.contestant.name} {number} {self._starts}"
        with (self.contestant.folder / f"worker-{number}.log").open("ab") as log:
            process = subprocess.Popen(
                self.contestant.command(number),
                env={**self.contestant.environment(), MARK: mark},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self._workers[number] = Worker(number, mark, process)

    def _all_write(self) -> bool:
        """Return True if every worker has begun a file, and a record of each shard is readable."""
        if not self._sightings.readable(1):
            return False
        writing = self.contestant.writers(set(all_files(str(self.contestant.output))))
        return writing >= set(range(self.contestant.workers))

    def _marks(self) -> list[str]:
        return [self.contestant.control_mark, *(each.mark for each in self._workers.values())]

    def _cpu_s(self) -> float:
        total = 0.0
        for process in marked(self._marks()):
            with suppress(psutil.Error):
                times = process.cpu_times()
                total += times.user + times.system + times.children_user + times.children_system
        return total

    def _end(self) -> None:
        for worker in self._workers.values():
            send(worker.mark, signal.SIGKILL)
            worker.process.wait()
