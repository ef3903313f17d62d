"""A sweep: the next batch of many shards, made together; what it leaves, and what may be committed.

Nothing here knows Spark: `assets.consuming.spark_sweeper` carries sweeps out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from dagster_leasehold.assets.errors import QuarantineLimitExceeded
from dagster_leasehold.assets.guarding.stall_guard import StallGuard
from dagster_leasehold.assets.output.worker_results import Plain, RangeStatistics, WrittenFile
from dagster_leasehold.assets.shard_stream import ShardStream, WatermarkOf
from dagster_leasehold.lease_store.errors import LeaseholdError
from dagster_leasehold.lease_store.identifiers import ShardId
from dagster_leasehold.lease_store.ledger_rows import BatchStatistics, DataFile
from dagster_leasehold.shard_sources.source import ReadRange


@dataclass(frozen=True, slots=True)
class SweepOutcome:
    """Output of one shard's part of a sweep.

    Attributes:
        attempt: the attempt's folder, relative to the stream's output folder.
        files: the files of this shard, in order.
        statistics: counts of what was read and written.
        columns: those of each file of records, as `assets.output.table.columns` describes them;
            none twice.
        mistimed: the number of records whose time lies outside the years 1 to 9999; they are
            stored without one.
        mistimed_at: the cursor of the first of them, where it is known.
    """

    attempt: str
    files: tuple[DataFile, ...]
    statistics: BatchStatistics
    columns: tuple[tuple[Plain, ...], ...] = ()
    mistimed: int = 0
    mistimed_at: str = ""

    @classmethod
    def of(
        cls, attempt: str, read: RangeStatistics | None, files: Sequence[WrittenFile]
    ) -> SweepOutcome:
        """Return the outcome of a shard, of which `files` hold what was read.

        Args:
            attempt: the attempt's folder, relative to the stream's output folder.
            read: the statistics of its records; None where nobody read them to their end.
            files: the files in order.
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
        return cls(attempt, data_files, statistics, tuple(columns), mistimed, mistimed_at)


SweepResult = SweepOutcome | LeaseholdError


class Sweeper(Protocol):
    """Reads, transforms and writes the ranges of a sweep."""

    def __call__(
        self, ranges: Sequence[ReadRange], numbers: Mapping[ShardId, range]
    ) -> Mapping[ShardId, SweepResult]:
        """Return the outcome of each shard, or its error; raise what concerns the whole sweep.

        `numbers` are those of the batches that are made, by shard.
        """
        ...


class GuardedSweeper:
    """A sweeper that is waited for while it makes progress."""

    def __init__(
        self, sweeper: Sweeper, guard: StallGuard, awaited: Callable[[], str] = lambda: "Spark"
    ) -> None:
        self._sweeper = sweeper
        self._guard = guard
        self._awaited = awaited

    def __call__(
        self, ranges: Sequence[ReadRange], numbers: Mapping[ShardId, range]
    ) -> Mapping[ShardId, SweepResult]:
        """Carry out a sweep; see `Sweeper`."""
        return self._guard.call(self._awaited, lambda: self._sweeper(ranges, numbers))


def check_quarantined(stream: ShardStream, range_: ReadRange, quarantined: int) -> None:
    """Refuse a batch with more quarantined records than the stream allows.

    Raises:
        QuarantineLimitExceeded: there are more.
    """
    if quarantined > stream.quarantined_max:
        raise QuarantineLimitExceeded(
            f"{quarantined} records of shard {range_.shard} between cursors {range_.start} and "
            f"{range_.end} could not be parsed, more than the {stream.quarantined_max} that the "
            "stream allows: mend the transform or raise quarantined_max."
        )


def mistimed_note(range_: ReadRange, outcome: SweepOutcome) -> str:
    """Return a sentence on records that are stored without the time they came with, or nothing."""
    if not outcome.mistimed:
        return ""
    first = f", the first of them at cursor {outcome.mistimed_at}" if outcome.mistimed_at else ""
    return (
        f"{outcome.mistimed} records of shard {range_.shard} between cursors {range_.start} and "
        f"{range_.end} have a time outside the years 1 to 9999{first}: their event_time is null."
    )


def watermark_after(stream: ShardStream, outcome: SweepOutcome) -> datetime | None:
    """Return the largest event time of a batch; None, which moves no watermark, if it has none."""
    if stream.watermark_of is WatermarkOf.SOURCE:
        return outcome.statistics.last_event_time
    written = [file.last_event_time for file in outcome.files if not file.quarantine]
    return max((time for time in written if time is not None), default=None)
