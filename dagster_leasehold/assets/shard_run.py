"""The results of a consuming run for Dagster: events, metadata and checks of its shards.

`consume_job` and `shard_asset` use it.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import dagster as dg

from dagster_leasehold.assets.checks import LAG, QUARANTINE_RATE, ShardCheck, check_shard
from dagster_leasehold.assets.consuming.consumption_report import (
    ConsumptionReport,
    StopReason,
    lags_behind,
)
from dagster_leasehold.assets.consuming.run_progress import read_text
from dagster_leasehold.assets.materialization import (
    CommittedRange,
    committed_ranges,
    mirror_progress,
    range_metadata,
)
from dagster_leasehold.assets.partition_events import (
    RunContext,
    causes_text,
    log_check,
    report_materialization,
)
from dagster_leasehold.assets.partitions import asset_key
from dagster_leasehold.assets.shard_stream import ShardStream
from dagster_leasehold.assets.table_metadata import agreed_schema
from dagster_leasehold.lease_store import failpoints
from dagster_leasehold.lease_store.identifiers import ShardId
from dagster_leasehold.lease_store.journal_rows import Gap
from dagster_leasehold.lease_store.ledger_rows import BatchCommit
from dagster_leasehold.lease_store.store import LeaseStore
from dagster_leasehold.lease_store.times import utc_now
from dagster_leasehold.lease_store.tracing import note, span

EVENTS_PER_RUN_MAX = 1_000_000
REPORT_EVERY_S = 30.0
"""The interval of a run's reports while records arrive, after the first report of a tenure."""
REPORT_PAUSE = 50.0
"""The shortest interval, as a multiple of the duration of a report: Dagster stores events one by
one, which takes 8 to 13 ms each in SQLite."""
SHOWN_CAUSES_MAX = 5


class ShardRun:
    """The consumption reports of one run's shards, joined with its commits in the outbox.

    The run reads its commits back from the outbox instead of counting them. So it reports exactly
    what the outbox sensor would report if the run died now.
    """

    def __init__(self, stream: ShardStream, store: LeaseStore, run_id: str) -> None:
        self._stream = stream
        self._store = store
        self._run_id = run_id
        self._reports: dict[ShardId, ConsumptionReport] = {}
        self._seconds: dict[ShardId, float] = {}
        self._ranges: dict[ShardId, CommittedRange] | None = None
        self._mirror_error = ""
        self._schema: dict[str, Any] = {}
        self._gaps: dict[ShardId, list[Gap]] = {}
        self._outcomes: dict[ShardId, dict[str, ShardCheck]] = {}

    def add(self, reports: Iterable[ConsumptionReport], *, seconds: float) -> None:
        """Add the reports of one consumer, which worked for `seconds`."""
        for report in reports:
            self._reports[report.shard] = report
            self._seconds[report.shard] = seconds
        self._ranges = None

    def refuse(self, refused: Mapping[ShardId, str]) -> None:
        """Add shards that the run cannot consume as failed, each with its error message."""
        reports = (
            ConsumptionReport(shard, StopReason.FAILED, error=message)
            for shard, message in refused.items()
        )
        self.add(reports, seconds=0.0)

    def committed(self, shard: ShardId) -> CommittedRange | None:
        """Return the range that the run committed to a shard and has not reported yet."""
        return self._undelivered().get(shard)

    def undelivered(self) -> list[ShardId]:
        """Return the shards with commits that the run has not reported yet."""
        return list(self._undelivered())

    def _undelivered(self) -> dict[ShardId, CommittedRange]:
        if self._ranges is None:
            pending = self._store.pending_events(
                self._stream.key, run=self._run_id, limit=EVENTS_PER_RUN_MAX
            )
            self._ranges = {committed.shard: committed for committed in committed_ranges(pending)}
            self._mirror_error = mirror_progress(self._store, self._stream, self._ranges)
            self._schema = agreed_schema(self._store, self._stream)
            self._gaps = {}
            for gap in self._store.gaps(self._stream.key, acknowledged=False):
                self._gaps.setdefault(gap.shard, []).append(gap)
        return self._ranges

    def metadata(self, shard: ShardId) -> dict[str, Any]:
        """Return the metadata of a shard's materialization, with its counts, lags and rate."""
        committed, report = self.committed(shard), self._reports.get(shard)
        zeros = {"records": 0, "bytes": 0, "batches": 0, "quarantined": 0}
        metadata: dict[str, Any] = range_metadata(committed) if committed else dict(zeros)
        metadata |= self._schema
        if report is None:
            # Either the shard was finished before the run, or the run still works on it.
            return metadata | {"stopped": "not yet" if committed else "finished before"}
        metadata["stopped"] = report.stopped.value
        if committed and self._mirror_error:
            metadata["mirror_error"] = self._mirror_error
        lags = ("lag_before", "lag_after", "lag_seconds")
        metadata |= {name: lag for name in lags if (lag := getattr(report, name)) is not None}
        seconds = self._seconds[shard]
        if committed and seconds > 0:
            metadata["records_per_second"] = round(committed.total("records") / seconds, 3)
        return metadata

    def _open_shard_metadata(self, interval_s: float) -> dict[ShardId, dict[str, float]]:
        """Return lag and rate of the shards that the run still works on."""
        ranges = {
            shard: committed
            for shard, committed in self._undelivered().items()
            if shard not in self._reports
        }
        if not ranges:
            return {}
        ends = {shard: committed.end for shard, committed in ranges.items()}
        metadata: dict[ShardId, dict[str, float]] = {}
        for shard, lag in lags_behind(self._stream.source, ends, utc_now()).items():
            fields = zip(("lag_after", "lag_seconds"), lag, strict=True)
            metadata[shard] = {name: value for name, value in fields if value is not None}
            if interval_s > 0:
                rate = ranges[shard].total("records") / interval_s
                metadata[shard]["records_per_second"] = round(rate, 3)
        return metadata

    def checks(self, shard: ShardId) -> list[ShardCheck]:
        """Return the outcomes of a shard's checks."""
        report, committed = self._reports.get(shard), self.committed(shard)
        return check_shard(
            self._stream,
            committed,
            gaps=self._gaps.get(shard, []),
            lag=report.lag_after if report else 0,
            lag_seconds=report.lag_seconds if report else 0,
        )

    @property
    def read(self) -> str:
        """The number of records that the run has read, as text."""
        return read_text(self._reports.values())

    def summary(self) -> str:
        """Return one line about all shards, without the causes of failures; see `failure`."""
        reports = self._reports.values()
        ends = Counter(report.stopped.value for report in reports)
        stopped = ", ".join(f"{count} {reason}" for reason, count in ends.most_common())
        records, batches = sum(r.records or 0 for r in reports), sum(r.batches for r in reports)
        others = [report for report in reports if report.stopped is not StopReason.FAILED]
        causes = dict.fromkeys(report.error for report in others if report.error)
        cause_text = " ".join(list(causes)[:SHOWN_CAUSES_MAX])
        return f"{records} records in {batches} batches; shards: {stopped}. {cause_text}".rstrip()

    def failure(self) -> str:
        """Return one message about the failed shards and their causes, or an empty text."""
        failed = {
            shard: report.error
            for shard, report in self._reports.items()
            if report.stopped is StopReason.FAILED
        }
        if not failed:
            return ""
        count = f"{len(failed)} of {len(self._reports)} shards of {self._stream.name} failed."
        return f"{count} {causes_text(failed)}"

    def refusals(self, shards: Sequence[ShardId]) -> dict[ShardId, str]:
        """Return a reason for each shard that was not consumed to its end."""
        reports = (self._reports[shard] for shard in shards if shard in self._reports)
        return {
            report.shard: report.error or _EXPLANATIONS.get(report.stopped, report.stopped.value)
            for report in reports
            if report.stopped not in _COMPLETE
        }

    def refusal(self, shards: Sequence[ShardId]) -> str:
        """Return a message about shards that were not fully consumed; empty if all were."""
        causes, key = self.refusals(shards), self._stream.key
        if not causes:
            return ""
        if len(shards) == 1:
            return f"Shard {shards[0]} of {key} was not consumed to its end: {causes[shards[0]]}"
        count = f"{len(causes)} of {len(shards)} shards of {key}"
        return f"{count} were not consumed to their ends. {causes_text(causes)}"

    def observe(self, context: RunContext, failed: Iterable[ShardId]) -> None:
        """Report commits and checks of shards that were not consumed to their ends.

        The commits are reported as observations: a materialization would mark the partition as
        complete, and a retry would skip it.
        """
        for shard in failed:
            if self.committed(shard):
                context.log_event(
                    dg.AssetObservation(
                        asset_key(self._stream), partition=shard, metadata=self.metadata(shard)
                    )
                )
            for check in self.checks(shard):
                log_check(context, check.evaluation(self._stream, shard))

    @span("report")
    def deliver(
        self, context: RunContext, new_shards: Iterable[ShardId] = (), interval_s: float = 0.0
    ) -> int:
        """Report the new commits and changed checks, and flag the commits as delivered.

        Can be called repeatedly: each call reports the commits since the last one.

        Args:
            new_shards: shards whose consumption has just begun. All their checks are reported,
                because another run may have reported other outcomes since this run's last report.
            interval_s: the time since the last report, for the rate of open shards, in seconds.

        Returns:
            The number of shards with new commits.
        """
        for shard in new_shards:
            self._outcomes.pop(shard, None)
        delivered = self.undelivered()
        if delivered:
            failpoints.reach("before_report")
        self._report(context, delivered, interval_s)
        self.mark_delivered()
        note(shards=len(delivered))
        return len(delivered)

    def _report(self, context: RunContext, delivered: Sequence[ShardId], interval_s: float) -> None:
        open_shards = self._open_shard_metadata(interval_s)
        for shard in delivered:
            metadata = self.metadata(shard) | open_shards.get(shard, {})
            report_materialization(context, self._stream, shard, metadata)
        # A shard on hold at a gap commits nothing, but its check must fail.
        others = {
            shard
            for shard, report in self._reports.items()
            if report.batches or shard in self._gaps
        }
        for shard in (*delivered, *(others - set(delivered))):
            for check in self._changed_checks(shard):
                log_check(context, check.evaluation(self._stream, shard))

    def _changed_checks(self, shard: ShardId) -> list[ShardCheck]:
        """Return the check outcomes that are known and differ from the last reported ones."""
        stored = self._outcomes.setdefault(shard, {})
        unknown: set[str] = set()
        if shard not in self._reports:
            # The run still works on the shard: only its report has the lag.
            unknown.add(LAG)
        if self.committed(shard) is None:
            unknown |= {QUARANTINE_RATE} & stored.keys()
        changed = [
            check
            for check in self.checks(shard)
            if check.name not in unknown and not check.repeats(stored.get(check.name))
        ]
        stored.update({check.name: check for check in changed})
        return changed

    def mark_delivered(self) -> None:
        """Flag the reported commits as delivered in the outbox."""
        ranges = (self._ranges or {}).values()
        sequences = [event.sequence for committed in ranges for event in committed.events]
        if sequences:
            failpoints.reach("after_report")
            self._store.mark_delivered(self._stream.key, sequences)
        self._ranges = None


_COMPLETE = frozenset({StopReason.CAUGHT_UP, StopReason.FINISHED, StopReason.BUDGET_ENDED})
_EXPLANATIONS = {
    StopReason.HANDED_OVER: "it was transferred to another node, which continues it.",
    StopReason.PAUSED: "its consumer group was paused.",
    StopReason.LEASE_LOST: "its lease was lost to another node, which continues it.",
    StopReason.UNTRUSTED: "the lease store did not confirm a heartbeat in time.",
    StopReason.STOP_REQUESTED: "the run was asked to stop.",
    StopReason.NOT_HELD: "its node no longer holds it.",
    StopReason.OPEN_BY_OTHER: "another run has it open.",
}


@dataclass(slots=True)
class ProgressReports:
    """Reports a run's commits while it works.

    The first commit of a tenure is reported at once, so that Dagster shows when a shard starts, or
    resumes after a pause, a failure or a transfer. Later commits are reported together every
    `every_s`, or less often if a report takes long.

    Attributes:
        every_s: the interval of the reports, in seconds.
    """

    results: ShardRun
    context: RunContext
    clock: Callable[[], float]
    every_s: float = REPORT_EVERY_S
    _epochs: dict[ShardId, int] = field(default_factory=dict[ShardId, int])
    _pending: bool = False
    _due_s: float = -math.inf
    _last_s: float = field(init=False)

    def __post_init__(self) -> None:
        self._last_s = self.clock()

    def after_commit(self, commits: Sequence[BatchCommit]) -> None:
        """Report these commits now if one begins a tenure, otherwise when the interval ends."""
        epochs = {commit.tenure.shard: commit.tenure.epoch for commit in commits}
        new_shards = [shard for shard, epoch in epochs.items() if self._epochs.get(shard) != epoch]
        self._epochs |= epochs
        self._pending |= bool(commits)
        if new_shards:
            self._deliver(new_shards)
        else:
            self.between_batches()

    def between_batches(self) -> None:
        """Report pending commits if the interval has ended."""
        if self._pending and self.clock() >= self._due_s:
            self._deliver(())

    def _deliver(self, new_shards: Sequence[ShardId]) -> None:
        now_s = self.clock()
        self.results.deliver(self.context, new_shards, now_s - self._last_s)
        ended_s = self.clock()
        pause_s = max(self.every_s, REPORT_PAUSE * (ended_s - now_s))
        self._pending, self._last_s, self._due_s = False, now_s, ended_s + pause_s
