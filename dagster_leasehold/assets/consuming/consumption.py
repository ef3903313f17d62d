"""The batch loop: one node consumes a set of shards until it has caught up or must stop.

`node_consumption` runs it in a Dagster run, and the simulation in its consumer. Each shard follows
the state machine of `lease_store.rules.consumer_lifecycle`. The loop stops a shard only between
batches, so it always releases the shard at a checkpoint. A run whose lease has expired cannot
commit:

1. This run reads a batch, and its machine pauses it for longer than the lease.
2. The lease expires, and another run opens a new tenure with a higher epoch.
3. This run resumes, finds that its leases are no longer trusted, and commits nothing.
4. If it is paused between that check and the commit, the store refuses its old tenure. Its files
   are in a separate attempt folder, and no commit lists them.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Protocol

from dagster_leasehold.assets.consuming.batch_planning import BatchPlanning, PlannedBatch
from dagster_leasehold.assets.consuming.batch_sizes import BatchSizes
from dagster_leasehold.assets.consuming.bootstrapping import Bootstrapping
from dagster_leasehold.assets.consuming.consumption_report import (
    ConsumptionReport,
    StopReason,
    with_lag_after,
)
from dagster_leasehold.assets.consuming.following import Follow, Following
from dagster_leasehold.assets.consuming.gap_handling import GapHandling
from dagster_leasehold.assets.consuming.isolation import (
    Isolation,
    can_come_from_records,
    run_can_continue,
)
from dagster_leasehold.assets.consuming.log_identity import LogOfGroup
from dagster_leasehold.assets.consuming.open_shards import OpenShards
from dagster_leasehold.assets.consuming.opening import Opening
from dagster_leasehold.assets.consuming.run_requests import RunRequests
from dagster_leasehold.assets.consuming.sweep import (
    OneByOne,
    SeparateJobs,
    Sweeper,
    SweepOutcome,
    SweepResult,
    check_quarantined,
    mistimed_note,
)
from dagster_leasehold.assets.errors import (
    QuarantineLimitExceeded,
    SweepInterrupted,
    TooManyRoutes,
    TransformError,
)
from dagster_leasehold.assets.output.table.columns import ColumnAgreement
from dagster_leasehold.assets.shard_stream import ShardStream
from dagster_leasehold.lease_store import failpoints
from dagster_leasehold.lease_store.errors import CursorExpired, LeaseholdError
from dagster_leasehold.lease_store.identifiers import NodeName, ShardId
from dagster_leasehold.lease_store.ledger_rows import BatchCommit, Intent
from dagster_leasehold.lease_store.outcomes import Changed
from dagster_leasehold.lease_store.rules.consumer_lifecycle import ConsumerState
from dagster_leasehold.lease_store.rules.ledger import intended_batch
from dagster_leasehold.lease_store.store import LeaseStore
from dagster_leasehold.lease_store.times import utc_now
from dagster_leasehold.lease_store.tracing import span

_LOG = logging.getLogger(__name__)
SHARED_SLOT_BUDGET_S = 300.0
"""The budget of a run that follows its shards once other shards wait for its slot, in seconds."""
UNANSWERED = (
    "The lease store did not answer when this run opened or released a shard, so the shard can "
    "still be open to this run. The run ended, and the next one continues at the checkpoints."
)


class Trust(Protocol):
    """The trust window of a node's leases."""

    @property
    def trusted(self) -> bool:
        """True if the node can still rely on its leases."""
        ...


class Consumer:
    """Consumes shards of a stream for one node, in one run.

    Args:
        separate_jobs: runs separate jobs for batches whose earlier attempt failed; by default, one
            after another.
        budget_s: the time after which a run that does not follow its shards ends, in seconds; it
            completes at least one batch. The default is the stream's `run_budget_s`.
        stop_requested: called between batches; if it returns True, the run ends at its checkpoints.
        after_commit: called with the committed batches right after each commit.
        between_batches: called between batches, about once a second while the run waits.
        replaces: for a shard that an ended run left open, the id of that run.
        bootstrap: the cursor of each shard that the node pins with a bootstrap cursor.
        follow: how to wait for more records; None to end once the run has caught up.
        now: the wall clock, for the times of failures and the age of unread records.
        unfinished_by: called with the id of each run that left an intent uncommitted.
    """

    def __init__(
        self,
        *,
        stream: ShardStream,
        store: LeaseStore,
        node: NodeName,
        run: str,
        sweeper: Sweeper,
        separate_jobs: SeparateJobs | None = None,
        heartbeat: Trust,
        clock: Callable[[], float],
        budget_s: float | None = None,
        stop_requested: Callable[[], bool] = lambda: False,
        after_commit: Callable[[Sequence[BatchCommit]], None] | None = None,
        between_batches: Callable[[], object] = lambda: None,
        replaces: Mapping[ShardId, str] | None = None,
        bootstrap: Mapping[ShardId, str] | None = None,
        follow: Follow | None = None,
        now: Callable[[], datetime] = utc_now,
        unfinished_by: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._stream = stream
        self._store = store
        self._node = node
        self._sweeper = sweeper
        self._separate_jobs = separate_jobs or OneByOne(sweeper)
        self._in_flight: dict[ShardId, PlannedBatch] = {}
        self._heartbeat = heartbeat
        self._clock = clock
        self._now = now
        self._budget_s = stream.pace.run_budget_s if budget_s is None else budget_s
        self._stop_requested = stop_requested
        self._after_commit = after_commit
        self._between_batches = between_batches
        self._open = OpenShards(store, now)
        self._log = LogOfGroup(store, stream.key, stream.source)
        self._columns = ColumnAgreement.of_stream(store, stream)
        gaps = GapHandling(store, stream.source)
        self._opening = Opening(
            stream,
            store,
            self._open,
            gaps,
            Bootstrapping(store, stream.source, bootstrap or {}),
            node=node,
            run=run,
            replaces=replaces or {},
            unfinished_by=unfinished_by,
        )
        self._sizes = BatchSizes(stream.limits, stream.pace.handoff_limit_s)
        self._planning = BatchPlanning(
            stream,
            store,
            self._open,
            gaps,
            self._sizes,
            Isolation(stream, store),
            follows=follow is not None,
        )
        self._follow = follow
        self._following = follow and Following(follow, stream.source, self._open, clock)
        self._sweeps = 0

    def states(self) -> dict[ShardId, ConsumerState]:
        """Return the state of each of the run's shards."""
        return self._open.states()

    def consume(self, shards: Sequence[ShardId]) -> dict[ShardId, ConsumptionReport]:
        """Consume these shards until each has stopped; return a report for each.

        A `LeaseholdError` of one shard is in its report, and an error of the whole run in the
        reports of all open shards. Other exceptions propagate after all shards were released.
        """
        began_s = self._clock()
        try:
            self._opening.open(shards)
            if self._open:
                self._log.check()
            failpoints.reach("after_open")
            while self._open:
                self._step(began_s)
        except SweepInterrupted as error:
            self._open.stop_all(StopReason.UNTRUSTED, str(error))
        except LeaseholdError as error:
            self._open.stop_all(StopReason.FAILED, str(error))
        except BaseException:
            # A run that hangs is terminated, so each intent counts as a failed attempt.
            for open_ in self._open.all():
                open_.attempt_failed = open_.intended
            raise
        finally:
            failpoints.reach("before_close")
            self._separate_jobs.interrupt()
            self._open.stop_all(StopReason.INTERRUPTED)
        failpoints.reach("after_close")
        return with_lag_after(self._stream.source, self._open.reports, self._now())

    def _step(self, began_s: float) -> None:
        """Process the batches that are due, or wait until the next poll."""
        following = self._following
        due = following is None or following.batch_due()
        if due or following is None or following.answer_due():
            self._update_shards(began_s, due=due)
        if (due or self._in_flight) and self._open:
            self._sweep(due=due)
        if not due and following is not None and self._open:
            following.wait()
        self._between_batches()
        if following is not None and self._follow is not None and following.show_due():
            self._follow.show(following.progress(self._open.reports_so_far()))

    def _update_shards(self, began_s: float, *, due: bool) -> None:
        """Release and open shards between batches, according to leases, requests and the budget.

        A run that follows its shards ignores its budget until the launcher requests its end: while
        Dagster's daemon is down, no other run would replace it.
        """
        requests = RunRequests() if self._follow is None else self._follow.requests()
        budget_s = self._budget_s if self._follow is None else math.inf
        deadline = began_s + (SHARED_SLOT_BUDGET_S if requests.finish else budget_s)
        idle = requests.finish or (self._following is not None and self._following.idle)
        # Wait for the batches in separate Spark jobs: only this run detects a job that hangs.
        at_rest = not self._in_flight
        # Each run processes a batch, even if the start of Spark takes longer than the budget.
        has_swept = self._sweeps or not due
        if not self._heartbeat.trusted:
            self._open.stop_all(StopReason.UNTRUSTED, self._lease_expired())
        elif self._follow is not None and self._open.unanswered:
            # The store may still have a tenure open until this run ends. A run that does not follow
            # its shards ends soon anyway.
            self._open.stop_all(StopReason.FAILED, UNANSWERED)
        elif self._stop_requested() or (requests.stop and has_swept and at_rest):
            self._open.stop_all(StopReason.STOP_REQUESTED)
        elif has_swept and at_rest and self._clock() >= deadline:
            self._open.stop_all(StopReason.BUDGET_ENDED)
        elif idle and not due and at_rest and not requests.take:
            self._open.stop_all(StopReason.CAUGHT_UP)
        if not self._open:
            return
        for shard in requests.release:
            if shard in self._open:
                self._open.stop(self._open[shard], StopReason.STOP_REQUESTED)
        self._opening.open(requests.take)
        if self._follow is not None and not requests.finish:
            room = max(0, self._stream.pace.shards_per_run - len(self._open.all()))
            self._opening.open(self._follow.gained()[:room], gained=True)
        self._open.review()

    @span("sweep")
    def _sweep(self, *, due: bool) -> None:
        """Process and commit the next batches, and adapt the batch size to the time taken."""
        started_s, limits = self._clock(), self._sizes.limits
        planned = self._planning.plan() if due else []
        commits = self._process_batches(planned) if planned else []
        planned = [batch for batch in planned if not batch.open_.in_flight]
        finished, late_commits = self._commit_finished_jobs()
        planned, commits = [*planned, *finished], [*commits, *late_commits]
        took_s = self._clock() - started_s
        self._sweeps += bool(planned)
        if self._following is not None and (due or planned):
            shards = {commit.tenure.shard for commit in commits}
            self._following.record_sweep(planned, shards, limits, took_s=took_s, all_due=due)
        if commits:
            statistics = [commit.statistics for commit in commits if not commit.suspicion]
            sizes = [(each.records or 0, each.bytes or 0) for each in statistics]
            if sizes:
                self._sizes.record_sweep(sizes, took_s=took_s)
            self._open.announce(self._sizes.expected_s)

    def _process_batches(self, planned: Sequence[PlannedBatch]) -> Sequence[BatchCommit]:
        """Record the intents, run the Spark job, and commit; return the commits."""
        current = self._record_intents(planned)
        if not current:
            return []
        failpoints.reach("after_intent")
        separate = {batch.range_.shard: batch for batch in current if batch.separate}
        self._in_flight |= separate
        for batch in separate.values():
            batch.open_.in_flight = True
        # Each runs in a separate job, so that a job that hangs does not stop the other shards.
        self._separate_jobs.start([batch.retry for batch in separate.values()])
        commits: list[BatchCommit] = []
        if shared := [batch for batch in current if not batch.separate]:
            commits += self._commit_results(shared, self._run_sweep(shared))
        return commits

    def _commit_finished_jobs(self) -> tuple[list[PlannedBatch], list[BatchCommit]]:
        """Commit batches whose separate jobs have ended; wait for one if the run is idle."""
        finished: list[PlannedBatch] = []
        commits: list[BatchCommit] = []
        if not self._in_flight:
            return finished, commits
        idle = self._following is None and not self._open.at_rest()
        for attempt, result in self._separate_jobs.done(wait_s=None if idle else 0.0):
            shard = attempt.range_.shard
            batch = self._in_flight.pop(shard)
            batch.open_.in_flight = False
            if shard in self._open and self._open[shard] is batch.open_:
                finished.append(batch)
                commits += self._commit_results([batch], {shard: result})
        return finished, commits

    def _run_sweep(self, planned: Sequence[PlannedBatch]) -> Mapping[ShardId, SweepResult]:
        numbers = {batch.range_.shard: batch.numbers for batch in planned}
        with span("spark", shards=len(planned)):
            try:
                return self._sweeper([batch.range_ for batch in planned], numbers)
            except LeaseholdError as error:
                for batch in planned:
                    batch.open_.attempt_failed = can_come_from_records(error)
                raise

    def _commit_results(
        self, planned: Sequence[PlannedBatch], results: Mapping[ShardId, SweepResult]
    ) -> Sequence[BatchCommit]:
        failpoints.reach("after_write")
        outcomes = [self._commit_of(batch, results[batch.range_.shard]) for batch in planned]
        commits = [commit for commit in outcomes if commit is not None]
        if commits:
            self._log.check()
        if not self._heartbeat.trusted:
            self._open.stop_all(StopReason.UNTRUSTED, self._lease_expired())
            return []
        failpoints.reach("before_commit")
        return self._commit(commits)

    @span("intents")
    def _record_intents(self, planned: Sequence[PlannedBatch]) -> list[PlannedBatch]:
        """Record the intents; return the batches whose tenures are still current."""
        outcomes = self._store.record_intents(
            [
                Intent(
                    batch.open_.tenure, batch.open_.sequence, batch.range_.start, batch.range_.end
                )
                for batch in planned
            ]
        )
        current: list[PlannedBatch] = []
        for batch in planned:
            if isinstance(outcomes[batch.range_.shard], Changed):
                batch.open_.numbered = batch.open_.intended = True
                current.append(batch)
            else:
                self._open.lose(batch.open_)
        return current

    def _commit_of(self, batch: PlannedBatch, result: SweepResult) -> BatchCommit | None:
        """Return the commit of a result; for a failure, handle it and return None."""
        open_, range_ = batch.open_, batch.range_
        if isinstance(result, CursorExpired):
            self._planning.pass_gap_of_batch(open_, result)
            return None
        if not isinstance(result, SweepOutcome):
            self._handle_failure(batch, result)
            return None
        try:
            if not batch.set_aside:
                check_quarantined(
                    range_, result.statistics.quarantined, self._stream.checks.quarantined_max
                )
            if result.columns:
                self._columns.agree_decoded(result.columns, result.schemas)
        except (QuarantineLimitExceeded, TooManyRoutes, TransformError) as error:
            self._handle_failure(batch, error)
            return None
        if note := mistimed_note(range_, result):
            _LOG.warning(note)
        suspicion = open_.suspicion if open_.isolating else None
        return BatchCommit(
            tenure=open_.tenure,
            sequence=open_.sequence,
            start=range_.start,
            end=range_.end,
            attempt=result.attempt,
            files=result.files,
            statistics=result.statistics,
            finished=batch.last,
            watermark=self._stream.watermark(result.statistics, result.files),
            hooked=self._stream.on_commit is not None,
            mistimed=result.mistimed,
            suspicion=suspicion and suspicion.after(batch.size, quarantined=bool(batch.set_aside)),
        )

    def _handle_failure(self, batch: PlannedBatch, error: LeaseholdError) -> None:
        """Release the shard, or continue to search its batch for the bad record."""
        open_, range_ = batch.open_, batch.range_
        suspicion = open_.suspicion
        if suspicion is None or not open_.isolating or not run_can_continue(error):
            open_.attempt_failed = can_come_from_records(error)
            self._open.stop(open_, StopReason.FAILED, str(error))
            return
        open_.failures += 1
        open_.refused = suspicion.alone
        open_.suspicion = suspicion.because(str(error))
        open_.intent = intended_batch(
            Intent(open_.tenure, open_.sequence, range_.start, range_.end)
        )

    def _commit(self, commits: Sequence[BatchCommit]) -> Sequence[BatchCommit]:
        if not commits:
            return []
        records = sum(commit.statistics.written for commit in commits)
        with span("commit", shards=len(commits), records=records):
            outcomes = self._store.commit(commits)
        failpoints.reach("after_commit")
        successes = [each for each in commits if isinstance(outcomes[each.tenure.shard], Changed)]
        for commit in commits:
            open_ = self._open[commit.tenure.shard]
            if commit not in successes:
                self._open.lose(open_)
                continue
            open_.advance(commit)
            if commit.finished:
                self._open.end(open_, StopReason.FINISHED)
        if successes and self._after_commit is not None:
            self._after_commit(successes)
        return successes

    def _lease_expired(self) -> str:
        return (
            f"Node {self._node} could not renew its lease in time, so this run stopped without "
            "committing its last batch: the next run reads it again."
        )
