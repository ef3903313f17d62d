"""A sweep: the next batches of many shards, processed together, and their outcomes.

This module does not depend on Spark: `spark_sweeper` runs the sweeps of the batch loop.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol, TypeVar

from typing_extensions import override

from dagster_leasehold.assets.errors import (
    QuarantineLimitExceeded,
    SparkNotReady,
    TransformUnusable,
)
from dagster_leasehold.assets.guarding.side_by_side import SideBySide
from dagster_leasehold.assets.guarding.stall_guard import StallGuard
from dagster_leasehold.assets.output.worker_results import Plain, RangeStatistics, WrittenFile
from dagster_leasehold.lease_store.errors import LeaseholdError, RunStalled
from dagster_leasehold.lease_store.identifiers import ShardId
from dagster_leasehold.lease_store.ledger_rows import BatchStatistics, DataFile
from dagster_leasehold.shard_sources.source import ReadRange

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class SweepOutcome:
    """The output of one shard in a sweep.

    Attributes:
        attempt: the attempt's folder, relative to the stream's output folder.
        statistics: counts of records and bytes, read and written.
        columns: the distinct columns of the record files, as in `output.table.columns`.
        mistimed: the number of records whose time is outside the years 1 to 9999, and therefore
            stored as null.
        mistimed_at: the cursor of the first such record, if known.
        schemas: the schemas with which the records were decoded, for messages.
    """

    attempt: str
    files: tuple[DataFile, ...]
    statistics: BatchStatistics
    columns: tuple[tuple[Plain, ...], ...] = ()
    mistimed: int = 0
    mistimed_at: str = ""
    schemas: tuple[str, ...] = ()

    @classmethod
    def of(
        cls, attempt: str, read: RangeStatistics | None, files: Sequence[WrittenFile]
    ) -> SweepOutcome:
        """Return the outcome of a shard.

        Args:
            attempt: the attempt's folder, relative to the stream's output folder.
            read: the statistics of its records; None if the range was not read to its end.
            files: its files, in order.
        """
        statistics = BatchStatistics(
            records=read.records if read else None,
            bytes=read.bytes if read else None,
            written=sum(file.records for file in files if not file.quarantine),
            quarantined=sum(file.records for file in files if file.quarantine),
            first_event_time=read.first_event_time if read else None,
            last_event_time=read.last_event_time if read else None,
        )
        columns: list[tuple[Plain, ...]] = []
        for file in files:
            if not file.quarantine and file.columns not in columns:
                columns.append(file.columns)
        data_files = tuple(file.data_file(attempt) for file in files)
        timed = [*([read] if read else []), *files]
        mistimed = sum(each.mistimed for each in timed)
        mistimed_at = next((each.mistimed_at for each in timed if each.mistimed_at), "")
        schemas = tuple(dict.fromkeys(name for file in files for name in file.schemas))
        return cls(attempt, data_files, statistics, tuple(columns), mistimed, mistimed_at, schemas)


SweepResult = SweepOutcome | LeaseholdError


class Sweeper(Protocol):
    """Reads, transforms and writes the ranges of a sweep."""

    def __call__(
        self, ranges: Sequence[ReadRange], numbers: Mapping[ShardId, range]
    ) -> Mapping[ShardId, SweepResult]:
        """Return the outcome of each shard, or its error; raise an error of the whole sweep.

        `numbers` are the batch numbers of each shard.
        """
        ...


@dataclass(frozen=True, slots=True)
class Retry:
    """A batch of one shard that gets a separate job, because an earlier attempt failed.

    Attributes:
        numbers: the numbers of the batch.
        searched: True if the range is searched for a bad record, and can be divided.
        set_aside: the reason why its records go to quarantine without the transform; otherwise
            empty.
        unread: True if the records go there without their bytes, because reading them failed as
            well.
    """

    range_: ReadRange
    numbers: range
    searched: bool = False
    set_aside: str = ""
    unread: bool = False


class SeparateJobs(Protocol):
    """Processes batches in separate jobs, in parallel with the sweeps of the run."""

    def start(self, retries: Sequence[Retry]) -> None:
        """Start these batches."""
        ...

    def done(self, *, wait_s: float | None) -> list[tuple[Retry, SweepResult]]:
        """Return the results so far, after waiting up to `wait_s` for the first (None: forever)."""
        ...

    def interrupt(self) -> None:
        """Abandon the batches in flight."""
        ...


class OneByOne(SeparateJobs):
    """Processes the batches one after another in `start`, with any sweeper."""

    def __init__(self, sweeper: Sweeper) -> None:
        self._sweeper = sweeper
        self._results: list[tuple[Retry, SweepResult]] = []

    @override
    def start(self, retries: Sequence[Retry]) -> None:
        self._results += [(each, self._process(each)) for each in retries]

    @override
    def done(self, *, wait_s: float | None) -> list[tuple[Retry, SweepResult]]:
        results, self._results = self._results, []
        return results

    @override
    def interrupt(self) -> None:
        self._results = []

    def _process(self, each: Retry) -> SweepResult:
        shard = each.range_.shard
        if each.set_aside:
            return TransformUnusable(f"Shard {shard} waits: {each.set_aside}")
        return self._sweeper([each.range_], {shard: each.numbers})[shard]


class GuardedSweeper:
    """A sweeper under a watchdog, which abandons a sweep that makes no progress."""

    def __init__(
        self,
        sweeper: Sweeper,
        guard: StallGuard,
        awaited: Callable[[], str] = lambda: "Spark",
        starved: Callable[[], bool] = lambda: False,
    ) -> None:
        self._sweeper = sweeper
        self._guard = guard
        self._awaited = awaited
        self._starved = starved

    def __call__(
        self, ranges: Sequence[ReadRange], numbers: Mapping[ShardId, range]
    ) -> Mapping[ShardId, SweepResult]:
        """Run a sweep; see `Sweeper`."""
        return self.guarded(self._guard, lambda: self._sweeper(ranges, numbers))

    def guarded(self, guard: StallGuard, work: Callable[[], T]) -> T:
        """Run work on Spark under a watchdog; raise `SparkNotReady` if no core is free for it."""
        try:
            return guard.call(self._awaited, work)
        except RunStalled as stalled:
            if self._starved():
                raise SparkNotReady(str(stalled)) from stalled
            raise


class GuardedSeparateJobs(SeparateJobs):
    """Processes batches in parallel, each in a separate job under its own watchdog.

    Args:
        hung: called when a batch was abandoned.
    """

    def __init__(
        self,
        sweeper: GuardedSweeper,
        process: Callable[[Retry, StallGuard], SweepResult],
        guard: StallGuard,
        hung: Callable[[], None] = lambda: None,
    ) -> None:
        self._sweeper = sweeper
        self._process = process
        self._guard = guard
        self._hung = hung
        self._works: SideBySide[tuple[Retry, SweepResult]] = SideBySide()
        self._guards: set[StallGuard] = set()

    @override
    def start(self, retries: Sequence[Retry]) -> None:
        self._works.start([partial(self._run, each) for each in retries])

    @override
    def done(self, *, wait_s: float | None) -> list[tuple[Retry, SweepResult]]:
        return self._works.done(wait_s)

    @override
    def interrupt(self) -> None:
        self._works.drop()
        for guard in [*self._guards]:
            guard.interrupt()

    def _run(self, each: Retry) -> tuple[Retry, SweepResult]:
        # A single record gets the time limit of a whole batch before it counts as blocking.
        with self._guard.for_batch(searching=each.searched) as guard:
            self._guards.add(guard)
            try:
                return each, self._sweeper.guarded(guard, lambda: self._process(each, guard))
            except RunStalled as stalled:
                self._hung()
                return each, stalled
            except LeaseholdError as error:
                return each, error
            finally:
                self._guards.discard(guard)


def check_quarantined(range_: ReadRange, quarantined: int, quarantined_max: int) -> None:
    """Refuse a batch with more quarantined records than the stream allows."""
    if quarantined > quarantined_max:
        raise QuarantineLimitExceeded(
            f"{quarantined} records of shard {range_.shard} between cursors {range_.start} and "
            f"{range_.end} could not be parsed, more than the {quarantined_max} that the stream "
            "allows: fix the transform or raise quarantined_max."
        )


def mistimed_note(range_: ReadRange, outcome: SweepOutcome) -> str:
    """Return a warning about records whose time is stored as null; empty if there are none."""
    if not outcome.mistimed:
        return ""
    first = f", the first at cursor {outcome.mistimed_at}" if outcome.mistimed_at else ""
    return (
        f"{outcome.mistimed} records of shard {range_.shard} between cursors {range_.start} and "
        f"{range_.end} have a time outside the years 1 to 9999{first}: their event_time is null."
    )
