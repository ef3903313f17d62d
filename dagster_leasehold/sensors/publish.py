"""The step that publishes committed output: the ledger's batches go into the stream's table.

Nothing waits for it: runs go on committing while it, the catalog or the store of the table is away,
and what was committed meanwhile is published afterwards.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from random import random
from typing import TYPE_CHECKING

import dagster as dg

from dagster_leasehold.assets.checks import is_news
from dagster_leasehold.assets.deployment import Deployment, instance_address
from dagster_leasehold.assets.shard_stream import ShardStream
from dagster_leasehold.assets.table_check import check_table
from dagster_leasehold.assets.table_metadata import observed_snapshot, table_observation
from dagster_leasehold.lease_store.identifiers import GroupKey
from dagster_leasehold.lease_store.publication_rows import Publication, PublicationLag
from dagster_leasehold.lease_store.roles.publications import Publications
from dagster_leasehold.lease_store.rules.failing_steps import FailingSteps
from dagster_leasehold.lease_store.rules.liveness import Clock, steady_clock
from dagster_leasehold.lease_store.store import LeaseStore
from dagster_leasehold.lease_store.times import utc_now
from dagster_leasehold.sensors.steps import Outcome, Step, Tick

if TYPE_CHECKING:
    from dagster_leasehold.assets.output.table.publish_turns import PublishReport
    from dagster_leasehold.assets.output.table.publisher import Publisher

TICK_BUDGET_S = 20.0
"""The seconds after which a call begins no further publication: other nodes have their turn."""
CLEANING_EVERY_S = 3_600.0
"""The time between two looks for metadata that nothing names any more, in seconds."""
TICK_EARLY_S = 1.0
"""A tick may come so much early, in seconds: left to the next one, the interval would double."""
OBSERVE_EVERY_S = 300.0
"""The shortest time between two observations of a table, in seconds: events are kept for good."""
CHECK_EVERY_S = 3_600.0
"""The time between two comparisons of table and ledger, in seconds."""
PUBLISHING = "publishing"
COMPARING = "comparing table and ledger"


@dataclass
class PublishRounds:
    """The publishing of one stream from this process.

    Attributes:
        stream: the declaration.
        deployment: the lease store, the nodes served here, the output folder and the catalog.
        clock: monotonic seconds.
        now: the time at which the age of what waits is counted.
        jitter: gives the part in [0, 1) by which a wait after a failure is shortened, so that
            publishers that were refused together are not refused together again.
    """

    stream: ShardStream
    deployment: Deployment
    clock: Clock
    now: Callable[[], datetime] = utc_now
    jitter: Callable[[], float] = random
    _steps: FailingSteps = field(init=False)
    _publisher: Publisher | None = None
    _snapshot: int | None = None
    _observed: int | None = None
    _due_s: float = float("-inf")
    _observation_due_s: float = float("-inf")
    _cleaning_due_s: float = float("-inf")
    _check_due_s: float = float("-inf")

    def __post_init__(self) -> None:
        self._steps = FailingSteps(self.clock, jitter=self.jitter)

    def tick(self, address: str) -> tuple[str, bool]:
        """Publish what waits, once the interval is over; return one line, and True for a trouble.

        Args:
            address: under which this deployment's nodes register.

        Raises:
            LeaseholdError: the lease store does not answer.
        """
        wait_s = self._due_s - TICK_EARLY_S - self.clock()
        if wait_s > 0:
            return f"The next publication is due in {wait_s:.0f} s.", False
        store, key = self.deployment.store(), self.stream.key
        publication = store.publication(key)
        self._snapshot = None if publication is None else publication.snapshot
        if not waits_for_publication(store, key, publication):
            return f"Everything that is committed is published.{self._place()}", False
        self._steps.begin()
        if self._steps.wait_s(PUBLISHING):
            line, trouble = "; ".join(self._steps.notes), False
        else:
            report = self._steps.attempt(PUBLISHING, lambda: self._turn(store, address), None)
            if report is not None and report.snapshot is not None:
                self._snapshot = report.snapshot
                return f"{report}{self._place()}", bool(report.rejected)
            line = "; ".join(self._steps.notes) if report is None else str(report).rstrip(".")
            if trouble := report is None:
                self._due_s = float("-inf")  # the step's own wait counts
        return f"{line}; {PublicationLag.of(store.publication_lag(key))}.", trouble

    def _place(self) -> str:
        """Return the sentence on the table's newest snapshot; empty where there is none."""
        table = self.stream.table.table_name(self.deployment.catalog.name, self.stream.key)
        return "" if self._snapshot is None else f" Snapshot {self._snapshot} of {table}."

    def observed(self, instance: dg.DagsterInstance) -> list[dg.AssetObservation]:
        """Return an observation of the table, once in `OBSERVE_EVERY_S` if it has changed.

        Raises:
            LeaseholdError: the lease store or the catalog does not answer.
        """
        if self._snapshot in (None, self._observed) or self.clock() < self._observation_due_s:
            return []
        self._observation_due_s = self.clock() + OBSERVE_EVERY_S
        self._observed = self._observed or observed_snapshot(instance, self.stream)
        if self._observed == self._snapshot:
            return []
        # It loads PyIceberg, as publishing does.
        from dagster_leasehold.assets.output.table.group_table import find_table

        store, key = self.deployment.store(), self.stream.key
        place, catalog = self.deployment.output_folder(key), self.deployment.catalog
        publication = store.publication(key)
        table = find_table(store, key, catalog, place)
        if publication is None or table is None:
            return []
        lag = PublicationLag.of(store.publication_lag(key))
        self._observed = publication.snapshot
        return [table_observation(self.stream, publication, table[0], lag, self.now())]

    def checked(self, instance: dg.DagsterInstance) -> list[dg.AssetCheckEvaluation]:
        """Return the outcome of comparing table and ledger, once in `CHECK_EVERY_S`, if it is news.

        A comparison that fails is tried again after a wait, and fails nothing else.

        Raises:
            StoreError: the lease store does not answer, for the second time.
        """
        if self._snapshot is None or self.clock() < self._check_due_s:
            return []
        self._check_due_s = self.clock() + CHECK_EVERY_S
        check = self._steps.attempt(
            COMPARING, lambda: check_table(self.stream, self.deployment), None
        )
        if check is None:
            self._check_due_s = float("-inf")
            return []
        evaluation = check.evaluation(self.stream, None)
        return [evaluation] if is_news(instance, evaluation, self.now()) else []

    def _turn(self, store: LeaseStore, address: str) -> PublishReport:
        """Take the turn and publish until nothing is left, or the tick has had its time.

        A publication holds a bounded number of batches; what is left of a large backlog needs no
        wait, since each snapshot of it is of other batches.
        """
        # PyIceberg takes a third of a second to load, and is not needed where nothing waits.
        from dagster_leasehold.assets.output.table.group_table import build_publisher
        from dagster_leasehold.assets.output.table.publish_turns import turn_of
        from dagster_leasehold.lease_store.publication_rows import PublishTurn

        key, settings, catalog = self.stream.key, self.stream.table, self.deployment.catalog
        own = self.deployment.own(store.pulse(key).nodes, address)
        nodes = {node.name: node.incarnation for node in own}
        turn = turn_of(store, key, settings.table_name(catalog.name, key), nodes)
        if not isinstance(turn, PublishTurn):
            return turn
        if self._publisher is None:
            self._publisher = build_publisher(
                store=store,
                key=key,
                settings=settings,
                catalog=catalog,
                place=self.deployment.output_folder(key),
            )
        began_s, interval_s = self.clock(), self.stream.table.publish_interval_s
        # Counted from when it was due: after a tick that came late, the next one may be in time.
        in_time = began_s - self._due_s < interval_s
        self._due_s = (self._due_s if in_time else began_s) + interval_s
        try:
            report = self._publisher.publish(turn)
            while report.more and self.clock() - began_s < TICK_BUDGET_S:
                report = report.and_then(self._publisher.publish(turn))
            if self.clock() >= self._cleaning_due_s:
                self._cleaning_due_s = self.clock() + CLEANING_EVERY_S
                age = timedelta(seconds=self.stream.vacuum_after_s)
                self._publisher.remove_orphans(turn, older_than=age)
        finally:
            store.end_publish_turn(turn)
        return report


def waits_for_publication(
    store: Publications, key: GroupKey, publication: Publication | None
) -> bool:
    """Return True if something committed is not published; one statement, however old it is."""
    if publication is not None and (publication.changes_pending or publication.pending):
        return True
    return bool(store.unpublished(key, limit=1))


def publish_step(stream: ShardStream, deployment: Deployment, clock: Clock = steady_clock) -> Step:
    """Return the step `publish`; `clock` gives monotonic seconds."""
    rounds = PublishRounds(stream, deployment, clock)

    def work(tick: Tick) -> Outcome:
        line, trouble = rounds.tick(instance_address(tick.instance))
        events = rounds.observed(tick.instance)
        # What failed a moment ago, and took its time, is not asked again in the same tick.
        for event in [*events, *([] if trouble else rounds.checked(tick.instance))]:
            tick.instance.report_runless_asset_event(event)
        return Outcome(line, trouble=trouble)

    return Step(stream, "publish", work)
