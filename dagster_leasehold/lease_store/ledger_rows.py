"""The rows of the ledger as frozen values: batches, their files, and totals over them."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import StrEnum

from dagster_leasehold.lease_store.identifiers import NodeName, ShardId
from dagster_leasehold.lease_store.rules.isolation import Suspicion
from dagster_leasehold.lease_store.shard_rows import Tenure


class BatchState(StrEnum):
    """The state of a batch: only intended, committed, or given up.

    `abandoned` was intended only; `withdrawn` was committed until a forced checkpoint went back
    before it: its range is read again, and its files are no longer committed output.
    """

    INTENT = "intent"
    COMMITTED = "committed"
    ABANDONED = "abandoned"
    WITHDRAWN = "withdrawn"


@dataclass(frozen=True, slots=True)
class DataFile:
    """A file of committed output: path relative to the stream's output folder, size in bytes.

    `batches` is the number of consecutive batches of the shard whose records it holds: those of
    the batch that lists it, and of the following ones, which then list no file of this kind. A row
    that others were folded into counts as all of its batches.
    `first_event_time` and `last_event_time` bound the column `event_time` of its records, as the
    transform left it; None where they are not known. `untimed` is the number of records without
    one; None for files of versions that did not count them.
    """

    path: str
    records: int
    bytes: int
    quarantine: bool = False
    batches: int = 1
    first_event_time: datetime | None = None
    last_event_time: datetime | None = None
    untimed: int | None = None


@dataclass(frozen=True, slots=True)
class BatchStatistics:
    """Counts and times seen while a batch was read and written; they never decide a cursor.

    Attributes:
        records: records read; None when the reader was stopped early by the transform.
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

    `batch_id` is `<shard>.<sequence>`, the same for every attempt at the range.

    An old row can stand for several `batches`, which were folded into the first of them: it has
    their whole range and all their statistics, and names the last one's number and epoch.
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
        """The number of the last batch that the row stands for."""
        return self.sequence if self.last_sequence is None else self.last_sequence

    @property
    def batch_id(self) -> str:
        """The batch's stable id: an idempotency key within its stream and group."""
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
    """All that one shard's commit makes visible at once.

    Attributes:
        attempt: the folder of the attempt, relative to the stream's output folder.
        finished: a read-only shard's checkpoint reached its end with this batch.
        watermark: the shard's new watermark, or None to leave it.
        hooked: the stream's own hook is to be called for it, too.
        mistimed: records whose time cannot be kept; its event in the outbox tells their number.
        suspicion: of the records behind it, or None.
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
    """The sum of a shard's newest committed batches.

    Attributes:
        batches: their number.
        records: the number of records that they read, or wrote where reading was stopped early.
        first_at: when the oldest of them was committed.
        last_at: when the newest of them was committed.
    """

    shard: ShardId
    batches: int
    records: int
    first_at: datetime
    last_at: datetime


class RewriteKind(StrEnum):
    """The reason to replace committed output by files of the same meaning to the ledger."""

    REPLAY = "replay"
    COMPACTION = "compaction"


@dataclass(frozen=True, slots=True)
class Compacted:
    """The progress of the compactions of a shard, in numbers of its batches.

    Attributes:
        until: smaller numbers lie in files that need no further compaction.
        looked_until: smaller numbers were looked at; their files can still be merged with later
            ones.
    """

    until: int = 0
    looked_until: int = 0


@dataclass(frozen=True, slots=True)
class RewriteClaim:
    """The right to replace a shard's committed output; consuming the shard continues beside.

    Attributes:
        run: unique to one rewrite, so that it fences all earlier ones; empty once the claim was
            given back.
        at: when it began; for people only.
        compacted: the progress of all compactions of the shard so far.
    """

    shard: ShardId
    run: str
    kind: RewriteKind
    at: datetime
    compacted: Compacted = Compacted()


@dataclass(frozen=True, slots=True)
class BatchRewrite:
    """Other output for a committed batch; its range, number and tenure stay.

    Attributes:
        generation: of the output that it was made from; it takes effect only in its place.
        attempt: that was committed. It is what is different in a batch that a fail-over has lost,
            and that was made again under the same number. None does not look at it.
    """

    sequence: int
    generation: int
    files: tuple[DataFile, ...]
    statistics: BatchStatistics
    attempt: str | None = None


@dataclass(frozen=True, slots=True)
class LedgerHead:
    """The end of a shard's ledger as it is now.

    Attributes:
        check_point: of the shard's row, read together with the rest.
        next_number: the number of the shard's next batch, that of an open intent included.
        intent: the open intent's run, if there is one.
        version: rises whenever committed rows of the shard are changed or removed, or its
            checkpoint is forced.
    """

    shard: ShardId
    check_point: str | None
    next_number: int
    intent: str | None
    version: int


@dataclass(frozen=True, slots=True)
class ShardTotals:
    """All that was ever committed to a shard; it never falls, not by a forced checkpoint either."""

    shard: ShardId
    batches: int = 0
    records: int = 0
    bytes: int = 0
    quarantined: int = 0


@dataclass(frozen=True, slots=True)
class LedgerCounters:
    """The counters of a shard's ledger, so that the ledger need not be added up.

    Attributes:
        version: rises whenever committed rows of the shard are changed or removed, or its
            checkpoint is forced.
        committed_until: the number behind the shard's last committed batch.
        published_until: the shard's cursor: batches with smaller numbers are in the group's table.
        rows: the number of ledger rows of batches that were ever committed.
        totals: all that was ever committed.
    """

    shard: ShardId
    version: int
    committed_until: int
    published_until: int
    rows: int
    totals: ShardTotals

    @property
    def numbers_left(self) -> int:
        """The most batches that can wait for publication: some numbers were given up as intents."""
        return max(self.committed_until - self.published_until, 0)

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
