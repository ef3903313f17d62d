"""Catalogs: where a table's newest metadata is kept, and how a publication gets into it.

The default one is two tables of the lease database, in the form of PyIceberg's `SqlCatalog`, which
can be pointed at it. Its pointer moves in the transaction that moves the cursors, so that one
cannot be ahead of the other. Any other catalog commits by itself, before the lease store knows:

1. The publication is recorded in the lease store, with the snapshot that it follows.
2. The catalog is asked to put it behind that snapshot, and no other. The reply may be lost.
3. It is settled: by this turn, or by the next one, which looks for its id in the table first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from typing_extensions import override

from dagster_leasehold.assets.errors import TableUnavailable
from dagster_leasehold.assets.output.table.metadata_files import PlaceIO
from dagster_leasehold.assets.output.table.staging import METADATA_FOLDER, Staging, made
from dagster_leasehold.lease_store import failpoints
from dagster_leasehold.lease_store.errors import one_line, without_secrets
from dagster_leasehold.lease_store.failpoints import Failpoint
from dagster_leasehold.lease_store.outcomes import PointerMoved, Settled, Stale, TurnOver
from dagster_leasehold.lease_store.publication_rows import (
    PlannedPublication,
    PointerMove,
    PublishTurn,
    TableName,
)
from dagster_leasehold.lease_store.roles.publications import Publications

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.table import Table
    from pyiceberg.table.metadata import TableMetadata

PUBLICATION_KEY = "leasehold.publication"

Published = Settled | TurnOver | Stale | PointerMoved


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

    def create(
        self, turn: PublishTurn, name: TableName, metadata: TableMetadata
    ) -> OpenTable | TurnOver:
        """Enter a table without snapshots; return the one that is there, whoever entered it.

        Raises:
            TableUnavailable: the catalog does not answer.
        """
        ...

    def publish(
        self,
        turn: PublishTurn,
        name: TableName,
        table: OpenTable,
        staging: Staging,
        publication: PlannedPublication,
    ) -> Published:
        """Make a staged publication the table's newest state, and settle it.

        Raises:
            TableUnavailable: the catalog did not answer; the publication may be in the table.
            StoreError: the lease store did not answer; the publication may be in the table.
        """
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
    def create(
        self, turn: PublishTurn, name: TableName, metadata: TableMetadata
    ) -> OpenTable | TurnOver:
        at = self._write(metadata, 0)
        failpoints.reach(Failpoint.BEFORE_TABLE)
        outcome = self.store.create_table_pointer(turn, at)
        if isinstance(outcome, PointerMoved) and outcome.location is not None:
            return self._load(outcome.location)
        return OpenTable(metadata, at) if isinstance(outcome, Settled) else TurnOver()

    @override
    def publish(
        self,
        turn: PublishTurn,
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
        failpoints.reach(Failpoint.BEFORE_PUBLISH)
        outcome = self.store.commit_publication(turn, publication, PointerMove(table.at, at))
        failpoints.reach(Failpoint.AFTER_PUBLISH)
        if isinstance(outcome, Settled):
            self._seen = OpenTable(metadata, at)
            left = {entry.metadata_file for entry in metadata.metadata_log}
            old = (entry.metadata_file for entry in table.metadata.metadata_log)
            self._remove(each for each in old if each not in left)
        elif not isinstance(outcome, TurnOver):
            # Nothing names what was staged: the transaction did not happen. With the turn over it
            # may have, and its reply be lost, longer ago than the store remembers publications.
            self._remove([at, *staging.written])
        return outcome

    def _load(self, at: str) -> OpenTable:
        from pyiceberg.serializers import FromInputFile

        if self._seen is None or self._seen.at != at:
            try:
                metadata = FromInputFile.table_metadata(self.io.new_input(at))
            except OSError as error:
                raise TableUnavailable(
                    f"The metadata {at} cannot be read ({one_line(str(error))}): let this account "
                    "read it, or restore it from a backup."
                ) from error
            self._seen = OpenTable(metadata, at)
        return self._seen

    def _write(self, metadata: TableMetadata, version: int) -> str:
        from pyiceberg.serializers import ToOutputFile

        name = f"{version:05d}-{self.new_name()}.metadata.json"
        at = f"{metadata.location}/{METADATA_FOLDER}/{name}"
        ToOutputFile.table_metadata(metadata, self.io.new_output(at))
        return at

    def _remove(self, locations: Iterable[str]) -> None:
        for location in locations:
            try:
                self.io.delete(location)
            except OSError:
                continue  # vacuum finds it


@dataclass(slots=True)
class OtherCatalog(TableCatalog):
    """Any catalog that PyIceberg knows: REST, Glue, Hive, or a database of its own.

    Attributes:
        store: keeps the publications that are on their way.
        catalog: PyIceberg's.
    """

    store: Publications
    catalog: Catalog

    @override
    def find(self, name: TableName) -> OpenTable | None:
        table = self._table(name)
        return None if table is None else OpenTable(table.metadata, table.metadata_location)

    @override
    def create(
        self, turn: PublishTurn, name: TableName, metadata: TableMetadata
    ) -> OpenTable | TurnOver:
        from pyiceberg.exceptions import TableAlreadyExistsError

        try:
            self.catalog.create_namespace_if_not_exists(_namespace(name))
            self.catalog.create_table(
                (*_namespace(name), name.name),
                metadata.schema(),
                metadata.location,
                properties=dict(metadata.properties),
            )
        except TableAlreadyExistsError:
            pass
        except Exception as error:
            raise self._unavailable(error) from error
        table = self.find(name)
        if table is None:
            raise TableUnavailable(
                f"Catalog {name.catalog} does not show the table {name.namespace}.{name.name}, "
                "which was made a moment ago: look whether somebody removes it."
            )
        return table

    @override
    def publish(
        self,
        turn: PublishTurn,
        name: TableName,
        table: OpenTable,
        staging: Staging,
        publication: PlannedPublication,
    ) -> Published:
        from pyiceberg.exceptions import CommitFailedException
        from pyiceberg.table.refs import MAIN_BRANCH
        from pyiceberg.table.update import AssertRefSnapshotId, AssertTableUUID

        recorded = self.store.record_publication(turn, publication)
        if not isinstance(recorded, Settled):
            return recorded
        failpoints.reach(Failpoint.BEFORE_PUBLISH)
        behind = made(AssertRefSnapshotId, ref=MAIN_BRANCH, snapshot_id=publication.base)
        same = AssertTableUUID(uuid=table.metadata.table_uuid)
        try:
            current = self._table(name)
            if current is None:
                return PointerMoved(None)
            self.catalog.commit_table(current, (same, behind), tuple(staging.updates))
        except CommitFailedException:
            return PointerMoved(None)
        except TableUnavailable:
            raise
        except Exception as error:
            raise self._unavailable(error) from error
        failpoints.reach(Failpoint.AFTER_PUBLISH)
        return self.store.commit_publication(turn, publication)

    def _table(self, name: TableName) -> Table | None:
        from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError

        try:
            return self.catalog.load_table((*_namespace(name), name.name))
        except (NoSuchTableError, NoSuchNamespaceError):
            return None
        except Exception as error:
            raise self._unavailable(error) from error

    def _unavailable(self, error: Exception) -> TableUnavailable:
        reason = without_secrets(one_line(str(error)))
        return TableUnavailable(
            f"Catalog {self.catalog.name} did not take the request ({type(error).__name__}: "
            f"{reason}): it is asked again; output goes on being committed."
        )


def open_catalog(
    name: str,
    properties: Mapping[str, str],
    store: Publications,
    io: PlaceIO,
    new_name: Callable[[], str],
) -> TableCatalog:
    """Return the catalog of a name: the lease database's own where no properties are given.

    Secrets come from the environment, as PyIceberg reads it (`PYICEBERG_CATALOG__NAME__…`).

    Raises:
        TableUnavailable: PyIceberg cannot open it.
    """
    if not properties:
        return LeaseDatabaseCatalog(store, io, new_name)
    from pyiceberg.catalog import load_catalog

    try:
        return OtherCatalog(store, load_catalog(name, **properties))
    except Exception as error:
        raise TableUnavailable(
            f"Catalog {name} cannot be opened ({type(error).__name__}: "
            f"{without_secrets(one_line(str(error)))}): check catalog_properties."
        ) from error


def _namespace(name: TableName) -> tuple[str, ...]:
    return tuple(name.namespace.split("."))


def _version(location: str) -> int:
    """Return the number at the beginning of a metadata file's name; 0 where it has none."""
    number = location.rsplit("/", 1)[-1].split("-", 1)[0]
    return int(number) if number.isdecimal() else 0
