"""The rows of the ledger as frozen values: batches, their files, and totals over them."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import StrEnum

from dagster_leasehold.lease_store.identifiers import NodeName, ShardId
from dagster_leasehold.lease_store.rules.isolation import Suspicion
from dagster_leasehold.lease_store.shard_rows import Tenure


class BatchState(StrEnum):
    """The state of a batch.

    An `abandoned` batch was intended and never committed. A `withdrawn` batch was committed, and
    withdrawn when an earlier checkpoint was forced; its range is read again.
    """

    INTENT = "intent"
    COMMITTED = "committed"
    ABANDONED = "abandoned"
    WITHDRAWN = "withdrawn"


@dataclass(frozen=True, slots=True)
class DataFile:
    """A file of committed output.

    Attributes:
        path: relative to the stream's output folder.
        batches: the number of consecutive batches in it, beginning with the batch that lists it;
            the others list no file of this kind. A folded row counts as all of its batches.
        first_event_time: the smallest `event_time` after the transform, or None if unknown.
        last_event_time: the largest one, or None if unknown.
        untimed: the number of records without an event time, or None if unknown.
        partition: the values that all its records have of fields of the table's partitioning;
            empty if the shard and the times alone determine the partition.
        sorted_by: the sort order of its records, such as `user, at desc`; empty for none.
    """

    path: str
    records: int
    bytes: int
    quarantine: bool = False
    batches: int = 1
    first_event_time: datetime | None = None
    last_event_time: datetime | None = None
    untimed: int | None = None
    partition: tuple[tuple[str, str | int | bool | None], ...] = ()
    sorted_by: str = ""


@dataclass(frozen=True, slots=True)
class BatchStatistics:
    """Counts and times of a batch; no cursor depends on them.

    Attributes:
        records: records read; None if the transform stopped the reader early.
        bytes: bytes of keys and values read.
        written: records written to committed output.
        quarantined: records that could not be parsed.
        first_event_time: the smallest event time read, or None.
        last_event_time: the largest event time read, or None.
    """

    records: int | None = 0
    bytes: int | None = 0
    written: int = 0
    quarantined: int = 0
    first_event_time: datetime | None = None
    last_event_time: datetime | None = None


@dataclass(frozen=True, slots=True)
class Batch:
    """A row of the ledger: the range `[start, end)` of one shard, intended or committed.

    An old row can represent several `batches`, folded into the first one. It has their range and
    statistics, and the number and epoch of the last one.
    """

    shard: ShardId
    sequence: int
    start: str
    end: str
    state: BatchState
    epoch: int
    run: str
    holder: NodeName
    attempt: str = ""
    generation: int = 0
    files: tuple[DataFile, ...] = ()
    statistics: BatchStatistics = field(default_factory=BatchStatistics)
    finished: bool = False
    committed_at: datetime | None = None
    last_sequence: int | None = None
    last_epoch: int | None = None
    batches: int = 1

    @property
    def last(self) -> int:
        """The number of the last batch in the row."""
        return self.sequence if self.last_sequence is None else self.last_sequence

    @property
    def batch_id(self) -> str:
        """The idempotency key of the range within its group, the same for every attempt."""
        return batch_id(self.shard, self.sequence)


def batch_id(shard: ShardId, sequence: int) -> str:
    """Return the id of a batch: `<shard>.<sequence>`."""
    return f"{shard}.{sequence}"


@dataclass(frozen=True, slots=True)
class Intent:
    """A range about to be consumed under a tenure."""

    tenure: Tenure
    sequence: int
    start: str
    end: str


@dataclass(frozen=True, slots=True)
class BatchCommit:
    """One shard's part of a commit.

    Attributes:
        attempt: the folder of the attempt, relative to the stream's output folder.
        finished: True if a read-only shard ends with this batch.
        watermark: the shard's new watermark, or None to keep it.
        hooked: True if the stream's hook is called for it.
        mistimed: the number of records whose event time cannot be stored.
        suspicion: the suspicion about the records after it, or None.
    """

    tenure: Tenure
    sequence: int
    start: str
    end: str
    attempt: str
    files: tuple[DataFile, ...]
    statistics: BatchStatistics
    finished: bool = False
    watermark: datetime | None = None
    hooked: bool = False
    mistimed: int = 0
    suspicion: Suspicion | None = None


@dataclass(frozen=True, slots=True)
class Throughput:
    """The sum of a shard's newest committed batches, and when the oldest and newest was committed.

    `records` were read, or written if the reader was stopped early.
    """

    shard: ShardId
    batches: int
    records: int
    first_at: datetime
    last_at: datetime


class RewriteKind(StrEnum):
    """The reason to replace the files of committed batches."""

    REPLAY = "replay"
    COMPACTION = "compaction"


@dataclass(frozen=True, slots=True)
class Compacted:
    """The progress of a shard's compactions, as batch numbers (exclusive).

    Attributes:
        until: earlier batches need no further compaction.
        examined_until: earlier batches were examined, and can still be merged with later ones.
    """

    until: int = 0
    examined_until: int = 0


@dataclass(frozen=True, slots=True)
class RewriteClaim:
    """The right to replace a shard's committed output while the shard is consumed.

    Attributes:
        run: unique to one rewrite, so that it fences earlier ones; empty after the release.
        at: when it began; for people only.
    """

    shard: ShardId
    run: str
    kind: RewriteKind
    at: datetime
    compacted: Compacted = Compacted()


@dataclass(frozen=True, slots=True)
class BatchRewrite:
    """New output for a committed batch; its range, number and tenure stay.

    Attributes:
        generation: the generation that it replaces; the swap is refused if that has changed.
        attempt: the committed attempt. It differs if a failover lost the batch and the range was
            committed again under the same number. None skips this check.
    """

    sequence: int
    generation: int
    files: tuple[DataFile, ...]
    statistics: BatchStatistics
    attempt: str | None = None


@dataclass(frozen=True, slots=True)
class LedgerHead:
    """The end of a shard's ledger.

    Attributes:
        check_point: the shard's checkpoint, read by the same statement.
        next_number: the number of the next batch, which can be an open intent.
        intent: the open intent's run, if any.
        version: incremented when committed rows change or are removed, and when a checkpoint is
            forced.
    """

    shard: ShardId
    check_point: str | None
    next_number: int
    intent: str | None
    version: int


@dataclass(frozen=True, slots=True)
class ShardTotals:
    """Totals of all commits to a shard; even a forced checkpoint does not lower them."""

    shard: ShardId
    batches: int = 0
    records: int = 0
    bytes: int = 0
    quarantined: int = 0


@dataclass(frozen=True, slots=True)
class PublicationHold:
    """The reason why a shard's batches from a number on are not published.

    Attributes:
        start: batches before this number can be published.
        batch: the number of the batch that failed a check.
        check: the name of the check.
        at: when it failed; for people only.
    """

    start: int
    batch: int
    check: str
    reason: str
    at: datetime = field(compare=False)

    def __str__(self) -> str:
        return f"Check {self.check} holds its publication from batch {self.batch} on: {self.reason}"


@dataclass(frozen=True, slots=True)
class LedgerCounters:
    """The counters of a shard's ledger.

    Attributes:
        committed_until: the number after the last committed batch.
        published_until: the shard's cursor: earlier batches are in the group's table.
        rows: the number of ledger rows of committed batches.
        unchecked_until: an operator publishes the batches before this number without checks.
        hold: the hold on the shard's publication, or None.
    """

    shard: ShardId
    version: int
    committed_until: int
    published_until: int
    rows: int
    totals: ShardTotals
    unchecked_until: int = 0
    hold: PublicationHold | None = None

    @property
    def publishable_until(self) -> int:
        """The number before which batches can be published."""
        return self.committed_until if self.hold is None else self.hold.start

    @property
    def numbers_left(self) -> int:
        """An upper bound of the batches to publish; abandoned intents count too."""
        return max(self.publishable_until - self.published_until, 0)

    def after(self, sequence: int, statistics: BatchStatistics) -> LedgerCounters:
        """Return the counters after the commit of one more batch."""
        totals = ShardTotals(
            self.shard,
            self.totals.batches + 1,
            self.totals.records + statistics.written,
            self.totals.bytes + (statistics.bytes or 0),
            self.totals.quarantined + statistics.quarantined,
        )
        return replace(self, committed_until=sequence + 1, rows=self.rows + 1, totals=totals)
