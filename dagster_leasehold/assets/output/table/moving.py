"""Moves the table of a group to another name or catalog, with its snapshots and files.

1. Under the publish lock, the pending publication is settled, and the table is compared with the
   lease store: a table that another program has changed is not moved.
2. The table gets its new name. Within a catalog it is renamed. Otherwise, the new catalog registers
   its newest metadata file.
3. The lease store records the new name. Until then, nothing is published to the table. In the
   lease database, the names change in the same transaction.

If the process is killed before step 3, repeating the move finds the table under its new name. The
entry in another catalog from which the table was moved stays: to remove it without its files takes
a different request in each catalog.
"""

from __future__ import annotations

from dataclasses import dataclass

from dagster_leasehold.assets.errors import TableUnavailable
from dagster_leasehold.assets.output.table.catalogs import OpenTable, TableCatalog
from dagster_leasehold.assets.output.table.marks import mark_of, table_conflict
from dagster_leasehold.assets.output.table.metadata_files import PlaceIO
from dagster_leasehold.assets.output.table.other_catalog import (
    OtherCatalog,
    open_catalog,
    open_other_catalog,
)
from dagster_leasehold.assets.table_settings import CatalogSettings
from dagster_leasehold.lease_store import failpoints
from dagster_leasehold.lease_store.outcomes import PointerMoved, PublishesElsewhere, Settled
from dagster_leasehold.lease_store.publication_rows import Publication, PublishLock, TableName
from dagster_leasehold.lease_store.roles.publications import Publications


@dataclass(frozen=True, slots=True)
class TableMove:
    """The move of a group's table to the catalog and the name of the settings.

    Attributes:
        before: the present name.
        after: the name in the settings.
        catalog: the catalog in the settings.
    """

    store: Publications
    before: TableName
    after: TableName
    catalog: CatalogSettings
    io: PlaceIO

    def carry_out(self, lock: PublishLock) -> bool:
        """Move the table; return True if another catalog still has its former entry.

        Raises:
            TableUnavailable: a catalog does not answer, another program has changed the table, the
                new name is in use, or the lock is over.
        """
        old, publication = self._former_catalog(), self._publication(lock)
        table = old.find()
        if publication.pending is not None and table is not None:
            old.settle(lock, table, publication.pending, resend=True)
            table, publication = old.find(), self._publication(lock)
        if table is None:
            table = self._renamed(publication)
            if table is None:
                raise TableUnavailable(
                    f"{_shown(self.before)} is gone from catalog {self.before.catalog}: run "
                    "`leasehold table create --adopt` with the former settings, and repeat this."
                )
        metadata = table.metadata
        if conflict := table_conflict(self.before, publication, metadata, self.io):
            raise TableUnavailable(conflict)
        if metadata.location.rstrip("/") != self.io.location:
            raise TableUnavailable(
                f"The table is at {metadata.location}, and the stream's output is at "
                f"{self.io.location}: change one of them first, and repeat this."
            )
        location = None
        if self.catalog.properties:
            self._enter(table, same=isinstance(old, OtherCatalog) and self._within)
        else:
            location = table.at
        failpoints.reach("before_rename")
        self._record(lock, location)
        return isinstance(old, OtherCatalog) and not self._within

    @property
    def _within(self) -> bool:
        return self.before.catalog == self.after.catalog

    def _former_catalog(self) -> TableCatalog:
        if self.store.table_pointer(self.before) is not None:
            return open_catalog(
                CatalogSettings(self.before.catalog), self.before, self.store, self.io
            )
        same = self._within and self.catalog.properties
        # PyIceberg's configuration has the properties of a catalog that the settings do not name.
        former = self.catalog if same else CatalogSettings(self.before.catalog)
        return open_other_catalog(former, self.before, self.store, self.io)

    def _renamed(self, publication: Publication) -> OpenTable | None:
        """Return the table under its new name, if an interrupted move has renamed it."""
        table = open_catalog(self.catalog, self.after, self.store, self.io).find()
        mark = None if table is None else mark_of(table.metadata)
        return table if mark is not None and mark.publication == publication.last else None

    def _enter(self, table: OpenTable, *, same: bool) -> None:
        """Give a table its name in the new catalog."""
        new = open_other_catalog(self.catalog, self.after, self.store, self.io)
        present = new.find()
        if present is not None and present.metadata.table_uuid != table.metadata.table_uuid:
            raise TableUnavailable(
                f"Catalog {self.after.catalog} already has another table {_shown(self.after)}: "
                "give the stream another table name."
            )
        if present is not None and present.at == table.at:
            return  # an earlier move was interrupted
        if same:
            new.rename_from(self.before)
            return
        if present is not None:
            raise TableUnavailable(
                f"{_shown(self.after)} of catalog {self.after.catalog} is an earlier state of this "
                "table: remove it from that catalog, but not its files, and repeat this."
            )
        new.register(table.at)

    def _publication(self, lock: PublishLock) -> Publication:
        publication = self.store.publication(lock.key)
        assert publication is not None, "A group with a lock has a publication."
        return publication

    def _record(self, lock: PublishLock, location: str | None) -> None:
        outcome = self.store.rename_table(lock, self.after, location)
        if isinstance(outcome, Settled):
            return
        if isinstance(outcome, PublishesElsewhere):
            reason = f"group {outcome.group} publishes to {_shown(self.after)}"
        elif isinstance(outcome, PointerMoved):
            reason = f"the lease database has another table {_shown(self.after)}"
        else:
            reason = "another process has published at the same time"
        raise TableUnavailable(f"The table was not moved, because {reason}: repeat this.")


def _shown(name: TableName) -> str:
    return f"{name.namespace}.{name.name}"
