"""The rows of published output as frozen values: a group's table, what changes it, and its backlog.

The ledger is written first, and the table follows. Numbers of batches are the ledger's;
`end` and `until` are exclusive.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any, Self

from dagster_leasehold.lease_store.identifiers import GroupKey, NodeName, ShardId
from dagster_leasehold.lease_store.ledger_rows import Batch, DataFile

LATE_S = 300.0
"""The time after which committed output that waits for its table is behind, in seconds."""


@dataclass(frozen=True, slots=True)
class TableName:
    """The name of an Iceberg table: the catalog, a namespace with its levels joined by dots."""

    catalog: str
    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.catalog}.{self.namespace}.{self.name}"


@dataclass(frozen=True, slots=True)
class TableColumns:
    """The columns that the files of a group may have, as all of its runs have agreed on them.

    Attributes:
        version: rises with each change; 0 where nothing was agreed on yet.
        columns: a JSON object per column; their content is the business of the runs that agree on
            them.
    """

    version: int = 0
    columns: tuple[Mapping[str, Any], ...] = ()


class ChangeKind(StrEnum):
    """The reason for other files in a table than the published ones."""

    REPLAY = "replay"
    COMPACTION = "compaction"
    WITHDRAWAL = "withdrawal"
    EXPIRY = "expiry"


@dataclass(frozen=True, slots=True)
class TableChange:
    """Files to take out of a group's table and to put into it, in one snapshot.

    The ledger has made the change already; the table is to follow. Quarantine files are in no
    table, and in no change.

    Attributes:
        sequence: changes of a group are carried out in this order.
        first: the number of the first batch whose output changes.
        removed: the paths of files that are no longer committed output.
        added: files that are committed output instead.
        published: the table has followed, or no longer needs to.
        at: when the ledger made it; its age counts once it is published.
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
        end: the shard's cursor afterwards: behind the last batch of the publication.
        version: of the shard's ledger, read before its batches were.
    """

    shard: ShardId
    start: int
    end: int
    version: int


@dataclass(frozen=True, slots=True)
class PlannedPublication:
    """The content of one snapshot: batches by shard, and changes of published ones.

    Attributes:
        id: unique; the table's mark and the snapshot's summary name it, too.
        snapshot: the id of the snapshot that holds it.
        base: the id of the snapshot that it follows; None where the table has none yet.
        changes: the numbers of the changes that it carries out.
        records: the number of records in the table with it; None where the catalog counts none.
    """

    id: str
    snapshot: int
    base: int | None = None
    ranges: tuple[PublishedRange, ...] = ()
    changes: tuple[int, ...] = ()
    records: int | None = None


@dataclass(frozen=True, slots=True)
class PublishLock:
    """The lock to publish a group's output: a node or none, and the lock's fencing number."""

    key: GroupKey
    node: NodeName | None
    epoch: int


@dataclass(frozen=True, slots=True)
class Publication:
    """The state of a group's table: row of `publication`.

    Attributes:
        epoch: of the newest lock to publish; 0 if none was ever taken: the group's
            output goes into no table, and its columns alone are known.
        node: of the lock, or None.
        incarnation: of that node; empty where there is none.
        run: took the lock, or took the last one; empty where a sensor or a command did.
        table: the table's name; None until the first lock.
        columns: see `TableColumns`.
        number: how many publications there were.
        last: the id of the newest publication, or None.
        snapshot: the id of its snapshot, or None.
        records: the number of records in the table after it; None where it was not counted.
        at: when it was committed; for people only.
        pending: the publication that was sent to another catalog and is not settled. It can be
            in the table.
        changes_pending: True if there are changes that are not published.
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
    changes_pending: bool = False


@dataclass(frozen=True, slots=True)
class ShardAhead:
    """A shard that the table has more of than the ledger, since a backup was restored.

    Attributes:
        publication: the id of the table's newest publication.
        publications: how many there were.
        first: the number of the first batch that ledger and table disagree on.
        start: the cursor where that batch begins.
        version: of the shard's ledger, read before its batches were; 0 for a shard that the ledger
            does not have.
        end: the cursor where the table's records of the shard end.
        next_number: the number that the next batch had.
        epoch: of the shard's last tenure that the table has output of.
        files: files of the table from `start` on, and those in quarantine that the ledger has.
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
        """The number of records in the files of the table."""
        return sum(file.records for file in self.files if not file.quarantine)

    def __str__(self) -> str:
        files = sum(not file.quarantine for file in self.files)
        return (
            f"{self.records:,} records in {files:,} files, from {self.start} up to {self.end}, are "
            f"the table's; batches of the ledger from number {self.first} on give way"
        )


@dataclass(frozen=True, slots=True)
class ShardBacklog:
    """Committed batches of a shard that are not published, oldest first.

    Attributes:
        start: the shard's cursor: the number of the first batch that is not published.
        version: of the shard's ledger, read before its batches were.
        batches: not all of them where a limit was reached.
        more: True if there are more.
    """

    shard: ShardId
    start: int
    version: int
    batches: tuple[Batch, ...]
    more: bool = False


@dataclass(frozen=True, slots=True)
class ShardLag:
    """The part of a shard's committed output that waits for publication.

    Attributes:
        start: the shard's cursor: the number of the first batch that is not published.
        batches: their number.
        records: the number of records in their files.
        oldest_at: when the oldest of them was committed.
        more: True if there are more than were counted.
    """

    shard: ShardId
    start: int
    batches: int
    records: int
    oldest_at: datetime
    more: bool = False


@dataclass(frozen=True, slots=True)
class PublicationLag:
    """All committed output of a group that waits for publication; it reads as a part of a sentence.

    Attributes:
        since: when the oldest of it was committed; None where nothing waits.
        more: True if there is more than was counted.
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
        """Return for how long the oldest of it has waited."""
        return 0.0 if self.since is None else max(0.0, (now - self.since).total_seconds())

    def __str__(self) -> str:
        if self.since is None:
            return "nothing that is committed waits"
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
class PointerMove:
    """The step of a table's pointer from one metadata file to the next."""

    before: str
    after: str
