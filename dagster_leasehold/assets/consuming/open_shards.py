"""The shards that a run has open: the progress of each, and its release.

The batch loop and its helpers share one `OpenShards`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import TypeVar

from dagster_leasehold.assets.consuming.consumption_report import ConsumptionReport, StopReason
from dagster_leasehold.lease_store.errors import LeaseholdError, LeaseLost, StoreError
from dagster_leasehold.lease_store.identifiers import ShardId
from dagster_leasehold.lease_store.ledger_rows import Batch, BatchCommit
from dagster_leasehold.lease_store.roles.tenures import Tenures
from dagster_leasehold.lease_store.rules.consumer_lifecycle import ConsumerState, ShardConsumer
from dagster_leasehold.lease_store.rules.failing_steps import sentence_of
from dagster_leasehold.lease_store.rules.isolation import Suspicion
from dagster_leasehold.lease_store.rules.refusals import lease_lost
from dagster_leasehold.lease_store.shard_rows import Tenure
from dagster_leasehold.lease_store.times import utc_now
from dagster_leasehold.lease_store.tracing import fail, span
from dagster_leasehold.shard_sources.source import ShardBounds

_LOG = logging.getLogger(__name__)

ETA_CHANGE_MIN = 2.0
"""Announce the batch time again only if it changed by this factor."""

Value = TypeVar("Value")


@dataclass
class OpenShard:
    """One shard of a run, open under a tenure.

    Attributes:
        intent: the uncommitted intent of an earlier tenure or a failed attempt, or None.
        numbered: True if the ledger has a row for the batch `sequence`, of any tenure.
        bounds: the bounds of its records at the last poll; None if unknown.
        empty_end: an end cursor before which no record could be read; empty if there is none.
        announced_s: the batch time that was last announced, in seconds, or None.
        failures: the number of failed attempts at the next batch.
        suspicion: the findings of failed attempts about the records after the cursor, or None.
        in_flight: True while its next batch is in flight in a separate job.
        intended: True if the next batch is recorded under this tenure.
        attempt_failed: True if this run's attempt at the next batch failed, and a record can be
            the cause.
        refused: True if this run's attempt at a single record failed.
    """

    tenure: Tenure
    sequence: int
    intent: Batch | None
    numbered: bool
    report: ConsumptionReport
    cursor: str = ""
    bounds: ShardBounds | None = None
    empty_end: str = ""
    announced_s: float | None = None
    failures: int = 0
    suspicion: Suspicion | None = None
    in_flight: bool = False
    intended: bool = False
    attempt_failed: bool = False
    refused: bool = False
    consumer: ShardConsumer = field(default_factory=ShardConsumer)

    def advance(self, commit: BatchCommit) -> None:
        """Continue after a committed batch."""
        self.report = self.report.with_batch(commit.end, commit.statistics)
        self.cursor, self.intent, self.sequence = commit.end, None, self.sequence + 1
        self.numbered = self.intended = self.attempt_failed = self.refused = False
        self.failures, self.suspicion = 0, commit.suspicion

    @property
    def isolating(self) -> bool:
        """True during the search for a record that blocks the shard, and after it was found."""
        return self.suspicion is not None and self.suspicion.isolating

    @property
    def mean_bytes(self) -> float:
        """The mean size of the records that the run has committed; 0 if unknown."""
        records, size = self.report.records, self.report.bytes
        return size / records if records and size else 0.0


class OpenShards:
    """The open shards of one run, and the reports of released ones.

    Attributes:
        unanswered: True if the store did not answer a call about a tenure. The tenure may still be
            open, and then blocks other runs until this run ends.
    """

    def __init__(self, store: Tenures, now: Callable[[], datetime] = utc_now) -> None:
        self._store = store
        self._now = now
        self._open: dict[ShardId, OpenShard] = {}
        self._ended: dict[ShardId, Tenure] = {}
        self._store_unavailable = False
        self.unanswered = False
        self.reports: dict[ShardId, ConsumptionReport] = {}

    def __bool__(self) -> bool:
        return bool(self._open)

    def __contains__(self, shard: ShardId) -> bool:
        return shard in self._open

    def __getitem__(self, shard: ShardId) -> OpenShard:
        return self._open[shard]

    def at_rest(self) -> list[ShardId]:
        """Return the open shards without a batch in flight."""
        return [shard for shard, open_ in self._open.items() if not open_.in_flight]

    def all(self) -> list[OpenShard]:
        """Return a copy of the open shards; a caller can release shards while it iterates."""
        return list(self._open.values())

    def states(self) -> dict[ShardId, ConsumerState]:
        """Return the state of each shard of the run."""
        ended = dict.fromkeys(self.reports, ConsumerState.STOP_COMPLETED)
        return ended | {shard: open_.consumer.state for shard, open_ in self._open.items()}

    def reports_so_far(self) -> list[ConsumptionReport]:
        """Return the current report of each shard of the run."""
        return [*self.reports.values(), *(open_.report for open_ in self._open.values())]

    def add(self, open_: OpenShard) -> None:
        """Add a shard whose tenure was just opened."""
        self._open[open_.tenure.shard] = open_
        self._ended.pop(open_.tenure.shard, None)

    def refuse(self, shard: ShardId, reason: StopReason, error: str, open_by: str = "") -> None:
        """Report a shard that could not be opened."""
        self.reports[shard] = ConsumptionReport(shard, reason, error=error, open_by=open_by)

    def each(
        self, step: Callable[[OpenShard], Value | None], among: Collection[ShardId] | None = None
    ) -> list[Value]:
        """Call `step` with each open shard in `among`, or with all; release shards that fail.

        Returns:
            The results of the steps, without None.
        """
        results: list[Value] = []
        for open_ in self.all():
            if among is not None and open_.tenure.shard not in among:
                continue
            try:
                result = step(open_)
            except LeaseLost as error:
                self.lose(open_, str(error))
            except Exception as error:
                self._fail(open_, error)
            else:
                results += [] if result is None else [result]
        return results

    def review(self) -> None:
        """Check all tenures. Stop consuming shards that are lost, paused or in transfer.

        Closed tenures are checked as well, and closed again if a failover has reopened them:

        1. The run closes a tenure, and the store confirms it.
        2. The database fails over to a replica that lacks that transaction.
        3. The tenure is open again. If it stayed open, no run would consume the shard until this
           run ends.
        """
        ended = list(self._ended.values())
        views = self._store.review([*(open_.tenure for open_ in self.all()), *ended])
        for tenure in ended:
            if views[tenure.shard].current:
                self._close(tenure, "the store lost its earlier release")
        for open_ in self.all():
            view = views[open_.tenure.shard]
            if not view.current:
                self.lose(open_)
            elif view.paused:
                self.stop(open_, StopReason.PAUSED)
            elif view.transfer_to is not None:
                self.stop(open_, StopReason.HANDED_OVER)

    def stop_all(
        self, reason: StopReason, error: str = "", among: Sequence[OpenShard] | None = None
    ) -> None:
        """Release all shards, or the shards in `among`, at their checkpoints.

        Tenures are closed in one transaction, and shards in transfer in a second one.
        """
        # A store that did not answer an earlier call may have recovered.
        self._store_unavailable = False
        shards = self.all() if among is None else among
        if not shards:
            return
        with span("close", shards=len(shards), reason=reason.value):
            closed = self._close_together(shards, reason, error)
            for open_ in shards:
                if open_.tenure.shard in closed:
                    self.end(open_, reason, error)
                else:
                    self.stop(open_, reason, error)

    def _close_together(
        self, shards: Sequence[OpenShard], reason: StopReason, error: str
    ) -> set[ShardId]:
        closed: set[ShardId] = set()
        for attempt_failed in (False, True):
            tenures = [open_.tenure for open_ in shards if open_.attempt_failed is attempt_failed]
            if len(tenures) < 2 or self._store_unavailable:
                continue
            try:
                closed |= self._store.close_tenures(
                    tenures,
                    reason=error or reason.value,
                    attempt_failed=attempt_failed,
                    failed_at=self._failed_at(reason, attempt_failed=attempt_failed),
                )
            except LeaseholdError as unanswered:
                _LOG.warning("%d shards could not be released: %s", len(tenures), unanswered)
                self._store_unavailable = isinstance(unanswered, StoreError)
                self.unanswered |= self._store_unavailable
        return closed

    def stop(self, open_: OpenShard, reason: StopReason, error: str = "") -> None:
        """Release a shard at its checkpoint."""
        open_.consumer = open_.consumer.stop(reason.value)
        loss = self._close(
            open_.tenure,
            error or reason.value,
            attempt_failed=open_.attempt_failed,
            failed_at=self._failed_at(reason, attempt_failed=open_.attempt_failed),
        )
        if loss is None:
            self.end(open_, reason, error)
        else:
            self.lose(open_, str(loss))

    def _failed_at(self, reason: StopReason, *, attempt_failed: bool) -> datetime | None:
        return self._now() if attempt_failed or reason is StopReason.FAILED else None

    def _close(
        self,
        tenure: Tenure,
        reason: str,
        *,
        attempt_failed: bool = False,
        failed_at: datetime | None = None,
    ) -> LeaseLost | None:
        """Close a tenure; return the error if it was already over."""
        try:
            # If the store does not answer, each further call would wait as long as the first.
            if not self._store_unavailable:
                self._store.close_tenure(
                    tenure, reason=reason, attempt_failed=attempt_failed, failed_at=failed_at
                )
        except LeaseLost as lost:
            return lost
        except LeaseholdError as unanswered:
            # The tenure stays open until an observer in the group finds that this run has ended.
            _LOG.warning("Shard %s could not be released: %s", tenure.shard, unanswered)
            self._store_unavailable = isinstance(unanswered, StoreError)
            self.unanswered |= self._store_unavailable
        return None

    def announce(self, eta_s: float) -> None:
        """Announce the batch time to nodes that wait for a transfer."""
        stale = [open_ for open_ in self.all() if _differs(open_.announced_s, eta_s)]
        tenures = [open_.tenure for open_ in stale]
        announced = self._store.announce_all(tenures, handoff_eta_s=eta_s)
        for open_ in stale:
            if open_.tenure.shard in announced:
                open_.announced_s = max(eta_s, 1e-3)
            else:
                self.lose(open_, str(lease_lost(open_.tenure)))

    def _fail(self, open_: OpenShard, error: Exception) -> None:
        """Release a shard whose step raised; the others continue."""
        if not isinstance(error, LeaseholdError):
            _LOG.error("Shard %s failed", open_.tenure.shard, exc_info=error)
        self.stop(open_, StopReason.FAILED, sentence_of(error))

    def lose(self, open_: OpenShard, error: str = "") -> None:
        """Report a shard whose tenure is already over."""
        tenure = open_.tenure
        cause = error or (
            f"Node {tenure.holder} lost shard {tenure.shard} of {tenure.key}: tenure "
            f"{tenure.epoch} is over; nothing was committed since checkpoint {open_.cursor}."
        )
        open_.consumer = open_.consumer.fence(cause)
        self.end(open_, StopReason.LEASE_LOST, cause)

    def end(self, open_: OpenShard, reason: StopReason, error: str = "") -> None:
        """Report a shard whose tenure is closed, and remove it."""
        shard = open_.tenure.shard
        if reason in (StopReason.FAILED, StopReason.LEASE_LOST):
            fail(error)
        open_.consumer = open_.consumer.stop(reason.value).stopped()
        self.reports[shard] = replace(open_.report, stopped=reason, error=error)
        self._ended[shard] = open_.tenure
        del self._open[shard]


def _differs(before_s: float | None, eta_s: float) -> bool:
    return before_s is None or not 1 / ETA_CHANGE_MIN < eta_s / before_s < ETA_CHANGE_MIN
