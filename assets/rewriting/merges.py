"""Pure rules of compaction: which consecutive units of a shard's output become one file."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from dagster_leasehold.assets.output.units import Unit, unit_files

TARGET_BYTES = 128 * 1024 * 1024
MERGED_ROWS_MAX = 2_000
"""So many ledger rows are swapped in one transaction, and are held in memory, at most."""
LARGE_ENOUGH = 0.5
"""A file of this share of the target is left alone: merging it again would cost most of it."""

Columns = tuple[tuple[object, ...], tuple[object, ...]]
"""The different schemas of a unit's files: of those of records, and of quarantined ones."""
NO_COLUMNS: Columns = ((), ())


def each_merge(
    shard_units: Iterable[Unit],
    *,
    target_bytes: int,
    columns: Callable[[Unit], Columns] = lambda _: NO_COLUMNS,
) -> Iterator[list[Unit]]:
    """Yield consecutive units of a shard to merge: each list makes one file of records.

    A merge ends when it has reached the target or very many rows, before a file that is large
    enough already, and where the columns change. One that would leave as many files as there are
    is left out. No more units are taken than the one behind a merge.
    """
    merge: list[Unit] = []
    size, rows, schemas = 0, 0, NO_COLUMNS
    for unit in shard_units:
        own = columns(unit)
        bytes_ = sum(file.bytes for file in unit_files(unit, quarantine=False))
        large = bytes_ >= target_bytes * LARGE_ENOUGH
        full = size >= target_bytes or rows + len(unit) > MERGED_ROWS_MAX
        if large or full or not _uniform(joined(schemas, own)):
            if _saves_files(merge):
                yield merge
            merge = []
            size, rows, schemas = 0, 0, NO_COLUMNS
        if not _uniform(own):
            continue  # an attempt whose tasks wrote different columns cannot become one file
        merge.append(unit)
        size, rows, schemas = size + bytes_, rows + len(unit), joined(schemas, own)
        if large:
            if _saves_files(merge):
                yield merge
            merge = []
            size, rows, schemas = 0, 0, NO_COLUMNS
    if _saves_files(merge):
        yield merge


def joined(one: Columns, other: Columns) -> Columns:
    """Return the different schemas of two units together."""
    records, quarantined = (
        tuple(schema for at, schema in enumerate(both) if schema not in both[:at])
        for both in ((*one[0], *other[0]), (*one[1], *other[1]))
    )
    return records, quarantined


def _uniform(columns: Columns) -> bool:
    return all(len(schemas) <= 1 for schemas in columns)


def _saves_files(merge: Sequence[Unit]) -> bool:
    counts = [
        sum(len(unit_files(unit, quarantine=kind)) for unit in merge) for kind in (False, True)
    ]
    return any(count > 1 for count in counts)
