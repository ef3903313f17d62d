"""Replay: applies the current transform to committed batches again, beside live consumption.

Ranges, numbers and checkpoints are unchanged. Only the files and the counts of the batches change,
for all replayed batches of a shard in one transaction. An interrupted replay does not change the
output:

1. The replay claims the shard and writes new files, which no ledger row names yet.
2. If it dies, readers still read the old files. Vacuum removes the new files later.
3. If it is slow, and another run takes over its claim, its swap is refused.
4. If Spark or the source makes no progress, it interrupts its job and releases its claims.
5. After a swap, readers that have already listed the old files can still read them.
"""

from __future__ import annotations

import logging
import time
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING

from dagster_leasehold.assets.consuming import sweep
from dagster_leasehold.assets.consuming.spark_sweeper import SparkSweeper
from dagster_leasehold.assets.errors import RewriteRefused
from dagster_leasehold.assets.guarding.job_watch import STARVED_AFTER_S
from dagster_leasehold.assets.guarding.run_on_spark import guarded_run
from dagster_leasehold.assets.guarding.stall_guard import StallGuard, guarded_source
from dagster_leasehold.assets.output.expired_output import expired_output
from dagster_leasehold.assets.output.table.columns import ColumnAgreement, stream_routes
from dagster_leasehold.assets.output.units import (
    Ended,
    Unit,
    rewritable_until,
    rewriting,
    swap,
    units_of,
)
from dagster_leasehold.assets.places.place import OutputPlace
from dagster_leasehold.assets.rewriting.replay_span import ReplaySpan
from dagster_leasehold.assets.shard_stream import ShardStream
from dagster_leasehold.lease_store.errors import CursorExpired, LeaseholdError
from dagster_leasehold.lease_store.identifiers import ShardId
from dagster_leasehold.lease_store.ledger_rows import Batch, BatchRewrite, RewriteKind
from dagster_leasehold.lease_store.rules.progress import Report
from dagster_leasehold.lease_store.store import LedgerAndRewrites
from dagster_leasehold.shard_sources.source import Limits, ReadRange

if TYPE_CHECKING:
    from dagster_leasehold.assets.spark.spark_resource import SparkResource

_LOG = logging.getLogger(__name__)
STALL_CONSEQUENCE = "released its claims: the old output stays, and the next replay starts over"


@dataclass(frozen=True, slots=True)
class ReplayReport:
    """The results of a replay for one shard.

    Attributes:
        batches: the number of batches whose output was replaced.
        records: the number of records read for them.
        written: the number of records in their new output.
        quarantined: the number of their records that could not be parsed.
        kept: the number of batches that keep their old output, because their records are gone from
            the source.
        kept_until: the end cursor of the last of these batches, or None.
        unpublished: the number of batches that keep their old output, because they wait for
            publication.
        expired_until: the cursor where the output of the shard begins, if part of the requested
            output may have expired; otherwise None.
        error: the reason why no output was replaced; empty without an error.
    """

    shard: ShardId
    batches: int = 0
    records: int = 0
    written: int = 0
    quarantined: int = 0
    kept: int = 0
    kept_until: str | None = None
    unpublished: int = 0
    expired_until: str | None = None
    error: str = ""


@dataclass
class _Replay:
    claim: ExitStack
    units: list[Unit]
    report: ReplayReport
    waiting: deque[Batch] = field(default_factory=deque[Batch])
    rewrites: list[BatchRewrite] = field(default_factory=list[BatchRewrite])


def replay_on_spark(
    stream: ShardStream,
    store: LedgerAndRewrites,
    shards: Sequence[ShardId],
    span: ReplaySpan,
    *,
    spark: SparkResource,
    output_root: OutputPlace,
    run: str,
    ended: Ended,
    progress: Report = lambda *_: None,
    warn: Callable[[str], None] = _LOG.warning,
    starved_after_s: float = STARVED_AFTER_S,
) -> dict[ShardId, ReplayReport]:
    """Replay a span of some shards with Spark; see `Replayer` for the arguments.

    A replay without progress for the stream's `stall_limit_s` is abandoned, with the reason in the
    reports of unfinished shards. `warn` logs a warning, for example that Spark has run no task for
    `starved_after_s` seconds.
    """
    with (
        StallGuard(stream.pace.stall_limit_s, time.monotonic, STALL_CONSEQUENCE) as guard,
        guarded_run(
            spark,
            guard,
            run=run,
            work=f"stream {stream.name}",
            warn=warn,
            ended=ended,
            starved_after_s=starved_after_s,
        ) as on_spark,
    ):
        sweeper = SparkSweeper(
            stream=stream,
            spark=on_spark,
            output_root=output_root,
            names=ColumnAgreement(store, stream.key).earlier_names(),
            routes=partial(stream_routes, store, stream.key),
        )

        def has_ended(other: str) -> bool:
            on_spark.add_predecessor(other)
            return ended(other)

        replayer = Replayer(
            stream=replace(stream, source=guarded_source(stream.source, guard)),
            store=store,
            output_root=output_root,
            sweeper=sweep.GuardedSweeper(sweeper, guard, lambda: on_spark.awaited),
            run=run,
            ended=has_ended,
            progress=progress,
        )
        return replayer.replay(shards, span)


@dataclass(kw_only=True)
class Replayer:
    """Replays shards of a stream in one run.

    Attributes:
        ended: returns True if a run has certainly ended, so that its claims can be taken over.
        progress: receives the number of batches replayed so far, and an estimate of all batches.
    """

    stream: ShardStream
    store: LedgerAndRewrites
    output_root: OutputPlace
    sweeper: sweep.Sweeper
    run: str
    ended: Ended = lambda _: False
    progress: Report = lambda *_: None
    _replayed: int = 0
    _shards: int = 0
    _claimed: int = 0
    _batches: int = 0
    _open: dict[ShardId, _Replay] = field(default_factory=dict[ShardId, _Replay])
    _reports: dict[ShardId, ReplayReport] = field(default_factory=dict[ShardId, ReplayReport])
    _columns: ColumnAgreement = field(init=False)

    def __post_init__(self) -> None:
        self._columns = ColumnAgreement.of_stream(self.store, self.stream)

    def replay(self, shards: Sequence[ShardId], span: ReplaySpan) -> dict[ShardId, ReplayReport]:
        """Replay a span of these shards; return one report per shard.

        An error of one shard is in its report. An interruption, or an error of the whole replay, is
        raised after all claims were released.
        """
        unique = list(dict.fromkeys(shards))
        self._shards = len(unique)
        size = self.stream.pace.shards_per_run
        try:
            for first in range(0, len(unique), size):
                for shard in unique[first : first + size]:
                    self._guarded(shard, lambda shard=shard: self._begin(shard, span))
                    self._claimed += 1
                self._show()
                while self._open:
                    self._swap_complete()
                    self._replay_next()
        finally:
            for replay in self._open.values():
                replay.claim.close()
            self._open.clear()
        return self._reports

    def _guarded(self, shard: ShardId, step: Callable[[], None]) -> None:
        """Run one step of a shard; an error ends the replay of this shard only."""
        try:
            step()
        except LeaseholdError as error:
            self._end(shard, ReplayReport(shard, error=str(error)))

    def _begin(self, shard: ShardId, span: ReplaySpan) -> None:
        key = self.stream.key
        claim = ExitStack()
        kind = RewriteKind.REPLAY
        claim.enter_context(rewriting(self.store, key, shard, self.run, kind, ended=self.ended))
        replay = _Replay(claim, [], ReplayReport(shard))
        self._open[shard] = replay
        expired = expired_output(self.store, key, [shard]).get(shard)
        if expired is not None and span.check_expired(shard, expired):
            replay.report = replace(replay.report, expired_until=expired.begin)
        head = self.store.heads(key, [shard])[shard]
        first = span.first_number(partial(self.store.each_batch, key, shard))
        numbers = range(first, head.next_number)
        units = span.select(units_of(self.store, key, shard, numbers) if numbers else ())
        end = rewritable_until(self.store, key, shard, head.next_number)
        replayed = [unit for unit in units if unit[-1].sequence < end]
        unchanged = bisect_left(replayed, True, key=lambda unit: self._is_available(shard, unit))
        replay.units = replayed[unchanged:]
        replay.waiting.extend(batch for unit in replay.units for batch in unit)
        self._batches += len(replay.waiting)
        kept_batches = [batch for unit in replayed[:unchanged] for batch in unit]
        replay.report = replace(
            replay.report,
            kept=len(kept_batches),
            kept_until=kept_batches[-1].end if kept_batches else None,
            unpublished=sum(len(unit) for unit in units[len(replayed) :]),
        )

    def _is_available(self, shard: ShardId, unit: Unit) -> bool:
        """Return True if the source still has the records of a unit; the oldest expire first."""
        try:
            self.stream.source.plan(shard, unit[0].start, Limits(records_max=1))
        except CursorExpired:
            return False
        return True

    def _replay_next(self) -> None:
        """Replay the next batch of every shard, in one sweep."""
        if not self._open:
            return
        claims = {claim.shard: claim.run for claim in self.store.rewrites(self.stream.key)}
        for shard in list(self._open):
            if claims.get(shard) != self.run:
                self._end(shard, ReplayReport(shard, error=self._superseded(shard)))
        batches = {shard: replay.waiting[0] for shard, replay in self._open.items()}
        ranges = [
            ReadRange(shard, batch.start, batch.end, batch.statistics.records or 0)
            for shard, batch in batches.items()
        ]
        numbers = {shard: range(batch.sequence, batch.last + 1) for shard, batch in batches.items()}
        try:
            results = self.sweeper(ranges, numbers) if ranges else {}
        except LeaseholdError as error:
            for shard in list(self._open):
                self._end(shard, ReplayReport(shard, error=str(error)))
            return
        for range_ in ranges:
            self._guarded(range_.shard, lambda r=range_: self._add_result(r, results[r.shard]))

    def _add_result(self, range_: ReadRange, result: sweep.SweepResult) -> None:
        replay = self._open[range_.shard]
        if not isinstance(result, sweep.SweepOutcome):
            raise result
        statistics = result.statistics
        sweep.check_quarantined(range_, statistics.quarantined, self.stream.checks.quarantined_max)
        self._columns.agree_decoded(result.columns, result.schemas)
        batch = replay.waiting.popleft()
        replay.rewrites.append(
            BatchRewrite(batch.sequence, batch.generation, result.files, statistics, batch.attempt)
        )
        self._replayed += 1
        self._show()
        report = replay.report
        replay.report = replace(
            report,
            batches=report.batches + 1,
            records=report.records + (statistics.records or 0),
            written=report.written + statistics.written,
            quarantined=report.quarantined + statistics.quarantined,
        )

    def _show(self) -> None:
        self.progress(self._replayed, round(self._batches * self._shards / self._claimed))

    def _swap_complete(self) -> None:
        for shard, replay in list(self._open.items()):
            if not replay.waiting:
                self._guarded(shard, lambda shard=shard: self._swap(shard))

    def _swap(self, shard: ShardId) -> None:
        replay = self._open[shard]
        if replay.rewrites:
            old = [file for unit in replay.units for batch in unit for file in batch.files]
            first, last = replay.rewrites[0].sequence, replay.rewrites[-1].sequence
            if not swap(
                self.store,
                self.stream.key,
                shard,
                self.run,
                replay.rewrites,
                replaced=old,
                output_root=self.output_root,
                reason=f"replayed {len(replay.rewrites)} batches, {first} to {last}",
            ):
                raise RewriteRefused(self._superseded(shard))
        self._end(shard, replay.report)

    def _superseded(self, shard: ShardId) -> str:
        return (
            f"Another run took over the output of shard {shard} of {self.stream.key} while it was "
            "replayed, so this replay changed nothing: replay the shard again if necessary."
        )

    def _end(self, shard: ShardId, report: ReplayReport) -> None:
        replay = self._open.pop(shard, None)
        if replay is not None:
            replay.claim.close()
        self._reports[shard] = report
