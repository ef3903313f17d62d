"""Pure rules of compaction: which consecutive units of a shard's output become one file."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum

from dagster_leasehold.assets.output.table.columns import joined as joined_columns
from dagster_leasehold.assets.output.units import Unit, unit_files
from dagster_leasehold.lease_store.ledger_rows import Batch

MERGED_ROWS_MAX = 2_000
"""The most ledger rows that one swap changes: they are one transaction, and in memory together."""
UNIT_ROWS_MAX = 20_000
"""A file of batches of so many rows is left alone, however small: all of them are read with it."""
LARGE_ENOUGH = 0.5
"""A file of this share of the target is left alone: merging it again would cost most of it."""

Columns = tuple[tuple[object, ...], tuple[object, ...]]
"""The columns of a unit's files of records that do not fit, and of files of quarantined ones.

More than one of a kind cannot become one file. A list has the columns of a table; anything else is
the schema of a file of an earlier version, which fits its equals alone.
"""
NO_COLUMNS: Columns = ((), ())


def each_merge(
    shard_units: Iterable[Unit],
    *,
    target_bytes: int,
    columns: Callable[[Unit], Columns] = lambda _: NO_COLUMNS,
) -> Iterator[list[Unit]]:
    """Yield consecutive units of a shard to merge: each list makes one file of records.

    A merge ends when it has reached the target or very many rows, before a file that is large
    enough already, and where columns do not fit. One that would leave as many files as there are
    is left out. Stops reading after the first unit behind a merge.
    """
    for stretch in _each_stretch(shard_units, target_bytes, columns):
        if _saves_files(stretch.units):
            yield stretch.units


@dataclass(frozen=True, slots=True)
class NextMerges:
    """The merges at the end of a shard's output, and the place where the next ones begin.

    Attributes:
        merges: consecutive units; each merge makes one file of records.
        until: batches with smaller numbers need no further merge.
    """

    merges: Sequence[list[Unit]]
    until: int


def next_merges(
    shard_units: Sequence[Unit],
    *,
    target_bytes: int,
    columns: Callable[[Unit], Columns] = lambda _: NO_COLUMNS,
) -> NextMerges:
    """Return the merges for output that keeps growing behind these units.

    The last file can be smaller than the target. It is merged again with what comes behind it once
    that is as large as it is itself: so the bytes that are copied grow with the logarithm of the
    target, and a reader meets as few files more.
    """
    merges: list[list[Unit]] = []
    until: int | None = None
    for stretch in _each_stretch(shard_units, target_bytes, columns):
        own = stretch.units
        if stretch.end is not _End.BORDER and until is None:
            until = own[0][0].sequence
        if stretch.end is _End.OPEN:
            own = _as_large_behind(own)
        if _saves_files(own):
            merges.append(own)
    if until is None:
        until = shard_units[-1][-1].last + 1 if shard_units else 0
    return NextMerges(merges, until)


def _as_large_behind(shard_units: list[Unit]) -> list[Unit]:
    """Return the units from the first on that is no larger than all behind it together."""
    sizes = [_bytes(unit) for unit in shard_units]
    left = sum(sizes)
    for first, size in enumerate(sizes):
        left -= size
        if size <= left:
            return shard_units[first:]
    return []


class _End(Enum):
    """The reason why a stretch ends.

    `BORDER`: no later unit can join it. `FULL`: its files together have the size of the target; as
    one file they can be smaller, since each of them has a head and a foot. `OPEN`: nothing is
    behind it yet.
    """

    BORDER = 0
    FULL = 1
    OPEN = 2


@dataclass(frozen=True, slots=True)
class _Stretch:
    """Consecutive units that can become one file."""

    units: list[Unit]
    end: _End = _End.BORDER


def _each_stretch(
    shard_units: Iterable[Unit], target_bytes: int, columns: Callable[[Unit], Columns]
) -> Iterator[_Stretch]:
    merge: list[Unit] = []
    size, rows, schemas = 0, 0, NO_COLUMNS
    for unit in shard_units:
        own = columns(unit)
        bytes_, changed = _bytes(unit), len(changed_rows(unit))
        large = bytes_ >= target_bytes * LARGE_ENOUGH or len(unit) >= UNIT_ROWS_MAX
        full = size >= target_bytes or rows + changed > MERGED_ROWS_MAX
        border = large or not _uniform(joined(schemas, own))
        if merge and (border or full):
            yield _Stretch(merge, _End.BORDER if border else _End.FULL)
            merge = []
            size, rows, schemas = 0, 0, NO_COLUMNS
        if not _uniform(own):
            continue  # an attempt whose tasks wrote different columns cannot become one file
        merge.append(unit)
        size, rows, schemas = size + bytes_, rows + changed, joined(schemas, own)
        if large:
            yield _Stretch(merge)
            merge = []
            size, rows, schemas = 0, 0, NO_COLUMNS
    if merge:
        yield _Stretch(merge, _End.FULL if size >= target_bytes else _End.OPEN)


def changed_rows(unit: Unit) -> list[Batch]:
    """Return the rows of a unit that a merge has to change, the first one always.

    Those behind the first that list no file stay as they are: a forced checkpoint cannot part them
    from the file that holds their records.
    """
    return [batch for place, batch in enumerate(unit) if place == 0 or batch.files]


def _bytes(unit: Unit) -> int:
    return sum(file.bytes for file in unit_files(unit, quarantine=False))


def joined(one: Columns, other: Columns) -> Columns:
    """Return the columns of two units together."""
    records: list[object] = []
    for schema in (*one[0], *other[0]):
        both = _joined_schemas(records[-1], schema) if records else schema
        records = [*records, schema] if both is None else [*records[:-1], both]
    quarantined = (*one[1], *other[1])
    return tuple(records), tuple(
        schema for at, schema in enumerate(quarantined) if schema not in quarantined[:at]
    )


def _joined_schemas(one: object, other: object) -> object | None:
    if isinstance(one, list) and isinstance(other, list):
        return joined_columns(one, other)
    return one if one == other else None


def _uniform(columns: Columns) -> bool:
    return all(len(schemas) <= 1 for schemas in columns)


def _saves_files(merge: Sequence[Unit]) -> bool:
    counts = [
        sum(len(unit_files(unit, quarantine=kind)) for unit in merge) for kind in (False, True)
    ]
    return any(count > 1 for count in counts)
