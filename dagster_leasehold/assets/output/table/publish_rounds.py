"""Publishes the committed output of a stream, at most once per interval across all processes.

Each run has a thread that publishes committed batches when the interval ends; the sensor publishes
the rest. The processes coordinate through the number of publications: when it increases, a process
waits for the rest of the interval. So a table gets one snapshot per interval, regardless of the
number of nodes.

Commits never wait for publications: while the catalog or the table's storage is unavailable, runs
still commit, and their batches are published later.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping
from contextvars import copy_context
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial
from random import random
from threading import Event, Thread
from typing import TYPE_CHECKING, Self

from dagster_leasehold.assets.deployment import Deployment
from dagster_leasehold.assets.shard_stream import ShardStream
from dagster_leasehold.lease_store.identifiers import GroupKey, NodeName
from dagster_leasehold.lease_store.publication_rows import Publication, PublicationLag, PublishLock
from dagster_leasehold.lease_store.roles.publications import Publications
from dagster_leasehold.lease_store.rules.failing_steps import FailingSteps, log_frames, sentence_of
from dagster_leasehold.lease_store.rules.liveness import Clock, steady_clock
from dagster_leasehold.lease_store.store import LeaseStore
from dagster_leasehold.lease_store.times import utc_now

if TYPE_CHECKING:
    from dagster_leasehold.assets.output.table.completeness import ShardTimesReader
    from dagster_leasehold.assets.output.table.publish_locks import PublishReport
    from dagster_leasehold.assets.output.table.publisher import Publisher

_LOG = logging.getLogger(__name__)

LOCK_BUDGET_S = 20.0
"""The time after which a publisher releases the lock, even with a remaining backlog, in seconds."""
CLEANING_EVERY_S = 3_600.0
"""The interval between two removals of orphaned metadata, in seconds."""
CHECK_AGAIN_EVERY_S = 60.0
"""The interval between two checks of held batches, in seconds."""
HELD_MAX_S = 300.0
"""The time after which a lock of this process's node counts as abandoned, in seconds."""
RETRY_EVERY_S = 1.0
"""The interval between a run's retries after a failed publication, in seconds."""
JOIN_TIMEOUT_S = 5.0
"""The longest time that a run waits at its end for a publication in progress, in seconds."""
PUBLISHING = "publishing"

Nodes = Callable[[], Mapping[NodeName, str]]
"""Returns the nodes for which a process can publish, each with its incarnation."""


@dataclass
class PublishRounds:
    """The publisher of one stream in one process.

    Attributes:
        nodes: called before a publication.
        run: the id of the run; empty for the sensor, which also removes orphaned metadata.
        now: the wall clock, which measures the interval since another process published.
        early_s: how long before the due time a tick can publish, in seconds, because the next tick
            would be late.
        jitter: returns the fraction by which to shorten a wait after a failure, in [0, 1), so that
            publishers that were refused together do not retry together.
        snapshot: the newest snapshot of the table, as last read by this process.
        unpublished: False once all committed output is known to be published.
    """

    stream: ShardStream
    deployment: Deployment
    nodes: Nodes
    clock: Clock
    run: str = ""
    ended: Callable[[str], bool] = lambda _: False
    now: Callable[[], datetime] = utc_now
    early_s: float = 0.0
    jitter: Callable[[], float] = random
    steps: FailingSteps = field(init=False)
    snapshot: int | None = None
    unpublished: bool = True
    _publisher: Publisher | None = None
    _shard_times: ShardTimesReader | None = None
    _number: int = 0
    _due_s: float = -math.inf
    _cleaning_due_s: float = -math.inf
    _checks_due_s: float = -math.inf
    _checking: bool = False
    _observed_lock: tuple[int, float] = (0, 0.0)

    def __post_init__(self) -> None:
        self.steps = FailingSteps(self.clock, jitter=self.jitter)

    @property
    def wait_s(self) -> float:
        """The time until the interval ends, in seconds."""
        return max(0.0, self._due_s - self.early_s - self.clock())

    def tick(self) -> tuple[str, bool]:
        """Publish if the interval has ended; return one line, and True if there is a problem."""
        if wait_s := self.wait_s:
            return f"The next publication is due in {wait_s:.0f} s.", False
        store, key = self.deployment.store(), self.stream.key
        publication = store.publication(key) or Publication(key)
        self.snapshot = publication.snapshot
        if publication.number != self._number:
            self._number = publication.number
            self._due_s = self.clock() + self._rest_of_interval_s(publication)
            if wait_s := self.wait_s:
                line = f"Another process publishes; the next publication is due in {wait_s:.0f} s."
                return f"{line}{self._snapshot_text()}", False
        self.unpublished = waits_for_publication(store, key, publication)
        cleaning = not self.run and publication.number and self.clock() >= self._cleaning_due_s
        checking = self._checks_again(store)
        if not (self.unpublished or cleaning or checking):
            return f"Everything that is committed is published.{self._snapshot_text()}", False
        self.steps.begin()
        if self.steps.wait_s(PUBLISHING):
            line, problem = "; ".join(self.steps.notes), False
        else:
            report = self.steps.attempt(
                PUBLISHING, lambda: self._publish_all(store, publication), None
            )
            if report is not None and report.snapshot is not None:
                self.snapshot = report.snapshot
                self.unpublished = report.more
                return f"{report}{self._snapshot_text()}", bool(report.rejected or report.findings)
            line = "; ".join(self.steps.notes) if report is None else str(report).rstrip(".")
            problem = report is None or bool(report.findings)
            if report is None:
                self._due_s = -math.inf  # `steps` delays the retry
        return f"{line}; {PublicationLag.of(store.publication_lag(key))}.", problem

    def _checks_again(self, store: LeaseStore) -> bool:
        """Return True if held batches are due for another check, which only the sensor repeats."""
        checks = self.stream.iceberg.publication_checks
        if self.run or not checks or self.clock() < self._checks_due_s:
            return False
        self._checks_due_s = self.clock() + CHECK_AGAIN_EVERY_S
        self._checking = bool(store.held_shards(self.stream.key))
        return self._checking

    def _rest_of_interval_s(self, publication: Publication) -> float:
        """Return the rest of the interval since another process published, by the wall clock.

        A wrong clock causes at most one additional snapshot, or a delay of one interval.
        """
        interval_s = self.stream.iceberg.publish_interval_s
        since = timedelta() if publication.at is None else self.now() - publication.at
        return min(interval_s, max(0.0, interval_s - since.total_seconds()))

    def _snapshot_text(self) -> str:
        table = self.stream.iceberg.table_name(self.deployment.catalog.name, self.stream.key)
        return "" if self.snapshot is None else f" Snapshot {self.snapshot} of {table}."

    def _publish_all(self, store: LeaseStore, before: Publication) -> PublishReport:
        """Take the lock, and publish until the backlog is empty or `LOCK_BUDGET_S` has passed.

        Each publication has a bounded number of batches. A large backlog is published without waits
        in between.
        """
        # PyIceberg takes a third of a second to load, and is not needed without a backlog.
        from dagster_leasehold.assets.output.table.completeness import ShardTimesReader
        from dagster_leasehold.assets.output.table.group_table import build_publisher
        from dagster_leasehold.assets.output.table.publish_locks import PublishReport, take_lock

        key, settings, catalog = self.stream.key, self.stream.iceberg, self.deployment.catalog
        nodes, holder = dict(self.nodes()), before.node
        if holder is not None and nodes.get(holder) == before.incarnation:
            # Another process of the node publishes, or has died while publishing.
            if not self._is_abandoned(before):
                return PublishReport(explanation=f"Node {holder} publishes.")
            nodes = {holder: before.incarnation}
        if self._publisher is None:
            self._publisher = build_publisher(
                store=store,
                key=key,
                settings=settings,
                catalog=catalog,
                place=self.deployment.output_folder(key),
                watermark=self.stream.watermark_of_batch,
            )
            self._shard_times = ShardTimesReader(self.stream, store, self.clock)
        assert self._shard_times is not None, "It comes with the publisher."
        seen = self._shard_times.read()
        name = settings.table_name(catalog.name, key)
        lock = take_lock(store, key, name, nodes, run=self.run, seen_epoch=before.epoch)
        if not isinstance(lock, PublishLock):
            return lock
        began_s, interval_s = self.clock(), settings.publish_interval_s
        # The interval counts from the due time, so a late tick does not delay the next one.
        punctual = began_s - self._due_s < interval_s
        self._due_s = (self._due_s if punctual else began_s) + interval_s
        try:
            if self._checking:
                self._checking = False
                self._publisher.check_held(lock)
            report = self._publisher.publish(lock, seen)
            while report.more and self.clock() - began_s < LOCK_BUDGET_S:
                report = report.plus(self._publisher.publish(lock, seen))
            if not self.run and self.clock() >= self._cleaning_due_s:
                self._cleaning_due_s = self.clock() + CLEANING_EVERY_S
                age = timedelta(seconds=self.stream.retention.vacuum_after_s)
                self._publisher.remove_orphans(lock, older_than=age)
        finally:
            store.release_publish_lock(lock)
        after = store.publication(key)
        self._number = self._number if after is None else after.number
        return report

    def _is_abandoned(self, before: Publication) -> bool:
        """Return True if no process uses the lock that a node of this process holds."""
        if before.run == self.run or (before.run and self.ended(before.run)):
            return True
        epoch, since_s = self._observed_lock
        if epoch != before.epoch:
            self._observed_lock = before.epoch, self.clock()
            return False
        return self.clock() - since_s >= HELD_MAX_S


def waits_for_publication(store: Publications, key: GroupKey, publication: Publication) -> bool:
    """Return True if committed output waits for publication; takes at most one statement."""
    if publication.changes_pending or publication.pending:
        return True
    return bool(store.unpublished(key, limit=1))


class PublishingRun:
    """A thread that publishes the commits of a run, in parallel with its batches.

    Example:
        >>> with PublishingRun(rounds) as publishing:   # doctest: +SKIP
        ...     publishing.committed()
    """

    def __init__(self, rounds: PublishRounds) -> None:
        self._rounds = rounds
        self._committed = Event()
        self._ended = False
        # The spans of the thread belong to the run.
        work = partial(copy_context().run, self._publish)
        self._thread = Thread(target=work, name="publishing", daemon=True)

    def committed(self) -> None:
        """Request publication of the last commit when the interval ends."""
        self._committed.set()

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended = True
        self._committed.set()
        self._thread.join(JOIN_TIMEOUT_S)

    def _publish(self) -> None:
        rounds, last_line = self._rounds, ""
        while True:
            self._committed.wait()
            self._committed.clear()
            rounds.unpublished = True
            while rounds.unpublished:
                try:
                    line, problem = rounds.tick()
                except Exception as error:
                    # The run and the thread continue.
                    line, problem = sentence_of(error), True
                    log_frames(PUBLISHING, error)
                if problem and line != last_line:
                    _LOG.warning("%s", line)
                    last_line = line
                if self._ended:
                    return
                if rounds.unpublished:
                    self._rest(rounds.wait_s or RETRY_EVERY_S)

    def _rest(self, seconds: float) -> None:
        until_s = steady_clock() + seconds
        while not self._ended and (remaining_s := until_s - steady_clock()) > 0:
            self._committed.wait(remaining_s)
            self._committed.clear()
