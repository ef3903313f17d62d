"""Table and ledger agree: the table's files are those of the batches that count as published.

Both sides are read as streams. Each file adds its hash to one of many sums on the one side, and
takes it off on the other; only files whose sums are not level are looked at by their names. So
memory does not grow with the files.

Consumption, publishing and rewriting go on meanwhile, which must not look like a difference:

1. A cut: cursors and snapshot belong together, since no publication came between the reads of them.
   A snapshot stays as it is, and batches that are committed later are behind the cursors.
2. A change of published output that the ledger made after the cut, or that the table was still to
   follow, shows as files on one side. Those of changes that wait at the cut are expected.
3. What is left is looked at once more, at a new cut. A file of a change that came in between has
   reached the other side by then, or its change waits; what a table lost stays lost.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeVar

from dagster_leasehold.assets.errors import TableUnavailable, TooManyFiles
from dagster_leasehold.assets.output.table.catalogs import PUBLICATION_KEY, OpenTable, TableCatalog
from dagster_leasehold.assets.output.table.maintenance import current_files
from dagster_leasehold.assets.output.table.metadata_files import PlaceIO
from dagster_leasehold.assets.output.table.publication import ShardFile
from dagster_leasehold.lease_store.errors import one_line
from dagster_leasehold.lease_store.identifiers import GroupKey, ShardId
from dagster_leasehold.lease_store.publication_rows import Publication, TableChange, TableName
from dagster_leasehold.lease_store.store import LedgerAndRewrites

if TYPE_CHECKING:
    from pyiceberg.table.metadata import TableMetadata

SUMS = 1 << 16
DIFFERENCES_MAX = 1_000
"""The most sums whose files are looked at by their names: about as many differences are told."""
CUTS_MAX = 10
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
    """

    files: int
    differences: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Cut:
    """Cursors of all shards, and the table as it was published up to them."""

    publication: Publication
    cursors: Mapping[ShardId, int]
    changes: tuple[TableChange, ...]
    table: OpenTable | None


@dataclass(frozen=True, slots=True)
class TableComparison:
    """Compares the table of a group with the group's ledger.

    Attributes:
        store: the ledger's side.
        key: the group.
        name: the table's.
        catalog: the table's side.
        io: reads the table's metadata.
        files_max: the most batches of the ledger, and files of the table, that are looked at; None
            for all.
    """

    store: LedgerAndRewrites
    key: GroupKey
    name: TableName
    catalog: TableCatalog
    io: PlaceIO
    files_max: int | None = None

    def compare(self) -> Comparison:
        """Compare them while both go on.

        Raises:
            TooManyFiles: there are more than `files_max`.
            TableUnavailable: the catalog or the table's metadata cannot be read.
            StoreError: the lease store does not answer.
        """
        cut = self._cut()
        trouble = lineage_trouble(self.name, cut.publication, cut.table)
        unequal, files = self._unequal(cut)
        first = self._differences(self._cut(), unequal[:DIFFERENCES_MAX]) if unequal else {}
        again = self._differences(self._cut(), unequal[:DIFFERENCES_MAX]) if first else {}
        lasting = sorted(entry for entry, often in first.items() if often * again.get(entry, 0) > 0)
        sentences = [_sentence(entry, first[entry]) for entry in lasting]
        if lasting and len(unequal) > DIFFERENCES_MAX:
            sentences.append("More files differ than these.")
        return Comparison(files, ((trouble, *sentences) if trouble else tuple(sentences)))

    def corrections(self, table: OpenTable | None) -> tuple[tuple[ShardFile, ...], tuple[str, ...]]:
        """Return the files that the table lacks, and the paths that it has too much.

        The caller has the turn to publish, so that cursors stay. Files of changes that wait are
        left to those, which are read after the ledger: what a change did to it, is among them.
        """
        publication = self.store.publication(self.key)
        assert publication is not None
        cut = _Cut(publication, self.store.published_until(self.key) or {}, (), table)
        unequal, _ = self._unequal(cut)
        differences = self._differences(cut, unequal)
        changes = list(self._changes())
        coming = {file.path for change in changes for file in change.added}
        going = {path for change in changes for path in change.removed}
        missing = {entry for entry, often in differences.items() if often > 0}
        added: dict[str, ShardFile] = {
            file.path: (batch.shard, file)
            for batch in (self.store.each_batch(self.key) if missing else ())
            for file in batch.files
            if (file.path, file.records) in missing and file.path not in coming
        }
        surplus = {path for (path, _), often in differences.items() if often < 0}
        return tuple(added.values()), tuple(sorted(surplus - going))

    def _cut(self) -> _Cut:
        for _ in range(CUTS_MAX):
            before = self.store.publication(self.key)
            assert before is not None
            cursors = dict(self.store.published_until(self.key) or {})
            changes = tuple(self._changes())
            table = self.catalog.find(self.name)
            after = self.store.publication(self.key)
            if after and (after.number, after.recorded) == (before.number, before.recorded):
                newest = newest_publication(table.metadata) if table else None
                for each in (one for one in before.recorded if one.id == newest):
                    # It is in the table, and about to be settled.
                    cursors |= {own.shard: own.end for own in each.ranges}
                    changes = tuple(one for one in changes if one.sequence not in each.changes)
                    before = replace(before, recent=(*before.recent, each.id))
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

    def _unequal(self, cut: _Cut) -> tuple[list[int], int]:
        """Return the numbers of the sums that are not level, and the number of the table's files.

        Sums are of 64 bits, and those of files that differ are level by chance alone.
        """
        sums, files = array("Q", bytes(8 * SUMS)), 0
        for entry, sign in self._entries(cut):
            hashed = hash(entry)
            at = hashed % SUMS
            sums[at] = (sums[at] + sign * hashed) & _MASK
            files += sign < 0
        return [at for at, level in enumerate(sums) if level], files

    def _differences(self, cut: _Cut, unequal: Collection[int]) -> Differences:
        """Return the files of some sums that one side has more often, but for those expected."""
        wanted = set(unequal)
        often: Counter[FileEntry] = Counter()
        for entry, sign in self._entries(cut):
            if hash(entry) % SUMS in wanted:
                often[entry] += sign
                if not often[entry]:
                    del often[entry]
        coming = {file.path for change in cut.changes for file in change.added}
        going = {path for change in cut.changes for path in change.removed}
        return {
            entry: more
            for entry, more in often.items()
            if entry[0] not in (coming if more > 0 else going)
        }

    def _entries(self, cut: _Cut) -> Iterator[tuple[FileEntry, int]]:
        """Yield the files of the ledger with 1, and those of the table with -1."""
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


def _at_most(most: int | None, items: Iterator[_Item]) -> Iterator[_Item]:
    for number, item in enumerate(items):
        if most is not None and number >= most:
            raise TooManyFiles(most)
        yield item


def newest_publication(metadata: TableMetadata) -> str | None:
    """Return the id of the newest publication in a table; others may have committed after it."""
    by_id = {snapshot.snapshot_id: snapshot for snapshot in metadata.snapshots}
    snapshot = metadata.current_snapshot()
    while snapshot is not None:
        if snapshot.summary is not None and (mark := snapshot.summary.get(PUBLICATION_KEY)):
            return mark
        snapshot = by_id.get(snapshot.parent_snapshot_id or -1)
    return None


def lineage_trouble(
    name: TableName, publication: Publication, table: OpenTable | None
) -> str | None:
    """Return why a table is not as the lease store left it last; None if it is."""
    last = publication.recent[-1] if publication.recent else None
    remedy = (
        "see with `leasehold verify` how they differ, then have the table follow the ledger with "
        "`leasehold table create --adopt`"
    )
    if table is None:
        if last is None:
            return None
        return f"The table {_shown(name)} is gone from catalog {name.catalog}: {remedy}."
    newest = newest_publication(table.metadata)
    if newest == last:
        return None
    return (
        f"The newest publication in the table {_shown(name)} ({newest or 'there is none'}) is not "
        "one of this lease store, or not its last: one of the two was restored or made anew, or "
        f"another deployment publishes to it; {remedy}, or give the stream another table name."
    )


def _sentence(entry: FileEntry, more: int) -> str:
    side = "is missing in the table" if more > 0 else "is too much in the table"
    return f"The file {entry[0]} of {entry[1]} records {side}."


def _shown(name: TableName) -> str:
    return f"{name.namespace}.{name.name}"
