"""The steps of sensors: a step is the work of a sensor for one stream.

A sensor serves many streams. In each tick, one thread runs the due steps one after another. While a
step is slow, another thread runs the remaining steps. The tick ends shortly before the next one is
due, even if some steps are still running. So a slow or failing step delays no other step. A later
tick reports the outcome of a step that was still running; until then, the step does not start
again.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextvars import Context, copy_context
from dataclasses import dataclass, field
from functools import partial
from queue import Empty, SimpleQueue
from threading import Event, Lock, Thread

import dagster as dg

from dagster_leasehold.assets.deployment import LEASEHOLD, Deployment, deployment_in
from dagster_leasehold.assets.shard_stream import ShardStream
from dagster_leasehold.lease_store.errors import LeaseholdError
from dagster_leasehold.lease_store.rules.failing_steps import log_frames, sentence_of
from dagster_leasehold.lease_store.rules.liveness import Clock, steady_clock
from dagster_leasehold.lease_store.tracing import fail, span
from dagster_leasehold.sensors.active_runs import ActiveRuns

TICK_S = 4.5
"""The longest duration of a tick, in seconds. The next tick comes after 5 s."""
PATIENCE_S = 0.1
"""After this time, another thread runs the waiting steps, in seconds."""
LAST_CALL_S = 0.5
"""The time for the other steps after a step has requested runs, in seconds."""
EXPLANATION_MAX = 8_000
"""The most characters of a tick's explanation; MySQL stores at most 64 KB per tick."""


@dataclass(frozen=True, slots=True)
class Tick:
    """A tick of a sensor, as passed to each step.

    Attributes:
        runs: the unfinished runs, read once for all steps of a tick.
        cursor: the cursor that the step returned last; empty at first.
        over: set when the tick should end, so that a step that waits for changes returns.
    """

    runs: ActiveRuns
    cursor: str = ""
    over: Event = field(default_factory=Event)

    @property
    def instance(self) -> dg.DagsterInstance:
        """Dagster's instance, which this process keeps open."""
        return self.runs.instance


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of a step.

    Attributes:
        line: what the step did, or why there was nothing to do.
        cursor: the cursor for the next call, stored by Dagster; None keeps the last one.
        trouble: True if something failed; `line` says what.
    """

    line: str
    run_requests: Sequence[dg.RunRequest] = ()
    cursor: str | None = None
    trouble: bool = False


def _unknown() -> str:
    return "its lease store or source has not answered"


@dataclass(frozen=True, slots=True, eq=False)
class Step:
    """A unit of work that a sensor does for a stream.

    Attributes:
        work: does the work once. Calls never overlap.
        every_s: the shortest time between two calls, in seconds.
        waits_for: describes what a slow call of `work` is waiting for.
    """

    stream: ShardStream
    name: str
    work: Callable[[Tick], Outcome]
    every_s: float = 0.0
    waits_for: Callable[[], str] = _unknown

    @property
    def place(self) -> str:
        """The key of the step's cursor within the sensor's cursor."""
        return f"{self.stream.name} {self.name}"

    def run(self, tick: Tick) -> Outcome:
        """Do the work once. A `LeaseholdError` becomes an outcome, with its message as the line."""
        with span("tick", self.stream.key, sensor=self.name):
            try:
                outcome = self.work(tick)
            except LeaseholdError as error:
                outcome = Outcome(str(error), trouble=True)
            if outcome.trouble:
                fail(outcome.line)
            return outcome


class StepFailed(LeaseholdError):
    """A step of a sensor raised an unexpected error."""


class StreamSteps:
    """The steps of one sensor, including steps still running from an earlier tick.

    Attributes:
        explanation: one line for each step of the last tick.
    """

    def __init__(self, steps: Sequence[Step], clock: Clock) -> None:
        self._steps = steps
        self._clock = clock
        self.explanation = ""
        self._due_s: dict[int, float] = {}
        self._running: dict[int, tuple[float, Future[Outcome]]] = {}
        self._waiting: deque[Callable[[], object]] = deque()
        self._finished: SimpleQueue[Future[Outcome]] = SimpleQueue()
        self._busy = Lock()

    def tick(self, instance: dg.DagsterInstance, cursor: str | None) -> dg.SensorResult:
        """Run the steps that are due, and return the result with one line for each."""
        # The daemon abandons a tick after its timeout, and starts the next one while it still runs.
        with self._busy:
            cursors = cursors_in(cursor)
            over = Event()
            self._start(instance, cursors, over)
            self._wait(over)
            return self._result(cursors)

    def _start(self, instance: dg.DagsterInstance, cursors: Mapping[str, str], over: Event) -> None:
        now_s, runs = self._clock(), ActiveRuns(instance)
        for number, step in enumerate(self._steps):
            if number in self._running or self._due_s.get(number, now_s) > now_s:
                continue
            self._due_s[number] = now_s + step.every_s
            tick = Tick(runs, cursors.get(step.place, ""), over)
            future = Future[Outcome]()
            self._running[number] = now_s, future
            self._waiting.append(partial(self._do, copy_context(), step, tick, future))
        self._start_thread()

    def _do(self, context: Context, step: Step, tick: Tick, future: Future[Outcome]) -> None:
        try:
            future.set_result(context.run(step.run, tick))
        except BaseException as error:
            future.set_exception(error)
        self._finished.put(future)

    def _start_thread(self) -> None:
        if self._waiting:
            # Not a thread pool: at exit, Python would wait for the pool's last step.
            Thread(target=_run_all, args=(self._waiting,), daemon=True).start()

    def _wait(self, over: Event) -> None:
        """Wait for all steps, until the tick is over, or shortly after one step requests runs."""
        pending = {future for _, future in self._running.values()}
        until_s = steady_clock() + TICK_S
        while pending and (remaining_s := until_s - steady_clock()) > 0:
            try:
                future = self._finished.get(timeout=min(remaining_s, PATIENCE_S))
            except Empty:
                self._start_thread()
                continue
            pending.discard(future)
            if not over.is_set() and _has_requests(future):
                over.set()
                until_s = min(until_s, steady_clock() + LAST_CALL_S)
        over.set()

    def _result(self, cursors: Mapping[str, str]) -> dg.SensorResult:
        """Return the runs and cursors of the finished steps, and a line for each step."""
        outcomes: dict[Step, Outcome] = {}
        failed = False
        for number, step in enumerate(self._steps):
            if number not in self._running:
                continue
            began_s, future = self._running[number]
            if not future.done():
                line = f"still running after {self._clock() - began_s:.0f} s: {step.waits_for()}"
                outcomes[step] = Outcome(line, trouble=True)
                continue
            del self._running[number]
            if error := future.exception():
                failed = True
                log_frames(step.place, error)
                outcomes[step] = Outcome(f"failed ({sentence_of(error)})", trouble=True)
            else:
                outcomes[step] = future.result()
        text = self.explanation = _explanation(outcomes)
        requests = [each for outcome in outcomes.values() for each in outcome.run_requests]
        new_cursors = {
            step.place: outcome.cursor
            for step, outcome in outcomes.items()
            if outcome.cursor is not None and outcome.cursor != cursors.get(step.place)
        }
        if failed and not requests and not new_cursors:
            raise StepFailed(text)
        places = {step.place for step in self._steps}
        texts = {
            place: text for place, text in {**cursors, **new_cursors}.items() if place in places
        }
        return dg.SensorResult(
            run_requests=requests,
            skip_reason=None if requests else text,
            cursor=json.dumps(texts, separators=(",", ":")) if texts else None,
        )


def _run_all(waiting: deque[Callable[[], object]]) -> None:
    while waiting:
        try:
            do = waiting.popleft()
        except IndexError:
            return  # another thread took the last one
        do()


def _has_requests(future: Future[Outcome]) -> bool:
    return future.exception() is None and bool(future.result().run_requests)


def _explanation(outcomes: Mapping[Step, Outcome]) -> str:
    """Return a line for each step; failures come first, since the text can be truncated."""
    ordered = sorted(outcomes.items(), key=lambda each: not each[1].trouble)
    text = "\n".join(f"{step.place}: {outcome.line}" for step, outcome in ordered)
    if len(text) > EXPLANATION_MAX:
        return f"{text[:EXPLANATION_MAX]} …"
    return text or "No step is due."


def cursors_in(cursor: str | None) -> dict[str, str]:
    """Return the cursors of the steps; none if the sensor's cursor is unreadable."""
    try:
        cursors = json.loads(cursor or "{}")
    except (ValueError, RecursionError):
        return {}
    if not isinstance(cursors, dict):
        return {}
    return {place: text for place, text in cursors.items() if isinstance(text, str)}


_OPENED: list[tuple[object, dg.DagsterInstance]] = []
_OPENING = Lock()


def opened_instance(context: dg.SensorEvaluationContext) -> dg.DagsterInstance:
    """Return Dagster's instance, which this process opens once and keeps.

    `context.instance` would open one in every tick, which is three quarters of an idle tick's cost.
    """
    ref = context.instance_ref
    if ref is None:
        return context.instance
    with _OPENING:
        for of_ref, instance in _OPENED:
            if of_ref == ref:
                return instance
        _OPENED.append((ref, dg.DagsterInstance.from_ref(ref)))
        return _OPENED[-1][1]


def deployment_of_tick(context: dg.SensorEvaluationContext) -> Deployment:
    """Return the deployment in the code location of a ticking sensor.

    At every tick, Dagster would build the resources that a sensor requires, and open an instance.
    So the sensors require none: the first tick of a process builds the deployment, and keeps it.
    """
    location = context.repository_def
    if location is None:
        return deployment_in(context.resources)
    resource = {LEASEHOLD: location.get_top_level_resources()[LEASEHOLD]}
    with dg.build_resources(resource, instance=opened_instance(context)) as resources:
        return deployment_in(resources)
