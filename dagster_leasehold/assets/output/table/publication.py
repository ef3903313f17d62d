"""Pure rules for a publication: the batches and changes of the next snapshots.

Changes come first, in order; consecutive changes of one kind become one snapshot. The batches
follow as one snapshot. Together they are one publication, which is in the table completely or not
at all.

A change whose files another program has rewritten cannot be published. A replay or a compaction is
rejected as a whole, so the table still has each record once. An expiry removes the remaining files.
A withdrawal stops the publication: otherwise records that were read again would be in the table
twice.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from itertools import groupby

from dagster_leasehold.assets.errors import TableUnavailable
from dagster_leasehold.assets.output.table.marks import REMEDY
from dagster_leasehold.lease_store.identifiers import GroupKey, ShardId
from dagster_leasehold.lease_store.ledger_rows import Batch, DataFile
from dagster_leasehold.lease_store.publication_rows import (
    ChangeKind,
    PublishedRange,
    ShardBacklog,
    TableChange,
)
from dagster_leasehold.lease_store.roles.publications import Publications


class Operation(StrEnum):
    """The operation of a snapshot, as in Iceberg."""

    APPEND = "append"
    REPLACE = "replace"
    OVERWRITE = "overwrite"
    DELETE = "delete"


OPERATIONS = {
    ChangeKind.REPLAY: Operation.OVERWRITE,
    ChangeKind.COMPACTION: Operation.REPLACE,
    ChangeKind.WITHDRAWAL: Operation.DELETE,
    ChangeKind.EXPIRY: Operation.DELETE,
}

ShardFile = tuple[ShardId, DataFile]


@dataclass(frozen=True, slots=True)
class SnapshotPlan:
    """The files of one snapshot, with their paths in the ledger.

    Attributes:
        operation: append adds files, replace changes no record, delete adds no file.
        added: files by shard, in order.
        removed: paths, with their shards if known.
        oldest_first: True if the removed files are the oldest of the table.
        without_deletes: True if it also removes the delete files of other programs.
        committed: the batches that it adds, shard by shard in order.
        withdrawn: the shards from which it removes withdrawn batches.
    """

    operation: Operation
    added: tuple[ShardFile, ...] = ()
    removed: Mapping[str, ShardId | None] = field(default_factory=dict[str, "ShardId | None"])
    oldest_first: bool = False
    batches: int = 0
    without_deletes: bool = False
    committed: tuple[tuple[Batch, ...], ...] = ()
    withdrawn: frozenset[ShardId] = frozenset()

    @property
    def records(self) -> int:
        """The number of records in the files that it adds."""
        return sum(file.records for _, file in self.added)


@dataclass(frozen=True, slots=True)
class PublicationPlan:
    """One publication.

    Attributes:
        snapshots: in order; at least one if there is anything to publish.
        rejected: a sentence for each change that is rejected or incomplete.
    """

    snapshots: tuple[SnapshotPlan, ...] = ()
    ranges: tuple[PublishedRange, ...] = ()
    changes: tuple[int, ...] = ()
    rejected: tuple[str, ...] = ()

    @property
    def batches(self) -> int:
        """The number of batches that it adds to the table."""
        return sum(snapshot.batches for snapshot in self.snapshots)

    @property
    def records(self) -> int:
        """The number of records in these batches."""
        return sum(each.records for each in self.snapshots if each.operation is Operation.APPEND)


def each_change(store: Publications, key: GroupKey, *, after: int = 0) -> Iterator[TableChange]:
    """Yield the changes of a group that wait for publication, in order, page by page."""
    while page := store.pending_changes(key, after=after):
        yield from page
        after = page[-1].sequence


def plan_publication(
    backlog: Sequence[ShardBacklog],
    changes: Sequence[TableChange],
    *,
    changes_max: int,
    missing: Collection[str] = (),
) -> PublicationPlan:
    """Return the next publication, without snapshots if there is nothing to publish.

    Args:
        backlog: committed batches that are not published.
        changes: the oldest unpublished changes, in order.
        changes_max: the limit of `changes`. If it is reached, batches wait for further changes.
        missing: paths of files to remove that the table lacks.

    Raises:
        TableUnavailable: a withdrawal removes a file that the table lacks.
    """
    possible, rejected = _possible(changes, missing)
    snapshots = [
        _of_changes(operation, list(group))
        for operation, group in groupby(possible, lambda change: OPERATIONS[change.kind])
    ]
    ranges: tuple[PublishedRange, ...] = ()
    waiting = [shard for shard in backlog if shard.batches]
    if waiting and len(changes) < changes_max:
        ranges = tuple(
            PublishedRange(each.shard, each.start, each.batches[-1].last + 1, each.version)
            for each in waiting
        )
        snapshots.append(_of_batches(waiting))
    numbers = tuple(each.sequence for each in changes)
    return PublicationPlan(tuple(snapshots), ranges, numbers, tuple(rejected))


def _possible(
    changes: Sequence[TableChange], missing: Collection[str]
) -> tuple[list[TableChange], list[str]]:
    """Return the changes that can be published, and a sentence for each other change."""
    possible, rejected, lacking = list[TableChange](), list[str](), set(missing)
    for change in changes:
        removed_paths = [path for path in change.removed if path in lacking]
        if not removed_paths:
            lacking.difference_update(file.path for file in change.added)
            possible.append(change)
            continue
        cause = (
            f"the {change.kind} of shard {change.shard} from batch {change.first} on removes "
            f"{removed_paths[0]}, which the table no longer names: another program has rewritten it"
        )
        if change.kind is ChangeKind.WITHDRAWAL:
            raise TableUnavailable(
                f"Nothing can be published, because {cause}. Records that were read again would "
                f"be in the table twice: {REMEDY}."
            )
        if change.kind is ChangeKind.EXPIRY:
            remaining = tuple(path for path in change.removed if path not in lacking)
            possible.append(replace(change, removed=remaining))
            rejected.append(f"Expired records can stay in the table, because {cause}.")
        else:
            lacking.update(file.path for file in change.added)
            rejected.append(f"A replacement was rejected, because {cause}.")
    return possible, rejected


def _of_batches(backlog: Sequence[ShardBacklog]) -> SnapshotPlan:
    added = [
        (shard.shard, file)
        for shard in backlog
        for batch in shard.batches
        for file in batch.files
        if not file.quarantine
    ]
    batches = sum(batch.batches for shard in backlog for batch in shard.batches)
    committed = tuple(shard.batches for shard in backlog)
    return SnapshotPlan(Operation.APPEND, tuple(added), batches=batches, committed=committed)


def _of_changes(operation: Operation, changes: Sequence[TableChange]) -> SnapshotPlan:
    """Return the snapshot of consecutive changes, without files that they both add and remove."""
    added: dict[str, ShardFile] = {}
    removed: dict[str, ShardId | None] = {}
    for change in changes:
        for path in change.removed:
            if added.pop(path, None) is None:
                removed[path] = change.shard
        for file in change.added:
            if not file.quarantine:
                added[file.path] = (change.shard, file)
    oldest = all(change.kind is ChangeKind.EXPIRY for change in changes)
    withdrawn = frozenset(each.shard for each in changes if each.kind is ChangeKind.WITHDRAWAL)
    return SnapshotPlan(operation, tuple(added.values()), removed, oldest, withdrawn=withdrawn)
