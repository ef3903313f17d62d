"""The batch loop: one node consumes a set of shards until they are read, or until it must stop.

For every shard the loop drives the state machine of `lease_store.rules.consumer_lifecycle`, as
workers and clients do; what moves it is looked at between two batches only, so that a shard is
always let go at a checkpoint. What a stale holder could break, and why it does not:

1. This run reads a batch and is paused by its machine for longer than the lease.
2. The node is judged dead, and another run opens a new tenure with a higher epoch.
3. This run wakes and finds that its heartbeat is trusted no more: it commits nothing.
4. Were it to wake between that check and the commit, the store would refuse its old tenure;
   its files lie in a folder of their own and are named nowhere.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from dagster_leasehold.assets.consuming.bootstrapping import Bootstrapping
from dagster_leasehold.assets.consuming.consumption_report import (
    ConsumptionReport,
    StopReason,
    with_lag_after,
)
from dagster_leasehold.assets.consuming.gap_handling import GapHandling
from dagster_leasehold.assets.consuming.starting_position import initial_position
from dagster_leasehold.assets.consuming.sweep import (
    Sweeper,
    SweepOutcome,
    SweepResult,
    check_quarantined,
    watermark_after,
)
from dagster_leasehold.assets.errors import QuarantineLimitExceeded, SweepInterrupted
from dagster_leasehold.assets.shard_stream import ShardStream
from dagster_leasehold.lease_store import failpoints
from dagster_leasehold.lease_store.errors import (
    CursorExpired,
    LeaseholdError,
    LeaseLost,
    StoreError,
)
from dagster_leasehold.lease_store.failpoints import Failpoint
from dagster_leasehold.lease_store.heartbeat import Trust
from dagster_leasehold.lease_store.identifiers import NodeName, ShardId
from dagster_leasehold.lease_store.ledger_rows import Batch, BatchCommit, Intent
from dagster_leasehold.lease_store.outcomes import Changed, NotHeld, OpenByOther, Opened
from dagster_leasehold.lease_store.rules.consumer_lifecycle import ConsumerState, ShardConsumer
from dagster_leasehold.lease_store.rules.failing_steps import sentence_of
from dagster_leasehold.lease_store.rules.starting_point import first_position, resumption
from dagster_leasehold.lease_store.shard_rows import Tenure
from dagster_leasehold.lease_store.store import LeaseStore
from dagster_leasehold.shard_sources import source as reading
from dagster_leasehold.shard_sources.source import PlannedRange, Position, ReadRange, ShardBounds

_LOG = logging.getLogger(__name__)
ETA_CHANGE_MIN = 2.0
"""By what factor the time of a batch must change for the announced one to be worth a write."""


@dataclass
class _Consumption:
    """One shard of this run, open under a tenure.

    `intent` is an earlier tenure's; `numbered`: the ledger has a row for the batch `sequence`.
    """

    tenure: Tenure
    sequence: int
    intent: Batch | None
    numbered: bool
    report: ConsumptionReport
    cursor: str = ""
    bounds: ShardBounds | None = None
    announced_s: float | None = None
    consumer: ShardConsumer = field(default_factory=ShardConsumer)


@dataclass(frozen=True, slots=True)
class _Planned:
    """The next batch of a shard; `last` when a read-only shard ends with it."""

    consumption: _Consumption
    range_: ReadRange
    last: bool


class Consumer:
    """Consumes shards of a stream for one node, in one run.

    Args:
        stream: the stream's declaration: source, limits, quarantine limit.
        store: where leases, checkpoints and the ledger are.
        node: the node that holds the shards.
        run: the unique id of this run.
        sweeper: reads, transforms and writes.
        heartbeat: whether the node's leases may be relied on.
        clock: a monotonic clock, in seconds.
        budget_s: after how many seconds the rest is left to the next run; at least one batch is
            made. By default the stream's.
        stop_requested: asked between batches; once true, the run ends at that checkpoint.
        after_commit: told of every batch right after its commit.
        replaces: for a shard, the run that had it open and is known to have ended.
        bootstrap: for a shard that the node pins, the cursor at which it begins, once.
    """

    def __init__(
        self,
        *,
        stream: ShardStream,
        store: LeaseStore,
        node: NodeName,
        run: str,
        sweeper: Sweeper,
        heartbeat: Trust,
        clock: Callable[[], float],
        budget_s: float | None = None,
        stop_requested: Callable[[], bool] = lambda: False,
        after_commit: Callable[[Sequence[BatchCommit]], None] | None = None,
        replaces: Mapping[ShardId, str] | None = None,
        bootstrap: Mapping[ShardId, str] | None = None,
    ) -> None:
        self._stream = stream
        self._store = store
        self._node = node
        self._run = run
        self._sweeper = sweeper
        self._heartbeat = heartbeat
        self._clock = clock
        self._budget_s = stream.run_budget_s if budget_s is None else budget_s
        self._stop_requested = stop_requested
        self._after_commit = after_commit
        self._replaces = replaces or {}
        self._gaps = GapHandling(store, stream.source)
        self._bootstrap = Bootstrapping(store, stream.source, bootstrap or {})
        self._open: dict[ShardId, _Consumption] = {}
        self._reports: dict[ShardId, ConsumptionReport] = {}
        self._sweeps = 0
        self._sweeping_s = 0.0
        self._store_silent = False

    def states(self) -> dict[ShardId, ConsumerState]:
        """Where the run stands with each of its shards."""
        ended = dict.fromkeys(self._reports, ConsumerState.STOP_COMPLETED)
        return ended | {shard: open_.consumer.state for shard, open_ in self._open.items()}

    def consume(self, shards: Sequence[ShardId]) -> dict[ShardId, ConsumptionReport]:
        """Consume these shards until each has a reason to stop; one report per shard.

        An error that concerns one shard is in its report, and one that concerns all in theirs.
        Whatever else is raised, an interrupt included, goes on to the caller after all shards
        have been let go.
        """
        deadline = self._clock() + self._budget_s
        try:
            self._open_all(shards)
            failpoints.reach(Failpoint.AFTER_OPEN)
            while self._open:
                self._look_up(deadline)
                if planned := self._plan_all():
                    self._make_batches(planned)
        except SweepInterrupted as error:
            self._stop_all(StopReason.UNTRUSTED, str(error))
        except LeaseholdError as error:
            self._stop_all(StopReason.FAILED, str(error))
        finally:
            failpoints.reach(Failpoint.BEFORE_CLOSE)
            self._stop_all(StopReason.INTERRUPTED)
        failpoints.reach(Failpoint.AFTER_CLOSE)
        return with_lag_after(self._stream.source, self._reports)

    # -- INITIALIZING ---------------------------------------------------------------------------

    def _open_all(self, shards: Sequence[ShardId]) -> None:
        for shard in dict.fromkeys(shards):
            self._open_one(shard)
        self._read_bounds()
        parents: Mapping[ShardId, bool] | None = None
        position = self._stream.initial_position
        if any(open_.report.start is None for open_ in self._open.values()):
            snapshot = self._store.snapshot(self._stream.key)
            position = snapshot.group.initial_position
            parents = {lease.shard: bool(lease.parents) for lease in snapshot.shards}
        for shard, open_ in list(self._open.items()):
            try:
                self._bootstrap_at(open_)
                if open_.report.start is None:
                    self._begin(open_, position, child=bool(parents and parents.get(shard)))
                self._start(open_)
            except LeaseLost as error:
                self._lose(open_, str(error))
            except Exception as error:
                self._fail(open_, error)

    def _open_one(self, shard: ShardId) -> None:
        key, replaces = self._stream.key, self._replaces.get(shard)
        try:
            self._bootstrap.apply(key, shard, self._node, self._run)
            outcome = self._store.open_tenure(key, shard, self._node, self._run, replaces=replaces)
        except Exception as error:
            sentence = sentence_of(error)
            self._reports[shard] = ConsumptionReport(shard, StopReason.FAILED, error=sentence)
            return
        match outcome:
            case Opened(tenure, check_point, sequence, intent):
                start = resumption(check_point, intent)
                report = ConsumptionReport(shard, StopReason.INTERRUPTED, start=start, end=start)
                numbered = intent is not None
                self._open[shard] = _Consumption(tenure, sequence, intent, numbered, report)
            case OpenByOther(run):
                reason = StopReason.OPEN_BY_OTHER
                sentence = f"Shard {shard} is being consumed by run {run}: wait until it ends."
                self._reports[shard] = ConsumptionReport(shard, reason, error=sentence, open_by=run)
            case NotHeld(state, owner):
                held_by = f", held by node {owner}" if owner else ""
                sentence = (
                    f"Node {self._node} may not consume shard {shard} of {key}: it is {state}"
                    f"{held_by}."
                )
                self._reports[shard] = ConsumptionReport(shard, StopReason.NOT_HELD, error=sentence)

    def _bootstrap_at(self, open_: _Consumption) -> None:
        if open_.intent is None:
            start = self._bootstrap.beginning(open_.tenure, open_.report.start)
            open_.report = replace(open_.report, start=start, end=start)

    def _begin(self, open_: _Consumption, position: str, *, child: bool) -> None:
        """Choose where a shard without a checkpoint begins."""
        wanted = first_position(position, child=child)
        at = Position.BEGIN if wanted is None else initial_position(wanted)
        shard, bounds = open_.tenure.shard, open_.bounds
        removed = bounds is not None and bounds.removed and at is not Position.END
        if bounds is not None and (child or removed):
            # Both of one answer: two of a shard that nobody has written to may name other cursors.
            cursor = bounds.begin
            if bounds.origin not in (None, cursor):
                why = "retention removed the beginning of a child before its parents were finished"
                if removed:
                    why = "retention removed the shard as a whole before it was read"
                cursor = self._gaps.settle(open_.tenure, str(bounds.origin), why)
        else:
            cursor = self._stream.source.cursor_at(shard, at)
        if at is not Position.BEGIN:
            # The end moves on: without this, a run that dies before its first commit would let
            # the next one begin somewhere else.
            self._store.save_checkpoint(open_.tenure, cursor)
        open_.report = replace(open_.report, start=cursor, end=cursor)

    def _start(self, open_: _Consumption) -> None:
        assert open_.report.start is not None
        open_.cursor = open_.report.start
        open_.report = replace(open_.report, lag_before=self._lag(open_))
        open_.consumer = open_.consumer.initialized()

    def _read_bounds(self) -> None:
        source = self._stream.source
        places = {shard: open_.report.start for shard, open_ in self._open.items()}
        try:
            found = reading.bounds_for(source, places) if places else {}
        except Exception:
            found = {}
        for shard, place in places.items():
            try:
                # One shard that the source no longer knows must not hide the bounds of the rest.
                bounds = found.get(shard) or reading.bounds_for(source, {shard: place})[shard]
                self._open[shard].bounds = bounds
            except Exception as error:
                self._fail(self._open[shard], error)

    # -- PROCESSING -----------------------------------------------------------------------------

    def _look_up(self, deadline: float) -> None:
        """Between two batches: continue, hand over, or stop."""
        if not self._heartbeat.trusted:
            self._stop_all(StopReason.UNTRUSTED, self._distrust())
        elif self._stop_requested():
            self._stop_all(StopReason.STOP_REQUESTED)
        elif self._sweeps and self._clock() >= deadline:
            self._stop_all(StopReason.BUDGET_ENDED)
        if not self._open:
            return
        views = self._store.review([open_.tenure for open_ in self._open.values()])
        for shard, open_ in list(self._open.items()):
            view = views[shard]
            if not view.current:
                self._lose(open_)
            elif view.paused:
                self._stop(open_, StopReason.PAUSED)
            elif view.transfer_to is not None:
                self._stop(open_, StopReason.HANDED_OVER)

    def _plan_all(self) -> list[_Planned]:
        planned: list[_Planned] = []
        for open_ in list(self._open.values()):
            try:
                batch = self._plan(open_)
            except LeaseLost as error:
                self._lose(open_, str(error))
            except Exception as error:
                self._fail(open_, error)
            else:
                planned += [batch] if batch else []
        return planned

    def _plan(self, open_: _Consumption) -> _Planned | None:
        while True:
            try:
                return self._plan_from_cursor(open_)
            except CursorExpired as error:
                self._pass_gap(open_, error)

    def _pass_gap(self, open_: _Consumption, error: CursorExpired) -> None:
        """Go on behind records that are gone, if the group's policy allows it."""
        open_.cursor = self._gaps.settle(open_.tenure, open_.cursor, str(error))
        # The ledger keeps what was intended there as abandoned, under its number.
        open_.sequence += open_.numbered
        open_.intent, open_.numbered = None, False
        open_.report = replace(open_.report, end=open_.cursor)

    def _plan_from_cursor(self, open_: _Consumption) -> _Planned | None:
        shard = open_.tenure.shard
        if open_.intent is not None:
            # Retention may have been faster than the run that takes over.
            self._stream.source.plan(shard, open_.intent.start, self._stream.limits)
            # The same range under the same number, so that a sink that saw the batch knows it.
            range_ = ReadRange(shard, open_.intent.start, open_.intent.end)
            bounds = open_.bounds
            last = bounds is not None and bounds.finished and range_.end == bounds.end
            return _Planned(open_, range_, last)
        plan: PlannedRange = self._stream.source.plan(shard, open_.cursor, self._stream.limits)
        if plan.end != open_.cursor:
            range_ = ReadRange(shard, open_.cursor, plan.end, plan.records)
            return _Planned(open_, range_, plan.last)
        if not plan.last:
            self._stop(open_, StopReason.CAUGHT_UP)
        elif isinstance(self._store.finish_empty(open_.tenure, open_.cursor), Changed):
            self._end(open_, StopReason.FINISHED)
        else:
            self._lose(open_)
        return None

    def _make_batches(self, planned: Sequence[_Planned]) -> None:
        """One sweep: intents, Spark job, commit."""
        recorded = self._store.record_intents(
            [
                Intent(
                    batch.consumption.tenure,
                    batch.consumption.sequence,
                    batch.range_.start,
                    batch.range_.end,
                )
                for batch in planned
            ]
        )
        for batch in planned:
            if not isinstance(recorded[batch.range_.shard], Changed):
                self._lose(batch.consumption)
        current = [batch for batch in planned if batch.range_.shard in self._open]
        if not current:
            return
        for batch in current:
            batch.consumption.numbered = True
        failpoints.reach(Failpoint.AFTER_INTENT)
        began = self._clock()
        results = self._sweeper([batch.range_ for batch in current])
        failpoints.reach(Failpoint.AFTER_WRITE)
        commits = [
            commit
            for batch in current
            if (commit := self._commit_of(batch, results[batch.range_.shard])) is not None
        ]
        if not self._heartbeat.trusted:
            self._stop_all(StopReason.UNTRUSTED, self._distrust())
            return
        failpoints.reach(Failpoint.BEFORE_COMMIT)
        self._commit(commits)
        self._sweeps += 1
        self._sweeping_s += self._clock() - began
        self._announce()

    def _commit_of(self, batch: _Planned, result: SweepResult) -> BatchCommit | None:
        """What to commit for a shard; None after stopping one that failed."""
        open_, range_ = batch.consumption, batch.range_
        if isinstance(result, CursorExpired):
            self._pass_gap_or_stop(open_, result)
            return None
        if not isinstance(result, SweepOutcome):
            self._stop(open_, StopReason.FAILED, str(result))
            return None
        try:
            check_quarantined(self._stream, range_, result.statistics.quarantined)
        except QuarantineLimitExceeded as error:
            self._stop(open_, StopReason.FAILED, str(error))
            return None
        return BatchCommit(
            tenure=open_.tenure,
            sequence=open_.sequence,
            start=range_.start,
            end=range_.end,
            attempt=result.attempt,
            files=result.files,
            statistics=result.statistics,
            finished=batch.last,
            watermark=watermark_after(self._stream, result),
            hooked=self._stream.on_commit is not None,
        )

    def _pass_gap_or_stop(self, open_: _Consumption, error: CursorExpired) -> None:
        """Retention was faster than the reading of a batch that was planned in time."""
        try:
            self._pass_gap(open_, error)
        except LeaseLost as lost:
            self._lose(open_, str(lost))
        except LeaseholdError as held:
            self._stop(open_, StopReason.FAILED, str(held))

    def _commit(self, commits: Sequence[BatchCommit]) -> None:
        if not commits:
            return
        outcomes = self._store.commit(commits)
        failpoints.reach(Failpoint.AFTER_COMMIT)
        done = [commit for commit in commits if isinstance(outcomes[commit.tenure.shard], Changed)]
        for commit in commits:
            open_ = self._open[commit.tenure.shard]
            if commit not in done:
                self._lose(open_)
                continue
            open_.report = open_.report.with_batch(commit.end, commit.statistics)
            open_.cursor, open_.intent, open_.numbered = commit.end, None, False
            open_.sequence += 1
            if commit.finished:
                self._end(open_, StopReason.FINISHED)
        if done and self._after_commit is not None:
            self._after_commit(done)

    def _announce(self) -> None:
        """Tell the nodes that wait for a shard how long a batch takes here."""
        eta_s = self._sweeping_s / self._sweeps
        for open_ in list(self._open.values()):
            known_s = open_.announced_s
            if known_s is not None and 1 / ETA_CHANGE_MIN < eta_s / known_s < ETA_CHANGE_MIN:
                continue
            try:
                self._store.announce(open_.tenure, handoff_eta_s=eta_s)
                open_.announced_s = max(eta_s, 1e-3)
            except LeaseLost as error:
                self._lose(open_, str(error))

    def _stop_all(self, reason: StopReason, error: str = "") -> None:
        for open_ in list(self._open.values()):
            self._stop(open_, reason, error)

    def _stop(self, open_: _Consumption, reason: StopReason, error: str = "") -> None:
        """Let a shard go at its checkpoint."""
        open_.consumer = open_.consumer.stop(reason.value)
        try:
            # A store that did not answer once would make every further shard wait as long.
            if not self._store_silent:
                self._store.close_tenure(open_.tenure, reason=error or reason.value)
        except LeaseLost as lost:
            self._lose(open_, str(lost))
            return
        except LeaseholdError as unanswered:
            # The tenure stays open in the store until somebody sees that this run has ended.
            _LOG.warning("Shard %s could not be let go: %s", open_.tenure.shard, unanswered)
            self._store_silent = isinstance(unanswered, StoreError)
        self._end(open_, reason, error)

    def _fail(self, open_: _Consumption, error: Exception) -> None:
        """Let a shard go that raised something, foreseen or not; the others go on."""
        if not isinstance(error, LeaseholdError):
            _LOG.error("Shard %s failed", open_.tenure.shard, exc_info=error)
        self._stop(open_, StopReason.FAILED, sentence_of(error))

    def _lose(self, open_: _Consumption, error: str = "") -> None:
        tenure = open_.tenure
        sentence = error or (
            f"Node {tenure.holder} lost shard {tenure.shard} of {tenure.key}: tenure "
            f"{tenure.epoch} is over; nothing was committed since checkpoint {open_.cursor}."
        )
        open_.consumer = open_.consumer.fence(sentence)
        self._end(open_, StopReason.LEASE_LOST, sentence)

    def _end(self, open_: _Consumption, reason: StopReason, error: str = "") -> None:
        shard = open_.tenure.shard
        open_.consumer = open_.consumer.stop(reason.value).stopped()
        self._reports[shard] = replace(open_.report, stopped=reason, error=error)
        del self._open[shard]

    def _distrust(self) -> str:
        return (
            f"Node {self._node} could not renew its lease in time, so this run stopped without "
            "committing its last batch: the next run reads it again."
        )

    def _lag(self, open_: _Consumption) -> int | None:
        if open_.bounds is None:
            return None
        return self._stream.source.lag(open_.tenure.shard, open_.cursor, open_.bounds)
