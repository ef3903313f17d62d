"""Pure rules for publishing: the conditions of a publication, and the changes of a group's table.

Two ways for a batch to be in the table although the cursor is not behind it, or not at all:

1. A publication was sent to another catalog, and its reply was lost. Its batches can be in the
   table, and the cursor is before them. So what happens to them becomes a change, as if they were
   published. If the publication is dropped, those changes are dropped with it.
2. A batch is withdrawn before it is published: the next publication begins at its number and
    continues with the one that was committed instead, whose number is higher.
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
"""The most files that one change of a withdrawal or of expiry takes out of a table."""


class Border(NamedTuple):
    """The border of a shard's ledger between batches in the group's table and later ones.

    Attributes:
        published: batches with smaller numbers are in it.
        reached: batches with smaller numbers can be in it.
    """

    published: int
    reached: int


def shares(needs: Mapping[ShardId, int], limit: int) -> dict[ShardId, int]:
    """Divide a number of batches among shards that need so many each, one at least.

    No shard gets more than it needs; the rest goes to the large ones.
    """
    left, divided = limit, dict[ShardId, int]()
    for place, shard in enumerate(sorted(needs, key=lambda each: (needs[each], each))):
        divided[shard] = max(min(needs[shard], left // (len(needs) - place)), 1)
        left -= divided[shard]
    return divided


def may_follow(publication: PlannedPublication, places: Mapping[ShardId, LedgerCounters]) -> bool:
    """Return True if all is as it was when a publication was planned."""
    return all(
        place is not None
        and place.version == each.version
        and place.published_until == each.start < each.end <= place.committed_until
        for each in publication.ranges
        for place in [places.get(each.shard)]
    )


def may_settle(publication: PlannedPublication, places: Mapping[ShardId, LedgerCounters]) -> bool:
    """Return True if a publication that is in the table already takes up where the cursors are."""
    return all(
        place is not None and place.published_until == each.start
        for each in publication.ranges
        for place in [places.get(each.shard)]
    )


def in_turn(publication: PlannedPublication, pending: Mapping[int, ShardId]) -> bool:
    """Return True if a publication carries out changes that are pending, and leaves none out.

    Left out is a change that has to come before or with the publication.

    Args:
        publication: as it was planned.
        pending: the changes that are not published, by number, with their shards: those of the
            publication, and all of its shards and of the shards of its changes.
    """
    carried = set(publication.changes)
    if not carried <= pending.keys():
        return False
    changed = {pending[number] for number in carried}
    shards = {each.shard for each in publication.ranges}
    last = max(carried, default=0)
    return not any(
        shard in shards or (shard in changed and number < last)
        for number, shard in pending.items()
        if number not in carried
    )


def border_of(shard: ShardId, cursor: int, pending: PlannedPublication | None) -> Border:
    """Return the border of a shard, by its cursor and the publication that is not settled."""
    ranges = pending.ranges if pending else ()
    ends = (each.end for each in ranges if each.shard == shard)
    return Border(cursor, max(cursor, *ends, 0))


def change_of_rewrite(
    kind: ChangeKind, shard: ShardId, before: Iterable[Batch], rewrites: Sequence[BatchRewrite]
) -> list[TableChange]:
    """Return the change that other files of some batches make; none where the files stay."""
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
    """Return the changes after which no batch of these is in the table.

    A change is of batches before the cursor, or of others: those are in a pending publication, and
    their changes are dropped if it is.

    Args:
        kind: withdrawal or expiry.
        shard: theirs.
        batches: the ones that can be in the table, in order; uncommitted ones are not.
        published: the shard's cursor.
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
