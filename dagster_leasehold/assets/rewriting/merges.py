"""Pure rules for compaction: which consecutive units of a shard's output become one file."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum

from dagster_leasehold.assets.output.table import columns as table_columns
from dagster_leasehold.assets.output.units import Unit, unit_files
from dagster_leasehold.assets.routes import route_of
from dagster_leasehold.lease_store.ledger_rows import Batch, DataFile

MERGED_ROWS_MAX = 2_000
"""The most ledger rows that one swap changes, in memory and in one transaction."""
UNIT_ROWS_MAX = 20_000
"""A file with this many batches is never merged again, because a merge would read all its rows."""
LARGE_ENOUGH = 0.5
"""A file of at least this fraction of the target size is not merged."""

UnitColumns = tuple[table_columns.Columns | None, table_columns.Columns | None] | None
"""The columns of a unit's files of records, and of its files in quarantine; None without files.

None instead of the pair if the files of one kind have no common columns.
"""
NO_COLUMNS: UnitColumns = (None, None)


def each_merge(
    shard_units: Iterable[Unit],
    *,
    target_bytes: int,
    columns: Callable[[Unit], UnitColumns] = lambda _: NO_COLUMNS,
    sorted_by: str = "",
) -> Iterator[list[Unit]]:
    """Yield consecutive units of a shard to merge: each list becomes a file of each partition.

    A merge ends at the target size or at the limit of rows, before a file that is large enough, and
    before columns that do not fit. Only merges that reduce the number of files, or sort records,
    are yielded. The reading of units ends with the unit that ends a merge.
    """
    for group in _each_group(shard_units, target_bytes, columns):
        if _improves(group.units, sorted_by):
            yield group.units


@dataclass(frozen=True, slots=True)
class NextMerges:
    """Merges at the end of a shard's output.

    Attributes:
        merges: consecutive units; each list becomes a file of each partition.
        until: the number of the batch where the next merges begin.
    """

    merges: Sequence[list[Unit]]
    until: int


def next_merges(
    shard_units: Sequence[Unit],
    *,
    target_bytes: int,
    columns: Callable[[Unit], UnitColumns] = lambda _: NO_COLUMNS,
    sorted_by: str = "",
) -> NextMerges:
    """Return the merges for output that continues to grow after these units.

    The last file can be smaller than the target. It is merged again once the later files together
    are as large. So the number of copies of a record, and of small files for a reader, is
    logarithmic in the target.
    """
    merges: list[list[Unit]] = []
    until: int | None = None
    for group in _each_group(shard_units, target_bytes, columns):
        own = group.units
        if group.end is not _End.BORDER and until is None:
            until = own[0][0].sequence
        if group.end is _End.OPEN:
            own = _drop_large_units(own)
        if _improves(own, sorted_by):
            merges.append(own)
    if until is None:
        until = shard_units[-1][-1].last + 1 if shard_units else 0
    return NextMerges(merges, until)


def _drop_large_units(shard_units: list[Unit]) -> list[Unit]:
    """Drop leading units that are larger than all later units together."""
    sizes = [_bytes(unit) for unit in shard_units]
    remaining = sum(sizes)
    for first, size in enumerate(sizes):
        remaining -= size
        if size <= remaining:
            return shard_units[first:]
    return []


class _End(Enum):
    """The reason why a group ends.

    `BORDER`: no later unit can join it. `FULL`: its files together have the target size; the merged
    file can be smaller, because each file has a header and a footer. `OPEN`: it is the last one.
    """

    BORDER = 0
    FULL = 1
    OPEN = 2


@dataclass(frozen=True, slots=True)
class _MergeGroup:
    """Consecutive units that can become one file."""

    units: list[Unit]
    end: _End = _End.BORDER


def _each_group(
    shard_units: Iterable[Unit], target_bytes: int, columns: Callable[[Unit], UnitColumns]
) -> Iterator[_MergeGroup]:
    merge: list[Unit] = []
    size, rows, fitting = 0, 0, NO_COLUMNS
    for unit in shard_units:
        own = columns(unit)
        bytes_, changed = _bytes(unit), len(changed_rows(unit))
        large = bytes_ >= target_bytes * LARGE_ENOUGH or len(unit) >= UNIT_ROWS_MAX
        full = size >= target_bytes or rows + changed > MERGED_ROWS_MAX
        border = large or joined(fitting, own) is None
        if merge and (border or full):
            yield _MergeGroup(merge, _End.BORDER if border else _End.FULL)
            merge = []
            size, rows, fitting = 0, 0, NO_COLUMNS
        if own is None:
            continue
        merge.append(unit)
        size, rows, fitting = size + bytes_, rows + changed, joined(fitting, own)
        if large:
            yield _MergeGroup(merge)
            merge = []
            size, rows, fitting = 0, 0, NO_COLUMNS
    if merge:
        yield _MergeGroup(merge, _End.FULL if size >= target_bytes else _End.OPEN)


def changed_rows(unit: Unit) -> list[Batch]:
    """Return the rows of a unit that a merge changes: the first row, and all rows with files.

    A forced checkpoint cannot separate the other rows from the file with their records.
    """
    return [batch for index, batch in enumerate(unit) if index == 0 or batch.files]


def _bytes(unit: Unit) -> int:
    """Return the size of the largest partition of a route in a unit."""
    sizes = Counter[object]()
    for file in unit_files(unit, quarantine=False):
        sizes[_part(file)] += file.bytes
    return max(sizes.values(), default=0)


def _part(file: DataFile) -> object:
    """Return the key of a file; files with the same key can be merged."""
    return route_of(file.path), file.partition


def joined(one: UnitColumns, other: UnitColumns) -> UnitColumns:
    """Return the common columns of two units, or None if there are none."""
    if one is None or other is None:
        return None
    pairs: list[table_columns.Columns | None] = []
    for own, theirs in zip(one, other, strict=True):
        if own is None or theirs is None:
            pairs.append(theirs if own is None else own)
        elif (both := table_columns.joined(own, theirs)) is None:
            return None
        else:
            pairs.append(both)
    return pairs[0], pairs[1]


def _improves(merge: Sequence[Unit], sorted_by: str) -> bool:
    """Return True if a merge reduces the number of files, or sorts records.

    Sorting writes files of a bounded size. A single unit of such files is not merged again.
    """
    bad = [file for unit in merge for file in unit_files(unit, quarantine=True)]
    good = [file for unit in merge for file in unit_files(unit, quarantine=False)]
    if len(bad) > 1 or (sorted_by and any(file.sorted_by != sorted_by for file in good)):
        return True
    several = any(count > 1 for count in Counter(map(_part, good)).values())
    return several and not (sorted_by and len(merge) == 1)
