"""The rows of published output as frozen values: a group's table, its changes and its backlog.

The ledger is written first, and the table follows. `end` and `until` are exclusive.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any, Self

from dagster_leasehold.lease_store.identifiers import GroupKey, NodeName, ShardId
from dagster_leasehold.lease_store.ledger_rows import Batch, DataFile, PublicationHold

LATE_S = 300.0
"""A table is late if committed output has waited for publication longer than this, in seconds."""


@dataclass(frozen=True, slots=True)
class TableName:
    """The name of an Iceberg table; the levels of its namespace are joined by dots."""

    catalog: str
    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.catalog}.{self.namespace}.{self.name}"


@dataclass(frozen=True, slots=True)
class TableColumns:
    """The columns of a group's files, as its runs have agreed on them.

    Attributes:
        version: incremented by each change; 0 before the first agreement.
        columns: a JSON object for each column, which only runs interpret.
    """

    version: int = 0
    columns: tuple[Mapping[str, Any], ...] = ()


class ChangeKind(StrEnum):
    """The reason to change published files."""

    REPLAY = "replay"
    COMPACTION = "compaction"
    WITHDRAWAL = "withdrawal"
    EXPIRY = "expiry"


@dataclass(frozen=True, slots=True)
class TableChange:
    """Files to remove from a group's table and to add to it, in one snapshot.

    The ledger has changed already. Quarantine files are never in a table.

    Attributes:
        sequence: the order of the group's changes.
        first: the number of the first batch whose output changes.
        removed: the paths of files that are no longer committed output.
        added: the files that replace them.
        published: True if the table has the change, or no longer needs it.
        at: when the ledger changed.
    """

    sequence: int
    shard: ShardId
    kind: ChangeKind
    first: int
    removed: tuple[str, ...] = ()
    added: tuple[DataFile, ...] = ()
    published: bool = False
    at: datetime | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class PublishedRange:
    """The batches of one shard that a publication adds to the table.

    Attributes:
        start: the shard's cursor when the publication was planned.
        end: the shard's cursor afterwards.
        version: the version of the shard's ledger, read before its batches.
    """

    shard: ShardId
    start: int
    end: int
    version: int


@dataclass(frozen=True, slots=True)
class PlannedPublication:
    """The content of one snapshot: batches by shard, and changes of published ones.

    Attributes:
        id: unique; a table property and the snapshot's summary contain it.
        base: the id of the snapshot before it; None if the table has none.
        changes: the numbers of the changes in it.
        records: the number of records in the table afterwards; None if unknown.
    """

    id: str
    snapshot: int
    base: int | None = None
    ranges: tuple[PublishedRange, ...] = ()
    changes: tuple[int, ...] = ()
    records: int | None = None


@dataclass(frozen=True, slots=True)
class PublishLock:
    """The lock to publish a group's output, with its fencing number.

    `node` is None if the lock was taken without a node.
    """

    key: GroupKey
    node: NodeName | None
    epoch: int


@dataclass(frozen=True, slots=True)
class CheckFailure:
    """The last batch that failed a publication check without being held.

    Attributes:
        reason: for people only.
    """

    check: str
    shard: ShardId
    batch: int
    reason: str


@dataclass(frozen=True, slots=True)
class Publication:
    """The state of a group's table: row of `publication`.

    Attributes:
        epoch: the epoch of the newest publish lock; 0 before the first one, with only `columns`.
        node: the node that holds the lock, or None.
        incarnation: the incarnation of that node, or empty.
        run: the run that took the newest lock; empty for a sensor or a command.
        table: the table's name; None until the first lock.
        number: the number of publications.
        last: the id of the newest publication, or None.
        snapshot: the id of its snapshot, or None.
        records: the number of records in the table after it; None if unknown.
        at: when it was committed; for people only.
        pending: an unsettled publication that was sent to another catalog, and is possibly in the
            table.
        failures: the publication checks that the batches checked last have failed, without holds.
        changes_pending: True if a change is not published.
    """

    key: GroupKey
    epoch: int = 0
    node: NodeName | None = None
    incarnation: str = ""
    run: str = ""
    table: TableName | None = None
    columns: TableColumns = TableColumns()
    number: int = 0
    last: str | None = None
    snapshot: int | None = None
    records: int | None = None
    at: datetime | None = None
    pending: PlannedPublication | None = None
    failures: tuple[CheckFailure, ...] = ()
    changes_pending: bool = False


@dataclass(frozen=True, slots=True)
class ShardAhead:
    """A shard with batches in the table that the ledger lacks, because a backup was restored.

    Attributes:
        publication: the id of the table's newest publication.
        publications: their number.
        first: the number of the first batch on which ledger and table disagree.
        start: the cursor where that batch begins.
        version: the version of the shard's ledger, read before its batches; 0 if the ledger
            lacks the shard.
        end: the cursor where the shard's records in the table end.
        next_number: the number of the batch after them.
        epoch: the epoch of the shard's last tenure with output in the table.
        files: the table's files from `start` on, and the ledger's quarantine files.
    """

    publication: str
    publications: int
    shard: ShardId
    first: int
    start: str
    version: int
    end: str
    next_number: int
    epoch: int
    files: tuple[DataFile, ...]

    @property
    def records(self) -> int:
        """The number of records in the table's files."""
        return sum(file.records for file in self.files if not file.quarantine)

    def __str__(self) -> str:
        files = sum(not file.quarantine for file in self.files)
        return (
            f"{self.records:,} records in {files:,} files, from {self.start} up to {self.end}, "
            f"come from the table; batches of the ledger from number {self.first} on are withdrawn"
        )


@dataclass(frozen=True, slots=True)
class ShardBacklog:
    """Committed batches of a shard that are not published, oldest first.

    Attributes:
        start: the number of the first unpublished batch.
        version: the version of the shard's ledger, read before its batches.
        more: True if a limit omitted further batches.
        unchecked_until: batches before this number are published without checks.
        hold: the hold on further batches, or None.
    """

    shard: ShardId
    start: int
    version: int
    batches: tuple[Batch, ...]
    more: bool = False
    unchecked_until: int = 0
    hold: PublicationHold | None = None


@dataclass(frozen=True, slots=True)
class ShardLag:
    """The unpublished output of a shard.

    Attributes:
        start: the number of the first unpublished batch.
        oldest_at: when it was committed.
        more: True if further batches were not counted.
    """

    shard: ShardId
    start: int
    batches: int
    records: int
    oldest_at: datetime
    more: bool = False


@dataclass(frozen=True, slots=True)
class HeldOutput:
    """The output of a shard whose publication is held; its text is a sentence."""

    lag: ShardLag
    hold: PublicationHold

    @property
    def shard(self) -> ShardId:
        """The shard."""
        return self.lag.shard

    def __str__(self) -> str:
        least = "at least " if self.lag.more else ""
        return (
            f"Shard {self.shard}: {least}{self.lag.batches:,} committed batches with "
            f"{self.lag.records:,} records are not published. {self.hold}"
        )


@dataclass(frozen=True, slots=True)
class HoldChange:
    """The hold that a publisher sets on a shard; None ends it.

    Attributes:
        version: the version of the shard's ledger, read before the checked batches.
    """

    shard: ShardId
    version: int
    hold: PublicationHold | None


@dataclass(frozen=True, slots=True)
class PublicationLag:
    """The unpublished output of a group; its text is a part of a sentence.

    Attributes:
        since: when the oldest batch was committed; None if nothing waits.
        more: True if further batches were not counted.
    """

    batches: int
    records: int
    since: datetime | None
    more: bool

    @classmethod
    def of(cls, lags: Sequence[ShardLag]) -> Self:
        """Return the sum over shards."""
        return cls(
            sum(lag.batches for lag in lags),
            sum(lag.records for lag in lags),
            min((lag.oldest_at for lag in lags), default=None),
            any(lag.more for lag in lags),
        )

    def seconds(self, now: datetime) -> float:
        """Return how long the oldest batch has waited."""
        return 0.0 if self.since is None else max(0.0, (now - self.since).total_seconds())

    def __str__(self) -> str:
        if self.since is None:
            return "no committed batch waits"
        least = "at least " if self.more else ""
        one = self.batches == 1
        return (
            f"{least}{self.batches:,} committed {'batch' if one else 'batches'} with "
            f"{self.records:,} record{'' if self.records == 1 else 's'} wait{'s' if one else ''} "
            f"since {self.since:%Y-%m-%d %H:%M:%S} UTC"
        )


@dataclass(frozen=True, slots=True)
class TablePointer:
    """The newest metadata file of a table of the default catalog: row of `iceberg_tables`."""

    table: TableName
    location: str
    previous: str | None = None


@dataclass(frozen=True, slots=True)
class RoutePointer:
    """The step of the pointer of a route's table; `before` is None for a new table."""

    table: TableName
    before: str | None
    after: str


@dataclass(frozen=True, slots=True)
class PointerMove:
    """The step of a table's pointer from one metadata file to the next.

    Attributes:
        routes: the steps of the tables of routes, in the same transaction.
    """

    before: str
    after: str
    routes: tuple[RoutePointer, ...] = ()
