"""Publishes the committed output of a stream, at most once an interval for all processes.

Each run has a thread that publishes committed batches once the interval is over; the sensor
publishes the rest. The processes coordinate by the number of publications: if it has increased, a
process waits for the rest of the interval. So a table gets one snapshot per interval, no matter how
many nodes commit to it.

Commits never wait for publications: runs continue to commit while the catalog or the store of the
table is not available, and these batches are published later.
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
    from dagster_leasehold.assets.output.table.publish_locks import PublishReport
    from dagster_leasehold.assets.output.table.publisher import Publisher

_LOG = logging.getLogger(__name__)

LOCK_BUDGET_S = 20.0
"""The time in seconds after which a publisher releases the lock, even if more is left."""
CLEANING_EVERY_S = 3_600.0
"""The interval between two removals of orphaned metadata, in seconds."""
HELD_MAX_S = 300.0
"""The time after which a lock of the own node counts as left behind, in seconds."""
LOOK_AGAIN_S = 1.0
"""The interval between two tries of a run after a failed publication, in seconds."""
LEAVE_S = 5.0
"""The longest time that a run waits at its end for a publication in progress, in seconds."""
PUBLISHING = "publishing"

Nodes = Callable[[], Mapping[NodeName, str]]
"""Returns the nodes for which a process can publish, each with its incarnation."""


@dataclass
class PublishRounds:
    """The publisher of one stream in one process.

    Attributes:
        deployment: has the lease store, the output folder and the catalog.
        nodes: called before a publication.
        run: the id of the run; empty for the sensor, which also removes orphaned metadata.
        ended: returns True if another run has certainly ended.
        now: the wall clock, which measures the interval since another process published.
        early_s: how much earlier than due a tick publishes, since the next tick would come late.
        jitter: returns the part of a wait after a failure to cut, in [0, 1), so that publishers
            that were refused together do not retry together.
        steps: the failures and their retries.
        snapshot: the table's newest snapshot that this process knows.
        left: False once all committed output is known to be published.
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
    left: bool = True
    _publisher: Publisher | None = None
    _number: int = 0
    _due_s: float = -math.inf
    _cleaning_due_s: float = -math.inf
    _held: tuple[int, float] = (0, 0.0)

    def __post_init__(self) -> None:
        self.steps = FailingSteps(self.clock, jitter=self.jitter)

    @property
    def wait_s(self) -> float:
        """The time until the interval is over, in seconds."""
        return max(0.0, self._due_s - self.early_s - self.clock())

    def tick(self) -> tuple[str, bool]:
        """Publish once the interval is over; return one line, and True if there is a problem.

        Raises:
            LeaseholdError: the lease store does not answer.
        """
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
                return f"{line}{self._place()}", False
        self.left = waits_for_publication(store, key, publication)
        cleaning = not self.run and publication.number and self.clock() >= self._cleaning_due_s
        if not self.left and not cleaning:
            return f"Everything that is committed is published.{self._place()}", False
        self.steps.begin()
        if self.steps.wait_s(PUBLISHING):
            line, trouble = "; ".join(self.steps.notes), False
        else:
            report = self.steps.attempt(
                PUBLISHING, lambda: self._publish_all(store, publication), None
            )
            if report is not None and report.snapshot is not None:
                self.snapshot = report.snapshot
                self.left = report.more
                return f"{report}{self._place()}", bool(report.rejected)
            line = "; ".join(self.steps.notes) if report is None else str(report).rstrip(".")
            if trouble := report is None:
                self._due_s = -math.inf  # the step waits by itself
        return f"{line}; {PublicationLag.of(store.publication_lag(key))}.", trouble

    def _rest_of_interval_s(self, publication: Publication) -> float:
        """Return the rest of the interval since another process published, by the wall clock.

        A wrong clock costs one interval, or one additional snapshot.
        """
        interval_s = self.stream.iceberg.publish_interval_s
        since = timedelta() if publication.at is None else self.now() - publication.at
        return min(interval_s, max(0.0, interval_s - since.total_seconds()))

    def _place(self) -> str:
        """Return a sentence on the table's newest snapshot, or an empty text."""
        table = self.stream.iceberg.table_name(self.deployment.catalog.name, self.stream.key)
        return "" if self.snapshot is None else f" Snapshot {self.snapshot} of {table}."

    def _publish_all(self, store: LeaseStore, before: Publication) -> PublishReport:
        """Take the lock, and publish until nothing is left or `LOCK_BUDGET_S` is over.

        Each publication has a bounded number of batches, and a large backlog is published without a
        wait in between.
        """
        # PyIceberg takes a third of a second to load, and is not needed if nothing waits.
        from dagster_leasehold.assets.output.table.group_table import build_publisher
        from dagster_leasehold.assets.output.table.publish_locks import PublishReport, lock_of

        key, settings, catalog = self.stream.key, self.stream.iceberg, self.deployment.catalog
        nodes, holder = dict(self.nodes()), before.node
        if holder is not None and nodes.get(holder) == before.incarnation:
            # Another process of the node publishes, or has died while publishing.
            if not self._left_behind(before):
                return PublishReport(explanation=f"Node {holder} publishes.")
            nodes = {holder: before.incarnation}
        if self._publisher is None:
            self._publisher = build_publisher(
                store=store,
                key=key,
                settings=settings,
                catalog=catalog,
                place=self.deployment.output_folder(key),
            )
        name = settings.table_name(catalog.name, key)
        lock = lock_of(store, key, name, nodes, run=self.run, seen_epoch=before.epoch)
        if not isinstance(lock, PublishLock):
            return lock
        began_s, interval_s = self.clock(), settings.publish_interval_s
        # The interval counts from the due time, so a late tick does not delay the next one.
        in_time = began_s - self._due_s < interval_s
        self._due_s = (self._due_s if in_time else began_s) + interval_s
        try:
            report = self._publisher.publish(lock)
            while report.more and self.clock() - began_s < LOCK_BUDGET_S:
                report = report.and_then(self._publisher.publish(lock))
            if not self.run and self.clock() >= self._cleaning_due_s:
                self._cleaning_due_s = self.clock() + CLEANING_EVERY_S
                age = timedelta(seconds=self.stream.retention.vacuum_after_s)
                self._publisher.remove_orphans(lock, older_than=age)
        finally:
            store.release_publish_lock(lock)
        after = store.publication(key)
        self._number = self._number if after is None else after.number
        return report

    def _left_behind(self, before: Publication) -> bool:
        """Return True if no process uses the lock of an own node any longer."""
        if before.run == self.run or (before.run and self.ended(before.run)):
            return True
        epoch, since_s = self._held
        if epoch != before.epoch:
            self._held = before.epoch, self.clock()
            return False
        return self.clock() - since_s >= HELD_MAX_S


def waits_for_publication(store: Publications, key: GroupKey, publication: Publication) -> bool:
    """Return True if committed output is not published; it takes at most one statement."""
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
        self._over = False
        # The spans of the thread belong to the run.
        work = partial(copy_context().run, self._publish)
        self._thread = Thread(target=work, name="publishing", daemon=True)

    def committed(self) -> None:
        """Ask for the last commit to be published once the interval is over."""
        self._committed.set()

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over = True
        self._committed.set()
        self._thread.join(LEAVE_S)

    def _publish(self) -> None:
        rounds, last_line = self._rounds, ""
        while True:
            self._committed.wait()
            self._committed.clear()
            rounds.left = True
            while rounds.left:
                try:
                    line, trouble = rounds.tick()
                except Exception as error:
                    # The run and the thread continue.
                    line, trouble = sentence_of(error), True
                    log_frames(PUBLISHING, error)
                if trouble and line != last_line:
                    _LOG.warning("%s", line)
                    last_line = line
                if self._over:
                    return
                if rounds.left:
                    self._rest(rounds.wait_s or LOOK_AGAIN_S)

    def _rest(self, seconds: float) -> None:
        """Wait for some seconds, or for the end of the run."""
        until_s = steady_clock() + seconds
        while not self._over and (remaining_s := until_s - steady_clock()) > 0:
            self._committed.wait(remaining_s)
            self._committed.clear()
