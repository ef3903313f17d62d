"""Pure rules of a publication: the batches and changes that the next snapshots hold.

Changes come first, in their order; changes of one kind in a row become one snapshot. The batches
follow as one snapshot. All of them are one publication: it is in the table as a whole, or not.

A change whose files another program has rewritten cannot be carried out. A replacement (a replay, a
compaction) is rejected as a whole: the table keeps the records that it has, each once. Expiry takes
out the files that are left. A withdrawal holds all back: records that were read again would be in
the table twice.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby

from dagster_leasehold.assets.errors import TableUnavailable
from dagster_leasehold.assets.output.table.marks import REMEDY
from dagster_leasehold.assets.output.table.staging import Operation
from dagster_leasehold.lease_store.identifiers import ShardId
from dagster_leasehold.lease_store.ledger_rows import Batch, DataFile
from dagster_leasehold.lease_store.publication_rows import (
    ChangeKind,
    PublishedRange,
    ShardBacklog,
    TableChange,
)

OPERATIONS = {
    ChangeKind.REPLAY: Operation.OVERWRITE,
    ChangeKind.COMPACTION: Operation.REPLACE,
    ChangeKind.WITHDRAWAL: Operation.DELETE,
    ChangeKind.EXPIRY: Operation.DELETE,
}

ShardFile = tuple[ShardId, DataFile]


@dataclass(frozen=True, slots=True)
class SnapshotPlan:
    """The files of one snapshot.

    Attributes:
        operation: its kind.
        added: files by shard, in order.
        removed: paths as the ledger has them, with their shards where those are known.
        oldest_first: True if the files to take out are the table's oldest.
        batches: the number of batches that it adds.
        without_deletes: True if delete files of other programs are taken out, too.
    """

    operation: Operation
    added: tuple[ShardFile, ...] = ()
    removed: Mapping[str, ShardId | None] = field(default_factory=dict[str, "ShardId | None"])
    oldest_first: bool = False
    batches: int = 0
    without_deletes: bool = False

    @property
    def records(self) -> int:
        """The number of records in the files that it adds."""
        return sum(file.records for _, file in self.added)


@dataclass(frozen=True, slots=True)
class PublicationPlan:
    """One publication.

    Attributes:
        snapshots: in their order; there is always one where there is anything to publish.
        ranges: the batches by shard.
        changes: the numbers of the changes.
        rejected: a sentence for each change that is not carried out as it is.
        spans: the first and the last batch of each range.
        withdrawn: the shards with withdrawn batches.
    """

    snapshots: tuple[SnapshotPlan, ...] = ()
    ranges: tuple[PublishedRange, ...] = ()
    changes: tuple[int, ...] = ()
    rejected: tuple[str, ...] = ()
    spans: tuple[tuple[Batch, Batch], ...] = ()
    withdrawn: frozenset[ShardId] = frozenset()

    @property
    def batches(self) -> int:
        """The number of batches that it adds to the table."""
        return sum(snapshot.batches for snapshot in self.snapshots)

    @property
    def records(self) -> int:
        """The number of records that it adds with them."""
        return sum(each.records for each in self.snapshots if each.operation is Operation.APPEND)


def plan_publication(
    backlog: Sequence[ShardBacklog],
    changes: Sequence[TableChange],
    *,
    changes_max: int,
    missing: Collection[str] = (),
) -> PublicationPlan:
    """Return the next publication; without snapshots if there is nothing to publish.

    Args:
        backlog: committed batches behind the cursors.
        changes: the oldest ones that are not published, in order.
        changes_max: so many were asked for; where there are as many there can be more, and batches
            wait until all changes are in.
        missing: paths that changes take out, and that the table lacks.

    Raises:
        TableUnavailable: a withdrawal takes out a file that the table lacks.
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
    return PublicationPlan(
        tuple(snapshots),
        ranges,
        numbers,
        tuple(rejected),
        tuple((each.batches[0], each.batches[-1]) for each in waiting) if ranges else (),
        frozenset(each.shard for each in changes if each.kind is ChangeKind.WITHDRAWAL),
    )


def _possible(
    changes: Sequence[TableChange], missing: Collection[str]
) -> tuple[list[TableChange], list[str]]:
    """Return the changes that can be carried out, and a sentence for each other one."""
    possible, rejected, lacking = list[TableChange](), list[str](), set(missing)
    for change in changes:
        removed_paths = [path for path in change.removed if path in lacking]
        if not removed_paths:
            lacking.difference_update(file.path for file in change.added)
            possible.append(change)
            continue
        what = (
            f"the {change.kind} of shard {change.shard} from batch {change.first} on takes out "
            f"{removed_paths[0]}, which the table no longer names: another program has rewritten it"
        )
        if change.kind is ChangeKind.WITHDRAWAL:
            raise TableUnavailable(
                f"Nothing can be published, since {what}. What was read again would be in the "
                f"table twice: {REMEDY}."
            )
        if change.kind is ChangeKind.EXPIRY:
            left = tuple(path for path in change.removed if path not in lacking)
            possible.append(replace(change, removed=left))
            rejected.append(f"Expired records can stay in the table, since {what}.")
        else:
            lacking.update(file.path for file in change.added)
            rejected.append(f"A replacement was rejected, since {what}.")
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
    return SnapshotPlan(Operation.APPEND, tuple(added), batches=batches)


def _of_changes(operation: Operation, changes: Sequence[TableChange]) -> SnapshotPlan:
    """Return the snapshot of changes in a row, without files that come and go among them."""
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
    return SnapshotPlan(operation, tuple(added.values()), removed, oldest)
