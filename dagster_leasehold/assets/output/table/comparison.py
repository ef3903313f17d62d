"""Table and ledger agree: the table has the files of the batches that count as published.

Both sides are read as streams. Each file adds its hash to one of many sums on the one side, and
takes it off on the other; only files whose sums are not level are looked at by their names. So
memory grows by a number for each file that exists, and not by the names of files.

Consumption, publishing and rewriting continue meanwhile, which must not look like a difference:

1. A cut: cursors and snapshot belong together, since no publication came between the reads of them.
   A snapshot stays as it is, and batches that are committed later are behind the cursors.
2. A change of published output that the ledger made after the cut, or that the table was still to
   follow, shows as files on one side. Files of changes that wait at the cut are expected.
3. What is left is looked at once more, at a new cut. A file of a change that came in between has
   reached the other side by then, or its change waits; what a table lost stays lost.

Files that another program wrote instead of ours are compared by the number of their records alone.
Whether the files of the table exist is seen in a listing of the output; what that cannot show is
looked up one by one, up to a limit, and the outcome says how many were not.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

from dagster_leasehold.assets.errors import TableUnavailable, TooManyFiles
from dagster_leasehold.assets.output.attempts import ATTEMPTS_FOLDER
from dagster_leasehold.assets.output.table.catalogs import OpenTable, TableCatalog
from dagster_leasehold.assets.output.table.maintenance import current_files
from dagster_leasehold.assets.output.table.marks import mark_of, table_trouble
from dagster_leasehold.assets.output.table.metadata_files import PlaceIO
from dagster_leasehold.assets.output.table.publication import ShardFile
from dagster_leasehold.assets.places.place import OutputPlace
from dagster_leasehold.lease_store.errors import one_line
from dagster_leasehold.lease_store.identifiers import GroupKey, ShardId
from dagster_leasehold.lease_store.publication_rows import Publication, TableChange, TableName
from dagster_leasehold.lease_store.store import LedgerAndRewrites

SUMS = 1 << 16
DIFFERENCES_MAX = 1_000
"""The most sums whose files are looked at by their names: about as many differences are told."""
CUTS_MAX = 10
LOOKED_UP_MAX = 1_000
"""The most files that are looked up one by one, to see if they exist."""
NAMED_MAX = 3
_MASK = (1 << 64) - 1

FileEntry = tuple[str, int]
"""The path of a file, as the ledger names it, and the number of its records."""
Differences = Mapping[FileEntry, int]
"""How often the ledger has a file more often than the table; negative where it is the table."""
_Item = TypeVar("_Item")


@dataclass(frozen=True, slots=True)
class Comparison:
    """The outcome of comparing a table with the ledger.

    Attributes:
        files: the number of the table's.
        differences: a sentence for each; none is the proof.
        notes: on comparisons by less than the names of files, or on none.
    """

    files: int
    differences: tuple[str, ...]
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _Cut:
    """Cursors of all shards, and the table as it was published up to them."""

    publication: Publication
    cursors: Mapping[ShardId, int]
    changes: tuple[TableChange, ...]
    table: OpenTable | None


@dataclass(slots=True)
class _Sides:
    """The outcome of reading both sides once.

    Attributes:
        unequal: the numbers of the sums that are not level.
        files: the number of the table's files.
        foreign: the number of files that another program wrote.
        records: of the ledger's files, less the table's; without the records that are expected
            on one side.
        lookups: paths of the table that the listing of the output does not have.
        others: the number of further ones.
    """

    unequal: list[int]
    files: int = 0
    foreign: int = 0
    records: int = 0
    lookups: list[str] = field(default_factory=list[str])
    others: int = 0


@dataclass(frozen=True, slots=True)
class TableComparison:
    """Compares the table of a group with the group's ledger.

    Attributes:
        store: the ledger's side.
        key: the group.
        name: the table's.
        catalog: the table's side.
        io: reads the table's metadata.
        place: holds the group's output.
        files_max: the most batches of the ledger, and files of the table, that are looked at; None
            for all.
    """

    store: LedgerAndRewrites
    key: GroupKey
    name: TableName
    catalog: TableCatalog
    io: PlaceIO
    place: OutputPlace
    files_max: int | None = None

    def compare(self) -> Comparison:
        """Compare them while both continue.

        Raises:
            TooManyFiles: there are more than `files_max`.
            TableUnavailable: the catalog or the table's metadata cannot be read.
            StoreError: the lease store does not answer.
        """
        cut = self._cut()
        metadata = None if cut.table is None else cut.table.metadata
        trouble = table_trouble(self.name, cut.publication, metadata, self.io)
        # Listed after the cut: a file of the table is in the listing, if it exists.
        sides = self._sides(cut, self._listed(cut))
        unequal = sides.unequal
        first = self._differences(self._cut(), unequal[:DIFFERENCES_MAX]) if unequal else {}
        again = self._differences(self._cut(), unequal[:DIFFERENCES_MAX]) if first else {}
        lasting = sorted(entry for entry, often in first.items() if often * again.get(entry, 0) > 0)
        notes = list[str]()
        if sides.foreign and not sides.records and not trouble:
            # Another program has rewritten files of ours, with as many records.
            lasting = [entry for entry in lasting if first[entry] < 0 and not _foreign(entry[0])]
            notes.append(
                f"{sides.foreign:,} files of the table were written by another program. Their "
                "records were compared by number alone."
            )
        if sides.others:
            notes.append(f"Of {sides.others:,} files it was not looked up if they exist.")
        sentences = [_sentence(entry, first[entry]) for entry in lasting]
        sentences += [
            f"The file {path}, which the table names, does not exist."
            for path in self.absent(sides.lookups)
        ]
        if lasting and len(unequal) > DIFFERENCES_MAX:
            sentences.append("More files differ than these.")
        differences = (trouble, *sentences) if trouble else tuple(sentences)
        return Comparison(sides.files, differences, tuple(notes))

    def corrections(
        self, table: OpenTable | None
    ) -> tuple[tuple[ShardFile, ...], tuple[str, ...], tuple[int, ...]]:
        """Return the files that the table lacks, the paths that it has too much, and changes.

        The caller has the publish lock, so that cursors stay. The changes are the ones that wait
        and that the table has with these corrections: the ledger, which is read after them, has
        them all.

        Raises:
            TableUnavailable: a file that the table lacks does not exist.
        """
        publication = self.store.publication(self.key)
        assert publication is not None
        changes = tuple(change.sequence for change in self._changes())
        cut = _Cut(publication, self.store.published_until(self.key) or {}, (), table)
        differences = self._differences(cut, self._sides(cut, None).unequal)
        missing = {entry for entry, often in differences.items() if often > 0}
        added: dict[str, ShardFile] = {
            file.path: (batch.shard, file)
            for batch in (self.store.each_batch(self.key) if missing else ())
            for file in batch.files
            if (file.path, file.records) in missing
        }
        if absent := self.absent(list(added)):
            raise TableUnavailable(
                f"The table {_shown(self.name)} cannot follow the ledger: {len(absent):,} files "
                f"that it lacks do not exist ({named(absent)}). The table is "
                "left as it is. Restore the files from a backup, or replay their batches."
            )
        surplus = {path for (path, _), often in differences.items() if often < 0}
        return tuple(added.values()), tuple(sorted(surplus)), changes

    def absent(self, paths: Sequence[str]) -> list[str]:
        """Return the files that do not exist."""
        sizes = self.place.sizes(paths) if paths else ()
        return [path for path, size in zip(paths, sizes, strict=True) if size is None]

    def _listed(self, cut: _Cut) -> set[int] | None:
        """Return the hashes of the paths of all files of output; None where there is no table."""
        if cut.table is None:
            return None
        entries = self.place.entries(ATTEMPTS_FOLDER)
        return {hash(entry.path) for entry in entries if not entry.folder}

    def _cut(self) -> _Cut:
        for _ in range(CUTS_MAX):
            before = self.store.publication(self.key)
            assert before is not None
            cursors = dict(self.store.published_until(self.key) or {})
            changes = tuple(self._changes())
            table = self.catalog.find(self.name)
            after = self.store.publication(self.key)
            if after and (after.number, after.pending) == (before.number, before.pending):
                mark = mark_of(table.metadata) if table else None
                own = before.pending
                if own is not None and mark is not None and mark.publication == own.id:
                    # It is in the table, and about to be settled.
                    cursors |= {each.shard: each.end for each in own.ranges}
                    changes = tuple(one for one in changes if one.sequence not in own.changes)
                    before = replace(
                        before, last=own.id, snapshot=own.snapshot, records=own.records
                    )
                return _Cut(before, cursors, changes, table)
        raise TableUnavailable(
            f"The table {_shown(self.name)} was published to each of {CUTS_MAX} times that it was "
            "looked at: try again."
        )

    def _changes(self) -> Iterator[TableChange]:
        page = self.store.pending_changes(self.key)
        while page:
            yield from page
            page = self.store.pending_changes(self.key, after=page[-1].sequence)

    def _sides(self, cut: _Cut, listed: Collection[int] | None) -> _Sides:
        """Read both sides once.

        Sums are of 64 bits, and the sums of files that differ are level by chance alone.

        Args:
            cut: the part to read.
            listed: the hashes of the paths that exist; None if it does not matter.
        """
        sums, sides = array("Q", bytes(8 * SUMS)), _Sides([])
        coming, going = _expected(cut)
        for entry, sign in self._entries(cut):
            hashed = hash(entry)
            at = hashed % SUMS
            sums[at] = (sums[at] + sign * hashed) & _MASK
            path, records = entry
            if path not in (coming if sign > 0 else going):
                sides.records += sign * records
            if sign > 0:
                continue
            sides.files += 1
            sides.foreign += _foreign(path)
            if listed is not None and hash(path) not in listed:
                if len(sides.lookups) < LOOKED_UP_MAX:
                    sides.lookups.append(path)
                else:
                    sides.others += 1
        sides.unequal = [at for at, level in enumerate(sums) if level]
        return sides

    def _differences(self, cut: _Cut, unequal: Collection[int]) -> Differences:
        """Return the files of some sums that one side has more often, but for those expected."""
        wanted = set(unequal)
        often: Counter[FileEntry] = Counter()
        for entry, sign in self._entries(cut):
            if hash(entry) % SUMS in wanted:
                often[entry] += sign
                if not often[entry]:
                    del often[entry]
        coming, going = _expected(cut)
        return {
            entry: more
            for entry, more in often.items()
            if entry[0] not in (coming if more > 0 else going)
        }

    def _entries(self, cut: _Cut) -> Iterator[tuple[FileEntry, int]]:
        """Yield the ledger's files with 1, and the table's with -1."""
        for batch in _at_most(self.files_max, self.store.each_batch(self.key)):
            if batch.sequence < cut.cursors.get(batch.shard, 0):
                for file in batch.files:
                    if not file.quarantine:
                        yield (file.path, file.records), 1
        if cut.table is not None:
            try:
                for entry in _at_most(self.files_max, current_files(self.io, cut.table)):
                    yield entry, -1
            except FileNotFoundError as error:
                raise TableUnavailable(
                    f"Metadata of the table {_shown(self.name)} is gone: "
                    f"{one_line(str(error))} Restore it from a backup."
                ) from error


def _expected(cut: _Cut) -> tuple[set[str], set[str]]:
    """Return the files that waiting changes put in, and the ones that they take out."""
    coming = {file.path for change in cut.changes for file in change.added}
    return coming, {path for change in cut.changes for path in change.removed}


def _foreign(path: str) -> bool:
    """Return True for a file that was not written by this project."""
    return not path.startswith(f"{ATTEMPTS_FOLDER}/")


def _at_most(most: int | None, items: Iterator[_Item]) -> Iterator[_Item]:
    for number, item in enumerate(items):
        if most is not None and number >= most:
            raise TooManyFiles(most)
        yield item


def _sentence(entry: FileEntry, more: int) -> str:
    side = "is missing in the table" if more > 0 else "is too much in the table"
    return f"The file {entry[0]} of {entry[1]} records {side}."


def named(paths: Sequence[str]) -> str:
    """Return the first few paths and how many more there are, as part of a sentence."""
    more = f", and {len(paths) - NAMED_MAX:,} more" if len(paths) > NAMED_MAX else ""
    return ", ".join(paths[:NAMED_MAX]) + more


def _shown(name: TableName) -> str:
    return f"{name.namespace}.{name.name}"
