"""Compares a table with the ledger: it must have exactly the files of the published batches.

Both sides are streamed. Each file of the ledger adds its hash to one of many sums, and each file of
the table subtracts it. Only files in nonzero sums are compared by name. So memory holds one number
per existing file, and few names.

Consumption, publishing and rewriting continue at the same time, without false differences:

1. Cursors and snapshot are read as a consistent state, with no publication in between. A snapshot
   does not change, and later batches lie beyond the cursors.
2. A later change to published output appears as files on one side only. Files of changes that wait
   for publication in that state are expected.
3. The remaining differences are compared again at a new state. By then, a change has reached both
   sides or waits for publication. A file that the table has lost is still missing.

Files that another program has rewritten are compared only by their number of records. A listing of
the output shows whether the files of the table exist. Unlisted files are looked up one by one, up
to a limit; the result has the number of the rest.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

from dagster_leasehold.assets.errors import TableUnavailable, TooManyFiles
from dagster_leasehold.assets.output.attempts import ATTEMPTS_FOLDER
from dagster_leasehold.assets.output.table.catalogs import GroupTable, OpenTable
from dagster_leasehold.assets.output.table.columns import stream_routes
from dagster_leasehold.assets.output.table.maintenance import current_files
from dagster_leasehold.assets.output.table.marks import mark_of, table_conflict
from dagster_leasehold.assets.output.table.publication import ShardFile, each_change
from dagster_leasehold.assets.places.place import OutputPlace
from dagster_leasehold.assets.routes import route_of
from dagster_leasehold.assets.table_settings import route_table
from dagster_leasehold.lease_store.errors import one_line
from dagster_leasehold.lease_store.identifiers import ShardId
from dagster_leasehold.lease_store.publication_rows import Publication, TableChange, TableName

SUMS = 1 << 16
DIFFERENCES_MAX = 1_000
"""The most sums whose files are compared by name, and so roughly the most differences reported."""
READS_MAX = 10
LOOKUPS_MAX = 1_000
"""The most files that are looked up one by one."""
NAMED_MAX = 3
_MASK = (1 << 64) - 1

FileEntry = tuple[str, int]
"""The path of a file in the ledger, and the number of its records."""
Differences = Mapping[FileEntry, int]
"""The number of times that each file is in the ledger, minus the number in the table."""
_Item = TypeVar("_Item")


@dataclass(frozen=True, slots=True)
class Comparison:
    """The result of comparing a table with the ledger.

    Attributes:
        differences: a sentence for each difference.
        notes: sentences on files that were not fully compared.
    """

    files: int
    differences: tuple[str, ...]
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _State:
    """The cursors of all shards, and the state of the table at these cursors."""

    publication: Publication
    cursors: Mapping[ShardId, int]
    changes: tuple[TableChange, ...]
    table: OpenTable | None


@dataclass(slots=True)
class _Sides:
    """The result of reading both sides once.

    Attributes:
        unequal: the indexes of the sums that are not zero.
        foreign: the number of files that another program wrote.
        records: records in the ledger's files minus records in the table's files, without files
            that are expected on one side.
        lookups: paths of the table that are missing in the listing, up to a limit.
        others: the number of further such paths.
    """

    unequal: list[int]
    files: int = 0
    foreign: int = 0
    records: int = 0
    lookups: list[str] = field(default_factory=list[str])
    others: int = 0


@dataclass(frozen=True, slots=True)
class TableComparison:
    """Compares the table of a group with the ledger of the group.

    Attributes:
        files_max: the most batches of the ledger, and files of the table, to compare; None for all.
    """

    group: GroupTable
    files_max: int | None = None

    def compare(self) -> Comparison:
        """Compare table and ledger while both continue to change.

        Raises:
            TooManyFiles: there are more than `files_max`.
        """
        state = self._read_state()
        metadata = None if state.table is None else state.table.metadata
        conflict = table_conflict(self.group.name, state.publication, metadata, self.group.io)
        # The listing comes after the state, so it has all existing files of the table.
        sides = self._sides(state, self._existing(state))
        unequal = sides.unequal
        first = self._differences(self._read_state(), unequal[:DIFFERENCES_MAX]) if unequal else {}
        again = self._differences(self._read_state(), unequal[:DIFFERENCES_MAX]) if first else {}
        entries = sorted(entry for entry, count in first.items() if count * again.get(entry, 0) > 0)
        notes = list[str]()
        if sides.foreign and not sides.records and not conflict:
            # Another program has rewritten our files, with the same number of records.
            entries = [entry for entry in entries if first[entry] < 0 and not _foreign(entry[0])]
            notes.append(
                f"{sides.foreign:,} files of the table were written by another program. Only their "
                "number of records was compared."
            )
        if sides.others:
            notes.append(f"{sides.others:,} files were not looked up.")
        sentences = [_sentence(entry, first[entry]) for entry in entries]
        sentences += self._route_differences()
        sentences += [
            f"The file {path}, which the table names, does not exist."
            for path in absent_files(self.group.place, sides.lookups)
        ]
        if entries and len(unequal) > DIFFERENCES_MAX:
            sentences.append("More files differ.")
        differences = (conflict, *sentences) if conflict else tuple(sentences)
        return Comparison(sides.files, differences, tuple(notes))

    def _route_differences(self) -> list[str]:
        """Return a sentence for each route whose table differs from the stream's table."""
        routes = sorted(stream_routes(self.group.store, self.group.key))
        for _ in range(READS_MAX if routes else 0):
            state = self._read_state()
            tables = {route: self.group.route_catalog(route).find() for route in routes}
            after = self._read_state().publication
            if after.number == state.publication.number and after.pending is None:
                return self._compared_routes(state, tables)
        return []

    def _compared_routes(self, state: _State, tables: Mapping[str, OpenTable | None]) -> list[str]:
        """Compare each route's files, as counts and as the sum of their hashes."""
        expected: dict[str, tuple[int, int, int]] = {}
        current = () if state.table is None else current_files(self.group.io, state.table)
        for entry in current:
            if route := route_of(entry[0]):
                expected[route] = _with_file(expected.get(route, (0, 0, 0)), entry)
        sentences: list[str] = []
        for route, table in tables.items():
            own = (0, 0, 0)
            for entry in () if table is None else current_files(self.group.io, table):
                own = _with_file(own, entry)
            if own != (target := expected.get(route, (0, 0, 0))):
                name = route_table(self.group.name, route)
                sentences.append(
                    f"The table {_shown(name)} has {own[1]:,} records in {own[0]:,} files, and the "
                    f"stream's table has {target[1]:,} records in {target[0]:,} files of this "
                    "route, or their files differ."
                )
        return sentences

    def corrections(
        self, table: OpenTable | None
    ) -> tuple[tuple[ShardFile, ...], tuple[str, ...], tuple[int, ...]]:
        """Return the files to add to the table, the paths to remove, and the waiting changes.

        The caller holds the publish lock, so the cursors do not move. The ledger is read after the
        changes, so the corrections include them.

        Raises:
            TableUnavailable: a file that the table lacks does not exist.
        """
        publication = self.group.store.publication(self.group.key)
        assert publication is not None
        changes = tuple(change.sequence for change in each_change(self.group.store, self.group.key))
        state = _State(
            publication, self.group.store.published_until(self.group.key) or {}, (), table
        )
        differences = self._differences(state, self._sides(state, None).unequal)
        missing = {entry for entry, count in differences.items() if count > 0}
        added: dict[str, ShardFile] = {
            file.path: (batch.shard, file)
            for batch in (self.group.store.each_batch(self.group.key) if missing else ())
            for file in batch.files
            if (file.path, file.records) in missing
        }
        if absent := absent_files(self.group.place, list(added)):
            raise TableUnavailable(
                f"The table {_shown(self.group.name)} cannot follow the ledger: {len(absent):,} "
                f"files of the ledger do not exist ({path_list(absent)}). The table was not "
                "changed. Restore the files from a backup, or replay their batches."
            )
        surplus = {path for (path, _), count in differences.items() if count < 0}
        return tuple(added.values()), tuple(sorted(surplus)), changes

    def _existing(self, state: _State) -> set[int] | None:
        """Return the hashes of the paths of all output files; None without a table."""
        if state.table is None:
            return None
        try:
            return set(map(hash, self.group.place.names(ATTEMPTS_FOLDER)))
        except OSError as error:
            raise TableUnavailable(
                f"The files in {self.group.place} cannot be listed ({one_line(str(error))}): make "
                "sure that this account can read the output folder."
            ) from error

    def _read_state(self) -> _State:
        for _ in range(READS_MAX):
            before = self.group.store.publication(self.group.key)
            assert before is not None
            cursors = dict(self.group.store.published_until(self.group.key) or {})
            changes = tuple(each_change(self.group.store, self.group.key))
            table = self.group.catalog.find()
            after = self.group.store.publication(self.group.key)
            if after and (after.number, after.pending) == (before.number, before.pending):
                mark = mark_of(table.metadata) if table else None
                pending = before.pending
                if pending is not None and mark is not None and mark.publication == pending.id:
                    # The pending publication is in the table, and will be settled.
                    cursors |= {each.shard: each.end for each in pending.ranges}
                    changes = tuple(one for one in changes if one.sequence not in pending.changes)
                    before = replace(
                        before, last=pending.id, snapshot=pending.snapshot, records=pending.records
                    )
                return _State(before, cursors, changes, table)
        raise TableUnavailable(
            f"The table {_shown(self.group.name)} changed during each of {READS_MAX} attempts to "
            "read it: try again."
        )

    def _sides(self, state: _State, existing: Collection[int] | None) -> _Sides:
        """Read both sides of a state once.

        `existing` has the hashes of existing paths; with None, existence is not checked.
        """
        sums, sides = array("Q", bytes(8 * SUMS)), _Sides([])
        additions, removals = _expected(state)
        for entry, sign in self._entries(state):
            hashed = hash(entry)
            at = hashed % SUMS
            sums[at] = (sums[at] + sign * hashed) & _MASK
            path, records = entry
            if path not in (additions if sign > 0 else removals):
                sides.records += sign * records
            if sign > 0:
                continue
            sides.files += 1
            sides.foreign += _foreign(path)
            if existing is not None and hash(path) not in existing:
                if len(sides.lookups) < LOOKUPS_MAX:
                    sides.lookups.append(path)
                else:
                    sides.others += 1
        sides.unequal = [at for at, level in enumerate(sums) if level]
        return sides

    def _differences(self, state: _State, unequal: Collection[int]) -> Differences:
        """Return the unexpected differences between the files of some sums."""
        indexes = set(unequal)
        counts: Counter[FileEntry] = Counter()
        for entry, sign in self._entries(state):
            if hash(entry) % SUMS in indexes:
                counts[entry] += sign
                if not counts[entry]:
                    del counts[entry]
        additions, removals = _expected(state)
        return {
            entry: count
            for entry, count in counts.items()
            if entry[0] not in (additions if count > 0 else removals)
        }

    def _entries(self, state: _State) -> Iterator[tuple[FileEntry, int]]:
        """Yield the files of the ledger with 1, and the files of the table with -1."""
        for batch in _at_most(self.files_max, self.group.store.each_batch(self.group.key)):
            if batch.sequence < state.cursors.get(batch.shard, 0):
                for file in batch.files:
                    if not file.quarantine:
                        yield (file.path, file.records), 1
        if state.table is not None:
            try:
                for entry in _at_most(self.files_max, current_files(self.group.io, state.table)):
                    yield entry, -1
            except FileNotFoundError as error:
                raise TableUnavailable(
                    f"Metadata of the table {_shown(self.group.name)} is gone: "
                    f"{one_line(str(error))} Restore it from a backup."
                ) from error


def _expected(state: _State) -> tuple[set[str], set[str]]:
    """Return the files that waiting changes add, and the files that they remove."""
    additions = {file.path for change in state.changes for file in change.added}
    return additions, {path for change in state.changes for path in change.removed}


def _with_file(sums: tuple[int, int, int], entry: FileEntry) -> tuple[int, int, int]:
    files, records, hashes = sums
    return files + 1, records + entry[1], (hashes + hash(entry)) & _MASK


def _foreign(path: str) -> bool:
    """Return True for a file that another program wrote."""
    return not path.startswith(f"{ATTEMPTS_FOLDER}/")


def _at_most(limit: int | None, items: Iterator[_Item]) -> Iterator[_Item]:
    for number, item in enumerate(items):
        if limit is not None and number >= limit:
            raise TooManyFiles(limit)
        yield item


def _sentence(entry: FileEntry, count: int) -> str:
    path, records = entry
    if count > 0:
        return f"The file {path} of {records} records is missing in the table."
    return f"The table contains a file that the ledger does not: {path} of {records} records."


def absent_files(place: OutputPlace, paths: Sequence[str]) -> list[str]:
    """Return the files that do not exist."""
    sizes = place.sizes(paths) if paths else ()
    return [path for path, size in zip(paths, sizes, strict=True) if size is None]


def path_list(paths: Sequence[str]) -> str:
    """Return the first few paths and the number of others, as part of a sentence."""
    more = f", and {len(paths) - NAMED_MAX:,} more" if len(paths) > NAMED_MAX else ""
    return ", ".join(paths[:NAMED_MAX]) + more


def _shown(name: TableName) -> str:
    return f"{name.namespace}.{name.name}"
