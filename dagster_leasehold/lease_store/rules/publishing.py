"""Pure rules for publishing: the conditions of a publication, and the changes of a group's table.

A shard's cursor is not always the border between published and unpublished batches:

1. A publication was sent to another catalog, and its reply was lost. Its batches are after the
   cursor and possibly in the table. So their changes are recorded as if they were published.
2. A batch is withdrawn before it is published. The next publication begins at its number, and
   continues with the batch that replaced it, whose number is higher.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from dagster_leasehold.lease_store.identifiers import ShardId
from dagster_leasehold.lease_store.ledger_rows import (
    Batch,
    BatchRewrite,
    BatchState,
    DataFile,
    LedgerCounters,
)
from dagster_leasehold.lease_store.publication_rows import (
    ChangeKind,
    PlannedPublication,
    TableChange,
)

PATHS_PER_CHANGE = 1_000
"""The most files that one withdrawal or expiry change removes from a table."""


class Border(NamedTuple):
    """The border between a shard's published and unpublished batches.

    Attributes:
        published: batches before this number are in the table.
        reached: batches before this number are possibly in the table.
    """

    published: int
    reached: int


def shares(needs: Mapping[ShardId, int], limit: int) -> dict[ShardId, int]:
    """Divide a limit of batches among shards by their needs; each gets at least one."""
    remaining, divided = limit, dict[ShardId, int]()
    for place, shard in enumerate(sorted(needs, key=lambda each: (needs[each], each))):
        divided[shard] = max(min(needs[shard], remaining // (len(needs) - place)), 1)
        remaining -= divided[shard]
    return divided


def may_follow(publication: PlannedPublication, places: Mapping[ShardId, LedgerCounters]) -> bool:
    """Return True if nothing has changed since a publication was planned."""
    return all(
        place is not None
        and place.version == each.version
        and place.published_until == each.start < each.end <= place.publishable_until
        for each in publication.ranges
        for place in [places.get(each.shard)]
    )


def may_settle(publication: PlannedPublication, places: Mapping[ShardId, LedgerCounters]) -> bool:
    """Return True if a publication that is in the table begins at the cursors."""
    return all(
        place is not None and place.published_until == each.start
        for each in publication.ranges
        for place in [places.get(each.shard)]
    )


def in_turn(publication: PlannedPublication, pending: Mapping[int, ShardId]) -> bool:
    """Return True if a publication has only pending changes, and lacks none that must come first.

    `pending` has the shards of unpublished changes by number: the changes of the publication, of
    its shards, and of the shards of its changes.
    """
    numbers = set(publication.changes)
    if not numbers <= pending.keys():
        return False
    changed = {pending[number] for number in numbers}
    shards = {each.shard for each in publication.ranges}
    last = max(numbers, default=0)
    return not any(
        shard in shards or (shard in changed and number < last)
        for number, shard in pending.items()
        if number not in numbers
    )


def border_of(shard: ShardId, cursor: int, pending: PlannedPublication | None) -> Border:
    """Return the border of a shard, by its cursor and the pending publication."""
    ranges = pending.ranges if pending else ()
    ends = (each.end for each in ranges if each.shard == shard)
    return Border(cursor, max(cursor, *ends, 0))


def change_of_rewrite(
    kind: ChangeKind, shard: ShardId, before: Iterable[Batch], rewrites: Sequence[BatchRewrite]
) -> list[TableChange]:
    """Return the change of the table after a rewrite; none if the files stay."""
    old = {file.path: file for batch in before for file in _published_files(batch.files)}
    new = {file.path: file for each in rewrites for file in _published_files(each.files)}
    removed = tuple(path for path in old if path not in new)
    added = tuple(file for path, file in new.items() if path not in old)
    if not removed and not added:
        return []
    first = min(each.sequence for each in rewrites)
    return [TableChange(0, shard, kind, first, removed, added)]


def changes_of_removal(
    kind: ChangeKind, shard: ShardId, batches: Iterable[Batch], published: int
) -> list[TableChange]:
    """Return the changes that remove a shard's batches from the table; `published` is its cursor.

    No change has batches on both sides of the cursor: if the pending publication is dropped, the
    changes after the cursor are dropped with it.
    """
    files = [
        (batch.sequence, file.path)
        for batch in batches
        if batch.state is BatchState.COMMITTED
        for file in _published_files(batch.files)
    ]
    first = [each for each in files if each[0] < published]
    return [
        TableChange(0, shard, kind, part[0][0], tuple(path for _, path in part))
        for side in (first, files[len(first) :])
        for start in range(0, len(side), PATHS_PER_CHANGE)
        for part in [side[start : start + PATHS_PER_CHANGE]]
    ]


def _published_files(files: Iterable[DataFile]) -> list[DataFile]:
    return [file for file in files if not file.quarantine]
