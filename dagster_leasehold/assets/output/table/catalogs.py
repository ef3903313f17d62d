"""Catalogs: the location of a table's newest metadata, and the commit of a publication.

The default catalog is two tables in the lease database, which PyIceberg's `SqlCatalog` can read.
One transaction moves its pointer and the cursors, so neither is ever ahead. `other_catalog` has the
catalogs that commit by themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import TYPE_CHECKING, Protocol

from typing_extensions import override

from dagster_leasehold.assets.errors import PublicationRefused, TableElsewhere, TableMetadataGone
from dagster_leasehold.assets.output.table.marks import mark_of
from dagster_leasehold.assets.output.table.metadata_files import PlaceIO
from dagster_leasehold.assets.output.table.staging import METADATA_FOLDER, Staging
from dagster_leasehold.assets.places.place import OutputPlace
from dagster_leasehold.lease_store import failpoints
from dagster_leasehold.lease_store.identifiers import GroupKey
from dagster_leasehold.lease_store.outcomes import LockOver, PointerMoved, Settled, Stale
from dagster_leasehold.lease_store.publication_rows import (
    PlannedPublication,
    PointerMove,
    PublishLock,
    RoutePointer,
    TableName,
)
from dagster_leasehold.lease_store.roles.publications import Publications
from dagster_leasehold.lease_store.store import LedgerAndRewrites
from dagster_leasehold.lease_store.tracing import span

if TYPE_CHECKING:
    from pyiceberg.table.metadata import TableMetadata

Published = Settled | LockOver | Stale
METADATA_SUFFIX = ".metadata.json"


@dataclass(frozen=True, slots=True)
class OpenTable:
    """A state of a table.

    Attributes:
        at: the location of the metadata file.
    """

    metadata: TableMetadata
    at: str


@dataclass(frozen=True, slots=True)
class StagedRoute:
    """The staged change of a route's table.

    Attributes:
        table: the table before; None if it does not exist.
        lost_at: the location of lost metadata, which the pointer of a new table replaces.
    """

    route: str
    name: TableName
    table: OpenTable | None
    staging: Staging
    lost_at: str = ""


class TableCatalog(Protocol):
    """The operations that a publisher needs from the catalog of one table.

    Each method raises `TableUnavailable` if the catalog or the metadata cannot be reached.
    """

    def find(self) -> OpenTable | None:
        """Return the table, or None if it does not exist."""
        ...

    def newest_state(self) -> OpenTable | None:
        """Return a state of the table that is newer than the result of `find`, or None.

        There is a newer state if the catalog was restored from a backup together with the ledger,
        or if a publisher was killed before it committed. In both cases, the batches of that state
        are committed.
        """
        ...

    def create(self, lock: PublishLock, metadata: TableMetadata) -> OpenTable | LockOver:
        """Return the table; if it does not exist, create it without a snapshot first."""
        ...

    def publish(
        self,
        lock: PublishLock,
        table: OpenTable,
        staging: Staging,
        publication: PlannedPublication,
        routes: Sequence[StagedRoute] = (),
    ) -> Published:
        """Make a staged publication the newest state of the table, and settle it.

        The tables of `routes` change in the same transaction.

        Raises:
            PublicationRefused: another writer committed to the table first.
            TableUnavailable: the catalog did not answer; the publication may be in the table.
            StoreError: the lease store did not answer; the publication may be in the table.
        """
        ...

    def settle(
        self,
        lock: PublishLock,
        table: OpenTable | None,
        publication: PlannedPublication,
        *,
        resend: bool,
    ) -> Published:
        """Settle the pending publication if it is in the table; otherwise resend or drop it.

        With `resend`, its request is sent again while the table can accept it.

        Raises:
            PublicationRefused: the catalog refused the request.
            TableUnavailable: the catalog did not answer; the publication may be in the table.
        """
        ...


@dataclass(frozen=True, slots=True)
class GroupTable:
    """The table of one group, with its ledger, catalog and files.

    Attributes:
        route_catalog: returns the catalog of the table of a route.
    """

    store: LedgerAndRewrites
    key: GroupKey
    name: TableName
    catalog: TableCatalog
    io: PlaceIO
    place: OutputPlace
    route_catalog: Callable[[str], TableCatalog]


@dataclass(slots=True)
class LeaseDatabaseCatalog(TableCatalog):
    """The default catalog.

    Attributes:
        new_name: returns a name that was never used.
        name: the name of the table; None if the group has never published.
    """

    store: Publications
    io: PlaceIO
    new_name: Callable[[], str]
    name: TableName | None
    _seen: OpenTable | None = field(default=None, init=False)

    @override
    def find(self) -> OpenTable | None:
        pointer = None if self.name is None else self.store.table_pointer(self.name)
        return None if pointer is None else self._load(pointer.location)

    @override
    def newest_state(self) -> OpenTable | None:
        """Compare the metadata files that are not older than the file that the pointer names.

        Of files with the same number of publications, only the file with the highest epoch counts:
        a lock with an earlier epoch can no longer commit. If a group continues from a restored
        pointer, its new files take precedence over the older ones.
        """
        pointer = None if self.name is None else self.store.table_pointer(self.name)
        times = self.io.modification_times(METADATA_FOLDER)
        since = 0 if pointer is None else times.get(pointer.location, 0)
        newest, best = None, (0, 0)
        if pointer is not None and pointer.location in times:
            best = _rank(self._load(pointer.location))
        for at, modified in times.items():
            if modified < since or not at.endswith(METADATA_SUFFIX):
                continue
            try:
                table = OpenTable(self._read(at), at)
            except FileNotFoundError:
                continue  # a publisher removed it
            if table.metadata.location != self.io.location:
                continue  # it belongs to another location, from which the output was moved
            rank = _rank(table)
            if rank[0] > best[0] or (newest is not None and rank > best):
                newest, best = table, rank
        return newest

    @override
    def create(self, lock: PublishLock, metadata: TableMetadata) -> OpenTable | LockOver:
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
        table: OpenTable,
        staging: Staging,
        publication: PlannedPublication,
        routes: Sequence[StagedRoute] = (),
    ) -> Published:
        new = self._next(table, staging)
        others = [self._next(each.table, each.staging) for each in routes]
        moves = [
            RoutePointer(each.name, each.lost_at or (each.table.at if each.table else None), own.at)
            for each, own in zip(routes, others, strict=True)
        ]
        failpoints.reach("before_publish")
        outcome = self.store.commit_publication(
            lock, publication, PointerMove(table.at, new.at, tuple(moves))
        )
        failpoints.reach("after_publish")
        if isinstance(outcome, Settled):
            self._seen = new
            self._discard_former(table, new)
            for each, own in zip(routes, others, strict=True):
                self._discard_former(each.table, own)
        elif not isinstance(outcome, LockOver):
            # The transaction failed, so nothing names the staged files. They stay if the lock is
            # over: the transaction may have succeeded although its reply was lost.
            written = [staging.written, *(each.staging.written for each in routes)]
            self.io.discard([new.at, *(own.at for own in others), *chain.from_iterable(written)])
        if isinstance(outcome, PointerMoved):
            raise PublicationRefused(
                f"Another program committed to the table of {lock.key} at the same time. The "
                "waiting batches are published later."
            )
        return outcome

    @override
    def settle(
        self,
        lock: PublishLock,
        table: OpenTable | None,
        publication: PlannedPublication,
        *,
        resend: bool,
    ) -> Published:
        # A publication to another catalog: publications to this one are never pending.
        return self.store.drop_publication(lock, publication)

    def _next(self, table: OpenTable | None, staging: Staging) -> OpenTable:
        """Write the next metadata of a table; `table` is None for a new one."""
        from pyiceberg.table.update import update_table_metadata

        if table is None:
            return OpenTable(staging.metadata, self._write(staging.metadata, 0))
        updates = tuple(staging.updates)
        metadata = update_table_metadata(table.metadata, updates, metadata_location=table.at)
        return OpenTable(metadata, self._write(metadata, _version(table.at) + 1))

    def _discard_former(self, table: OpenTable | None, new: OpenTable) -> None:
        """Delete the oldest metadata files, which a table no longer lists."""
        current = {entry.metadata_file for entry in new.metadata.metadata_log}
        former = table.metadata.metadata_log if table else ()
        self.io.discard(
            entry.metadata_file for entry in former if entry.metadata_file not in current
        )

    def _load(self, at: str) -> OpenTable:
        if not self.io.contains(at):
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
    """Return a key that orders the states of a table by age."""
    mark = mark_of(table.metadata)
    return (0, 0) if mark is None or not mark.states else (mark.number, mark.epoch)


def _version(location: str) -> int:
    """Return the number at the beginning of a metadata file's name, or 0."""
    number = location.rsplit("/", 1)[-1].split("-", 1)[0]
    return int(number) if number.isdecimal() else 0
