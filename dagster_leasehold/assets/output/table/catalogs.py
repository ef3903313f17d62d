"""Catalogs: where a table's newest metadata is kept, and how a publication gets into it.

The default one is two tables of the lease database, in the form of PyIceberg's `SqlCatalog`, which
can be pointed at it. Its pointer moves in the transaction that moves the cursors, so that one
cannot be ahead of the other. `other_catalog` has the catalogs that commit by themselves.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from typing_extensions import override

from dagster_leasehold.assets.errors import PublicationRefused, TableElsewhere, TableMetadataGone
from dagster_leasehold.assets.output.table.marks import mark_of
from dagster_leasehold.assets.output.table.metadata_files import PlaceIO
from dagster_leasehold.assets.output.table.staging import METADATA_FOLDER, Staging
from dagster_leasehold.lease_store import failpoints
from dagster_leasehold.lease_store.outcomes import LockOver, PointerMoved, Settled, Stale
from dagster_leasehold.lease_store.publication_rows import (
    PlannedPublication,
    PointerMove,
    PublishLock,
    TableName,
)
from dagster_leasehold.lease_store.roles.publications import Publications
from dagster_leasehold.lease_store.tracing import span

if TYPE_CHECKING:
    from pyiceberg.table.metadata import TableMetadata

Published = Settled | LockOver | Stale
METADATA_SUFFIX = ".metadata.json"


@dataclass(frozen=True, slots=True)
class OpenTable:
    """A table as a catalog has it now.

    Attributes:
        metadata: its newest.
        at: the location of the file that holds it.
    """

    metadata: TableMetadata
    at: str


class TableCatalog(Protocol):
    """The verbs that a publisher needs of a catalog."""

    def find(self, name: TableName) -> OpenTable | None:
        """Return a table; None if there is none.

        Raises:
            TableUnavailable: the catalog does not answer.
        """
        ...

    def newest_state(self, name: TableName | None) -> OpenTable | None:
        """Return a state of the table that is newer than the one that `find` returns, if any.

        There is one if the catalog was restored from a backup together with the ledger, or if a
        publisher was killed before it committed. Its batches are committed in both cases.

        Raises:
            TableUnavailable: metadata cannot be read.
        """
        ...

    def create(
        self, lock: PublishLock, name: TableName, metadata: TableMetadata
    ) -> OpenTable | LockOver:
        """Enter a table without snapshots; return the one that is there.

        Raises:
            TableUnavailable: the catalog does not answer.
        """
        ...

    def publish(
        self,
        lock: PublishLock,
        name: TableName,
        table: OpenTable,
        staging: Staging,
        publication: PlannedPublication,
    ) -> Published:
        """Make a staged publication the table's newest state, and settle it.

        Raises:
            PublicationRefused: another writer committed to the table first.
            TableUnavailable: the catalog did not answer; the publication might be in the table.
            StoreError: the lease store did not answer; the publication might be in the table.
        """
        ...

    def resume(
        self,
        lock: PublishLock,
        name: TableName,
        table: OpenTable | None,
        publication: PlannedPublication,
    ) -> Published:
        """Settle the pending publication, send its request again, or drop it; nothing is pending.

        Args:
            lock: of publishing.
            name: the table's.
            table: as it is now.
            publication: the pending one.

        Raises:
            PublicationRefused: the catalog refused the request.
            TableUnavailable: the catalog did not answer; the publication might be in the table.
            StoreError: the lease store did not answer.
        """
        ...

    def drop(
        self, lock: PublishLock, table: OpenTable | None, publication: PlannedPublication
    ) -> Published:
        """Settle the pending publication if it is in the table, or else drop it."""
        ...


@dataclass(slots=True)
class LeaseDatabaseCatalog(TableCatalog):
    """The default catalog.

    Attributes:
        store: keeps the pointers.
        io: reads and writes the metadata of the table.
        new_name: gives a name that was never used.
    """

    store: Publications
    io: PlaceIO
    new_name: Callable[[], str]
    _seen: OpenTable | None = field(default=None, init=False)

    @override
    def find(self, name: TableName) -> OpenTable | None:
        pointer = self.store.table_pointer(name)
        return None if pointer is None else self._load(pointer.location)

    @override
    def newest_state(self, name: TableName | None) -> OpenTable | None:
        """Look at the metadata files that are not older than the one that the pointer names.

        Of files with the same number of publications, the one of the highest epoch was committed,
        if any was: an earlier lock stages nothing that counts after it. A group that continues with
        a restored pointer writes newer files, so that older ones are no longer considered.
        """
        pointer = None if name is None else self.store.table_pointer(name)
        dated = self.io.dated(METADATA_FOLDER)
        since = 0 if pointer is None else dated.get(pointer.location, 0)
        newest, best = None, (0, 0)
        if pointer is not None and pointer.location in dated:
            best = _rank(self._load(pointer.location))
        for at, modified in dated.items():
            if modified < since or not at.endswith(METADATA_SUFFIX):
                continue
            try:
                table = OpenTable(self._read(at), at)
            except FileNotFoundError:
                continue  # a publisher removed it
            if table.metadata.location != self.io.location:
                continue  # the output was moved, and this with it
            rank = _rank(table)
            if rank[0] > best[0] or (newest is not None and rank > best):
                newest, best = table, rank
        return newest

    @override
    def create(
        self, lock: PublishLock, name: TableName, metadata: TableMetadata
    ) -> OpenTable | LockOver:
        at = self._write(metadata, 0)
        failpoints.reach("before_table")
        outcome = self.store.create_table_pointer(lock, at)
        if isinstance(outcome, PointerMoved) and outcome.location is not None:
            return self._load(outcome.location)
        return OpenTable(metadata, at) if isinstance(outcome, Settled) else LockOver()

    @override
    @span("catalog")
    def publish(
        self,
        lock: PublishLock,
        name: TableName,
        table: OpenTable,
        staging: Staging,
        publication: PlannedPublication,
    ) -> Published:
        from pyiceberg.table.update import update_table_metadata

        metadata = update_table_metadata(
            table.metadata, tuple(staging.updates), metadata_location=table.at
        )
        at = self._write(metadata, _version(table.at) + 1)
        failpoints.reach("before_publish")
        outcome = self.store.commit_publication(lock, publication, PointerMove(table.at, at))
        failpoints.reach("after_publish")
        if isinstance(outcome, Settled):
            self._seen = OpenTable(metadata, at)
            left = {entry.metadata_file for entry in metadata.metadata_log}
            old = (entry.metadata_file for entry in table.metadata.metadata_log)
            self.io.discard(each for each in old if each not in left)
        elif not isinstance(outcome, LockOver):
            # Nothing names the staged files: the transaction did not happen. With the lock over it
            # may have, and its reply be lost, longer ago than the store remembers publications.
            self.io.discard([at, *staging.written])
        if isinstance(outcome, PointerMoved):
            raise PublicationRefused(
                f"Another program has committed to the table {name.namespace}.{name.name} at the "
                "same time. What waits is published later."
            )
        return outcome

    @override
    def resume(
        self,
        lock: PublishLock,
        name: TableName,
        table: OpenTable | None,
        publication: PlannedPublication,
    ) -> Published:
        return self.drop(lock, table, publication)

    @override
    def drop(
        self, lock: PublishLock, table: OpenTable | None, publication: PlannedPublication
    ) -> Published:
        return self.store.drop_publication(lock, publication)

    def _load(self, at: str) -> OpenTable:
        if not self.io.has_place_for(at):
            raise TableElsewhere(at, self.io.location)
        if self._seen is None or self._seen.at != at:
            try:
                metadata = self._read(at)
            except FileNotFoundError as error:
                raise TableMetadataGone(at) from error
            self._seen = OpenTable(metadata, at)
        return self._seen

    def _read(self, at: str) -> TableMetadata:
        from pyiceberg.serializers import FromInputFile

        return FromInputFile.table_metadata(self.io.new_input(at))

    def _write(self, metadata: TableMetadata, version: int) -> str:
        from pyiceberg.serializers import ToOutputFile

        name = f"{version:05d}-{self.new_name()}{METADATA_SUFFIX}"
        at = f"{metadata.location}/{METADATA_FOLDER}/{name}"
        ToOutputFile.table_metadata(metadata, self.io.new_output(at))
        return at


def _rank(table: OpenTable) -> tuple[int, int]:
    """Return what tells which of two states of a table is the newer one."""
    mark = mark_of(table.metadata)
    return (0, 0) if mark is None or not mark.states else (mark.number, mark.epoch)


def _version(location: str) -> int:
    """Return the number at the beginning of a metadata file's name; 0 where it has none."""
    number = location.rsplit("/", 1)[-1].split("-", 1)[0]
    return int(number) if number.isdecimal() else 0
