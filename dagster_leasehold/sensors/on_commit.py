"""The step that calls a stream's `on_commit` for committed batches, in order per shard.

A failed call is retried later, and the later batches of its shard wait. Other shards and
consumption do not wait. The process keeps only the time when the next call is due. The outbox
stores the number of failed calls and the last error.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from dagster_leasehold.assets.commit_hook import CommittedBatch, OnCommit
from dagster_leasehold.assets.deployment import Deployment, instance_address
from dagster_leasehold.assets.shard_stream import ShardStream
from dagster_leasehold.assets.spark.users_code import users_error
from dagster_leasehold.lease_store.errors import without_secrets
from dagster_leasehold.lease_store.identifiers import NodeName, ShardId
from dagster_leasehold.lease_store.journal_rows import (
    DeliveryClaim,
    EventKind,
    OutboxEvent,
    WaitingEvents,
)
from dagster_leasehold.lease_store.outcomes import LockOver, LockTaken
from dagster_leasehold.lease_store.rules.failing_steps import FailingSteps, retry_wait_s
from dagster_leasehold.lease_store.rules.liveness import Clock, steady_clock
from dagster_leasehold.sensors.steps import Outcome, Step, Tick

RETRY_FIRST_S = 5.0
RETRY_MAX_S = 600.0
CALLS_PER_SHARD_MAX = 200
TICK_BUDGET_S = 20.0
"""After this time, a tick starts no further call and releases the lock, in seconds."""


@dataclass
class DeliveryReport:
    """The outcome of one tick.

    Attributes:
        failures: a line with the error for each shard whose call failed.
        explanation: why nothing was called, or why the tick stopped early; can be empty.
        troubles: a line for each shard whose batches could not be read or recorded.
    """

    delivered: int = 0
    failures: dict[ShardId, str] = field(default_factory=dict[ShardId, str])
    waiting: int = 0
    explanation: str = ""
    troubles: list[str] = field(default_factory=list[str])

    def __str__(self) -> str:
        """Return the report for display in the sensor's tick."""
        counts = f"{self.delivered} batches delivered, {self.waiting} waiting."
        failed = " ".join(f"Shard {shard}: {error}" for shard, error in self.failures.items())
        troubles = " ".join(f"{trouble}." for trouble in self.troubles)
        return " ".join(part for part in (counts, self.explanation, failed, troubles) if part)


class HookDelivery:
    """Calls one stream's hook from this process."""

    def __init__(
        self,
        stream: ShardStream,
        deployment: Deployment,
        *,
        clock: Callable[[], float],
        jitter: Callable[[], float],
    ) -> None:
        assert stream.on_commit is not None
        self._stream = stream
        self._hook: OnCommit = stream.on_commit
        self._deployment = deployment
        self._clock = clock
        self._jitter = jitter
        self._due_s: dict[ShardId, float] = {}
        self._steps = FailingSteps(clock)
        self._calling: tuple[str, float] = ("", 0.0)

    def tick(self, address: str) -> DeliveryReport:
        """Call the hook for the events that are due; failures are in the report."""
        self._steps.begin()
        report = self._deliver(address)
        report.troubles = self._steps.notes
        return report

    def calling(self) -> str:
        """Describe the call in progress."""
        batch, since_s = self._calling
        waited_s = self._clock() - since_s
        return f"on_commit was called for batch {batch} {waited_s:.0f} s ago and has not returned"

    def _deliver(self, address: str) -> DeliveryReport:
        store, key = self._deployment.store(), self._stream.key
        waiting = store.waiting_events(key, EventKind.HOOK)
        now_s = self._clock()
        shards = {each.shard for each in waiting}
        self._due_s = {shard: at_s for shard, at_s in self._due_s.items() if shard in shards}
        due = [each for each in waiting if self._due_s.get(each.shard, now_s) <= now_s]
        report = DeliveryReport(waiting=sum(each.count for each in waiting))
        if not due:
            wait_s = min((self._due_s[each.shard] - now_s for each in waiting), default=0.0)
            report.explanation = f"The next call is due in {wait_s:.0f} s." if waiting else ""
            return report
        member = self._live_node(address)
        if member is None:
            report.explanation = "No live node of the group belongs to this deployment."
            return report
        lock = store.take_delivery_lock(key, *member)
        if isinstance(lock, LockTaken):
            report.explanation = f"Node {lock.node or 'of another deployment'} delivers."
            return report
        try:
            self._call_all(lock, due, now_s + TICK_BUDGET_S, report)
        finally:
            store.release_delivery_lock(lock)
        return report

    def _live_node(self, address: str) -> tuple[NodeName, str] | None:
        nodes = self._deployment.store().pulse(self._stream.key).nodes
        own = self._deployment.own(nodes, address)
        return next(((node.name, node.incarnation) for node in own), None)

    def _call_all(
        self,
        lock: DeliveryClaim,
        due: list[WaitingEvents],
        deadline_s: float,
        report: DeliveryReport,
    ) -> None:
        for each in sorted(due, key=lambda waiting: waiting.oldest.sequence):
            calls = partial(self._call_shard, lock, each.shard, deadline_s, report)
            if not self._steps.attempt(f"shard {each.shard}", calls, True):
                return

    def _call_shard(
        self, lock: DeliveryClaim, shard: ShardId, deadline_s: float, report: DeliveryReport
    ) -> bool:
        """Call the hook for one shard's batches in order; return False if the tick must end."""
        events = self._deployment.store().pending_events(
            lock.key, kind=EventKind.HOOK, shard=shard, limit=CALLS_PER_SHARD_MAX
        )
        for event in events:
            if self._clock() >= deadline_s:
                report.explanation = "The remaining batches wait for the next tick."
                return False
            failure = self._call(event)
            settled = self._deployment.store().settle_event(lock, event.sequence, error=failure)
            if isinstance(settled, LockOver):
                report.explanation = "Another deployment took over the delivery."
                return False
            if failure:
                self._postpone(event, failure, report)
                break
            self._due_s.pop(event.shard, None)
            report.delivered += 1
            report.waiting -= 1
        return True

    def _call(self, event: OutboxEvent) -> str:
        """Call the hook once; return the error as text, or an empty text."""
        self._calling = (event.batch_id, self._clock())
        try:
            folder = self._deployment.output_folder(self._stream.key)
            self._hook(CommittedBatch.of(event, self._stream.key, folder))
        except Exception as error:
            return without_secrets(users_error(error))
        return ""

    def _postpone(self, event: OutboxEvent, failure: str, report: DeliveryReport) -> None:
        wait_s = retry_wait_s(
            event.attempts + 1, first_s=RETRY_FIRST_S, max_s=RETRY_MAX_S, jitter=self._jitter()
        )
        self._due_s[event.shard] = self._clock() + wait_s
        report.failures[event.shard] = (
            f"on_commit failed for batch {event.batch_id} at attempt {event.attempts + 1} "
            f"({failure}); the next attempt is in {wait_s:.0f} s."
        )


def on_commit_step(
    stream: ShardStream,
    deployment: Deployment,
    *,
    clock: Clock = steady_clock,
    jitter: Callable[[], float] = random.random,
) -> Step:
    """Return the step `on_commit` of a stream with that hook.

    `clock` returns monotonic seconds, and `jitter` a number in [0, 1).
    """
    delivery = HookDelivery(stream, deployment, clock=clock, jitter=jitter)

    def work(tick: Tick) -> Outcome:
        report = delivery.tick(instance_address(tick.instance))
        return Outcome(str(report), trouble=bool(report.failures or report.troubles))

    return Step(stream, "on_commit", work, waits_for=delivery.calling)
