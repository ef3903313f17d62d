"""Catalogs that commit before the lease store does: REST, Glue, Hive and others.

1. The request is written beside the metadata, and the lease store records the publication as the
   only pending one.
2. The request is sent. It requires that its base is still the newest snapshot. The reply can be
   lost, or the catalog can refuse the request.
3. The holder of this lock or the next one settles the publication: the mark of the table shows
   whether the request arrived. Until then, each holder sends only this request. A request whose
   requirements no longer hold can never arrive, and is dropped.

If another program rolls the table back to the base of a dropped request, the request can still
arrive. Then the mark of the table names a publication that the lease store has dropped, and nothing
is published until an operator adopts the table.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from typing_extensions import override

from dagster_leasehold.assets.errors import PublicationRefused, TableUnavailable
from dagster_leasehold.assets.output.table.catalog_clients import open_client, reason
from dagster_leasehold.assets.output.table.catalogs import (
    LeaseDatabaseCatalog,
    OpenTable,
    Published,
    StagedRoute,
    TableCatalog,
)
from dagster_leasehold.assets.output.table.marks import mark_of
from dagster_leasehold.assets.output.table.metadata_files import PlaceIO
from dagster_leasehold.assets.output.table.shard_states import states_location
from dagster_leasehold.assets.output.table.staging import METADATA_FOLDER, Staging, model_of
from dagster_leasehold.assets.table_settings import CatalogSettings
from dagster_leasehold.lease_store import failpoints
from dagster_leasehold.lease_store.outcomes import PointerMoved, Settled, Stale
from dagster_leasehold.lease_store.publication_rows import (
    PlannedPublication,
    PublishLock,
    TableName,
)
from dagster_leasehold.lease_store.roles.publications import Publications
from dagster_leasehold.lease_store.tracing import span

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.table import CommitTableRequest, Table
    from pyiceberg.table.metadata import TableMetadata


@dataclass(slots=True)
class OtherCatalog(TableCatalog):
    """A catalog of PyIceberg: REST, Glue, Hive, or another database.

    Attributes:
        follow: receives the id of each publication that is in the table, before the publication
            is settled; it changes the tables of routes.
    """

    store: Publications
    catalog: Catalog
    io: PlaceIO
    name: TableName
    follow: Callable[[str], None] = lambda _: None

    @override
    def find(self) -> OpenTable | None:
        table = self._table()
        return None if table is None else OpenTable(table.metadata, table.metadata_location)

    @override
    def newest_state(self) -> OpenTable | None:
        return None  # the catalog has no newer state than its own

    @override
    def create(self, lock: PublishLock, metadata: TableMetadata) -> OpenTable:
        return self.create_without_lock(metadata)

    def create_without_lock(self, metadata: TableMetadata) -> OpenTable:
        """Return the table; if it does not exist, create it without a snapshot first.

        Only one of several requests at once creates it. If the metadata have no location, the
        catalog assigns one.

        Raises:
            TableUnavailable: the catalog does not take the request.
        """
        from pyiceberg.exceptions import TableAlreadyExistsError

        name = self.name
        try:
            self.catalog.create_namespace_if_not_exists(_namespace(name))
            self.catalog.create_table(
                (*_namespace(name), name.name),
                metadata.schema(),
                metadata.location or None,
                properties=dict(metadata.properties),
            )
        except TableAlreadyExistsError:
            pass
        except Exception as error:
            raise self._unavailable(error, "It is sent again later.") from error
        table = self.find()
        if table is None:
            raise TableUnavailable(
                f"Catalog {name.catalog} does not have the table {name.namespace}.{name.name}, "
                "which was just created: check whether another program removes it."
            )
        return table

    def rename_from(self, name: TableName) -> None:
        """Rename another table of this catalog to this one.

        Raises:
            TableUnavailable: the catalog does not take the request.
        """
        before, after = ((*_namespace(each), each.name) for each in (name, self.name))
        self._request(lambda: self.catalog.rename_table(before, after))

    def register(self, location: str) -> None:
        """Add the table with this metadata file to the catalog.

        Raises:
            TableUnavailable: the catalog does not take the request.
        """
        identifier = (*_namespace(self.name), self.name.name)
        self._request(lambda: self.catalog.register_table(identifier, location))

    def _request(self, request: Callable[[], object]) -> None:
        try:
            self.catalog.create_namespace_if_not_exists(_namespace(self.name))
            request()
        except Exception as error:
            raise self._unavailable(error, "Repeat the command.") from error

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
        assert not routes, "The tables of routes follow the stream's table."
        request = _request(self.name, table.metadata, staging, publication)
        at = self._request_at(table, publication)
        self.io.write(at, request.model_dump_json().encode())
        recorded = self.store.record_publication(lock, publication)
        if isinstance(recorded, Stale):
            self.io.discard((at, *staging.written))
        if not isinstance(recorded, Settled):
            return recorded
        failpoints.reach("before_publish")
        return self._send(lock, table, publication, request)

    @override
    @span("catalog")
    def settle(
        self,
        lock: PublishLock,
        table: OpenTable | None,
        publication: PlannedPublication,
        *,
        resend: bool,
    ) -> Published:
        if table is None:
            return self.store.drop_publication(lock, publication)
        request = self._kept_request(table, publication)
        can_arrive = request is not None and _can_arrive(request, table.metadata)
        if resend and request is not None and can_arrive:
            return self._send(lock, table, publication, request)
        if _has(table.metadata, publication):
            return self._commit(lock, table, publication)
        outcome = self.store.drop_publication(lock, publication)
        if isinstance(outcome, Settled):
            # Its manifests are removed with other orphans.
            self.io.discard([self._request_at(table, publication)])
            if request is not None and not can_arrive:
                self.io.discard([states_location(table.metadata.location, publication.id)])
        return outcome

    def send_staged(
        self, table: OpenTable, staging: Staging, publication: PlannedPublication
    ) -> None:
        """Commit a staged change of a route's table, whose mark names the publication.

        Raises:
            PublicationRefused, TableUnavailable: as `publish`.
        """
        request = _request(self.name, table.metadata, staging, publication)
        self._submit(publication, request)

    def _send(
        self,
        lock: PublishLock,
        table: OpenTable,
        publication: PlannedPublication,
        request: CommitTableRequest,
    ) -> Published:
        self._submit(publication, request)
        failpoints.reach("after_publish")
        return self._commit(lock, table, publication)

    def _submit(self, publication: PlannedPublication, request: CommitTableRequest) -> None:
        from pyiceberg.exceptions import CommitFailedException

        name = self.name
        try:
            current = self._table()
            if current is None:
                raise PublicationRefused(
                    f"The table {name.namespace}.{name.name} is gone from catalog {name.catalog}."
                )
            self.catalog.commit_table(current, request.requirements, request.updates)
        except CommitFailedException as error:
            # A proxy may have sent the request twice, and the first request may have succeeded.
            current = self._table()
            if current is None or not _has(current.metadata, publication):
                raise PublicationRefused(
                    f"Catalog {name.catalog} refused a publication "
                    f"({reason(error, self.catalog.name)}). Another program may have committed "
                    "first. The waiting batches are published later."
                ) from error
        except TableUnavailable:
            raise
        except Exception as error:
            raise self._unavailable(error) from error

    def _commit(
        self, lock: PublishLock, table: OpenTable, publication: PlannedPublication
    ) -> Published:
        self.follow(publication.id)
        outcome = self.store.commit_publication(lock, publication)
        assert not isinstance(outcome, PointerMoved)
        if isinstance(outcome, Settled):
            at = self._request_at(table, publication)
            self.io.discard([at, at.replace(".request.json", ".routes.json")])
        return outcome

    def _request_at(self, table: OpenTable, publication: PlannedPublication) -> str:
        folder = f"{table.metadata.location.rstrip('/')}/{METADATA_FOLDER}"
        return f"{folder}/{publication.id}.request.json"

    def _kept_request(
        self, table: OpenTable, publication: PlannedPublication
    ) -> CommitTableRequest | None:
        """Return the request of a publication; None if its file is gone."""
        from pyiceberg.table import CommitTableRequest

        try:
            with self.io.new_input(self._request_at(table, publication)).open() as file:
                return CommitTableRequest.model_validate_json(file.read())
        except FileNotFoundError:
            return None

    def _table(self) -> Table | None:
        from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError

        try:
            return self.catalog.load_table((*_namespace(self.name), self.name.name))
        except (NoSuchTableError, NoSuchNamespaceError):
            return None
        except Exception as error:
            raise self._unavailable(error) from error

    def _unavailable(
        self, error: Exception, then: str = "It is sent again later. Output is still committed."
    ) -> TableUnavailable:
        name = self.catalog.name
        return TableUnavailable(
            f"Catalog {name} did not accept the request ({reason(error, name)}). {then}"
        )


def open_catalog(
    settings: CatalogSettings,
    name: TableName | None,
    store: Publications,
    io: PlaceIO,
    new_name: Callable[[], str] = lambda: "",
) -> TableCatalog:
    """Return the catalog of a table; without properties, the lease database.

    PyIceberg reads secrets from the environment (`PYICEBERG_CATALOG__NAME__…`).
    """
    if not settings.properties or name is None:
        return LeaseDatabaseCatalog(store, io, new_name, name)
    return open_other_catalog(settings, name, store, io)


def open_other_catalog(
    settings: CatalogSettings, name: TableName, store: Publications, io: PlaceIO
) -> OtherCatalog:
    """Return a catalog that commits by itself.

    Raises:
        TableUnavailable: PyIceberg cannot open it.
    """
    try:
        client = open_client(settings.name, settings.properties)
    except Exception as error:
        then = "" if settings.assigns else " Output is still committed."
        raise TableUnavailable(
            f"Catalog {settings.name} cannot be opened ({reason(error, settings.name)}): check "
            f"that it runs, catalog_properties and its secrets.{then}"
        ) from error
    return OtherCatalog(store, client, io, name)


def _request(
    name: TableName, metadata: TableMetadata, staging: Staging, publication: PlannedPublication
) -> CommitTableRequest:
    """Return the request for a staged publication, which requires the table to be unchanged."""
    from pyiceberg.table import CommitTableRequest, Namespace, TableIdentifier
    from pyiceberg.table.refs import MAIN_BRANCH
    from pyiceberg.table.update import (
        AssertCurrentSchemaId,
        AssertDefaultSpecId,
        AssertRefSnapshotId,
        AssertTableUUID,
    )

    return CommitTableRequest(
        identifier=TableIdentifier(namespace=Namespace(list(_namespace(name))), name=name.name),
        requirements=(
            AssertTableUUID(uuid=metadata.table_uuid),
            model_of(AssertRefSnapshotId, ref=MAIN_BRANCH, snapshot_id=publication.base),
            model_of(AssertCurrentSchemaId, current_schema_id=metadata.current_schema_id),
            model_of(AssertDefaultSpecId, default_spec_id=metadata.default_spec_id),
        ),
        updates=tuple(staging.updates),
    )


def _can_arrive(request: CommitTableRequest, metadata: TableMetadata) -> bool:
    """Return True if a table still meets all requirements of a request."""
    from pyiceberg.exceptions import CommitFailedException
    from pyiceberg.table.update import update_table_metadata

    try:
        for requirement in request.requirements:
            requirement.validate(metadata)
        # Commits to other branches increase the sequence number, too.
        update_table_metadata(metadata, request.updates)
    except (CommitFailedException, ValueError):
        return False
    return True


def _has(metadata: TableMetadata, publication: PlannedPublication) -> bool:
    mark = mark_of(metadata)
    return mark is not None and mark.publication == publication.id


def _namespace(name: TableName) -> tuple[str, ...]:
    return tuple(name.namespace.split("."))
