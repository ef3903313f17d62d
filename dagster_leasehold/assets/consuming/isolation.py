"""Searches for the record that blocks a shard, by the rules of `rules.isolation`.

`batch_planning` calls it for the next range after a failed attempt. A suspicion is stored in the
shard's row before each attempt, because the attempt can kill this process. A range is divided by
planning a smaller one, which every source supports. Sizes are in offsets if the source's cursors
are offsets, otherwise in records.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from dagster_leasehold.assets.consuming.open_shards import OpenShard
from dagster_leasehold.assets.errors import (
    BatchIncomplete,
    RecordBlocks,
    SparkFeatureMissing,
    SparkNotReady,
    SparkUnavailable,
    TransformError,
    TransformUnusable,
)
from dagster_leasehold.assets.shard_stream import ShardStream
from dagster_leasehold.lease_store.errors import LeaseholdError, LogCorrupt, RunStalled, SourceError
from dagster_leasehold.lease_store.roles.tenures import Tenures
from dagster_leasehold.lease_store.rules.isolation import (
    KILLED_MAX,
    NextStep,
    Suspicion,
    goes_to_quarantine,
    next_step,
    sentence,
)
from dagster_leasehold.shard_sources.source import DivisibleRanges, Limits, ReadRange

UNREAD_AFTER = 2 * KILLED_MAX
"""The number of failed attempts after which a record goes to quarantine without being read."""
_RECORDS = (TransformError, BatchIncomplete, LogCorrupt)
_PROCESSES = (RunStalled, SparkUnavailable)
_INNOCENT = (TransformUnusable, SparkNotReady, SparkFeatureMissing)


def can_come_from_records(error: BaseException) -> bool:
    """Return True if a record may have caused the error."""
    if isinstance(error, _INNOCENT):
        return False
    # A plain `SourceError` wraps an unexpected exception of the reader.
    return isinstance(error, (*_RECORDS, *_PROCESSES)) or type(error) is SourceError


def run_can_continue(error: LeaseholdError) -> bool:
    """Return True if a record may have caused the error and the run can try a smaller range.

    The run cannot do so if its process has stalled or Spark is unavailable.
    """
    return can_come_from_records(error) and not isinstance(error, _PROCESSES)


@dataclass(frozen=True, slots=True)
class NextRange:
    """The range to try next.

    Attributes:
        size: its length in the source's unit during a search for a bad record; otherwise 0.
        last: True if the shard is read-only and ends with this range.
        set_aside: the reason why its records go to quarantine without the transform; otherwise
            empty.
        unread: True if reading them without the transform failed as well.
    """

    range_: ReadRange
    size: int = 0
    last: bool = False
    set_aside: str = ""
    unread: bool = False


@dataclass(frozen=True, slots=True)
class Isolation:
    """Finds the records that block the shards of one run."""

    stream: ShardStream
    store: Tenures

    def retry(self, open_: OpenShard, range_: ReadRange) -> NextRange:
        """Return the range to try in place of an intent that was not committed.

        Raises:
            RecordBlocks: the range is one record that this run has tried. The shard is on hold.
        """
        step = next_step(open_.failures, open_.suspicion)
        if step is NextStep.HALVE:
            return self._halve(open_, range_)
        size = self._size(open_, range_) if open_.isolating else 0
        if step is NextStep.REPEAT:
            return NextRange(range_, size)
        suspicion = open_.suspicion or Suspicion()
        if goes_to_quarantine(
            self.stream.on_poison, suspicion, quarantined_max=self.stream.checks.quarantined_max
        ):
            unread = open_.failures >= UNREAD_AFTER
            return NextRange(range_, size, set_aside=suspicion.known_failure, unread=unread)
        if not suspicion.holds_shard or open_.refused:
            self._save_suspicion(open_, replace(suspicion, holds_shard=True))
        if open_.refused:
            tenure = open_.tenure
            raise RecordBlocks(sentence(tenure.key, tenure.shard, range_.start, open_.suspicion))
        return NextRange(range_, size)

    def next_part(self, open_: OpenShard) -> NextRange | None:
        """Return the next part of a suspected range after a part was committed.

        The result is None if no record can be read now.
        """
        suspicion = open_.suspicion or Suspicion()
        part = self._first(open_, suspicion.next_size())
        if part.range_.end == open_.cursor:
            return None
        alone = suspicion.records > 0 and part.size <= 1
        if alone != suspicion.alone:
            self._save_suspicion(open_, replace(suspicion, alone=alone))
        return part

    def _halve(self, open_: OpenShard, range_: ReadRange) -> NextRange:
        size = self._size(open_, range_)
        suspicion = open_.suspicion or Suspicion()
        while size > 1:
            smaller = self._first(open_, size // 2)
            if smaller.range_.end != range_.end:
                narrowed = suspicion.within(size, alone=smaller.size <= 1)
                self._save_suspicion(open_, narrowed, abandon=True)
                open_.sequence += open_.numbered
                open_.intent, open_.numbered, open_.failures = None, False, 0
                return smaller
            size //= 2
        self._save_suspicion(open_, suspicion.within(1, alone=True))
        open_.failures = 0
        return self.retry(open_, range_)

    def _save_suspicion(
        self, open_: OpenShard, suspicion: Suspicion, *, abandon: bool = False
    ) -> None:
        self.store.suspect(open_.tenure, suspicion, abandon=abandon)
        open_.suspicion = suspicion

    def _size(self, open_: OpenShard, range_: ReadRange) -> int:
        """Return the size of an intent's range, or an upper bound."""
        if isinstance(self.stream.source, DivisibleRanges):
            return max(1, self.stream.source.divide(range_, 1)[0].records)
        if open_.suspicion is not None and open_.suspicion.isolating:
            return open_.suspicion.next_size()
        plan = self.stream.source.plan(range_.shard, range_.start, self.stream.limits)
        return max(1, plan.records)

    def _first(self, open_: OpenShard, count: int) -> NextRange:
        """Return a range of at most `count` records from the shard's cursor."""
        shard, start, source = open_.tenure.shard, open_.cursor, self.stream.source
        plan = source.plan(shard, start, Limits(count, self.stream.limits.bytes_max))
        range_ = ReadRange(shard, start, plan.end, plan.records)
        size = plan.records
        if isinstance(source, DivisibleRanges) and plan.end != start:
            size = source.divide(range_, 1)[0].records
        return NextRange(range_, max(1, size), plan.last)
