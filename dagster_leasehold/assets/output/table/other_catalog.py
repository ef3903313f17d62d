"""Catalogs that commit by themselves, before the lease store knows: REST, Glue, Hive and others.

1. The request is written beside the metadata, and the publication is recorded in the lease store
   as the only pending one.
2. The request is sent. It requires the snapshot that it follows to be the newest. The reply can be
   lost, or the catalog can refuse it.
3. The publication is settled by this lock, or by the next one: the mark of the table shows if it
   arrived. Until it does, each lock sends the same request, and no other. A request whose
   requirements no longer hold can never arrive, and is dropped.

A table that another program rolls back to the snapshot of a dropped request can take it after all.
Then its mark names no publication of the lease store, and nothing is published until an operator
adopts the table.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from typing_extensions import override

from dagster_leasehold.assets.errors import PublicationRefused, TableUnavailable
from dagster_leasehold.assets.output.table.catalog_clients import open_client
from dagster_leasehold.assets.output.table.catalogs import (
    LeaseDatabaseCatalog,
    OpenTable,
    Published,
    TableCatalog,
)
from dagster_leasehold.assets.output.table.marks import mark_of
from dagster_leasehold.assets.output.table.metadata_files import PlaceIO
from dagster_leasehold.assets.output.table.shard_states import states_location
from dagster_leasehold.assets.output.table.staging import METADATA_FOLDER, Staging, made
from dagster_leasehold.assets.table_settings import SECRET_PROPERTY
from dagster_leasehold.lease_store import failpoints
from dagster_leasehold.lease_store.errors import one_line, without_secrets
from dagster_leasehold.lease_store.outcomes import LockOver, PointerMoved, Settled, Stale
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
    """Any catalog that PyIceberg knows: REST, Glue, Hive, or a database of its own.

    Attributes:
        store: keeps the pending publication.
        catalog: PyIceberg's; each of its calls ends in time.
        io: keeps its request, beside the metadata.
    """

    store: Publications
    catalog: Catalog
    io: PlaceIO

    @override
    def find(self, name: TableName) -> OpenTable | None:
        table = self._table(name)
        return None if table is None else OpenTable(table.metadata, table.metadata_location)

    @override
    def newest_state(self, name: TableName | None) -> OpenTable | None:
        del name
        return None  # the catalog is never behind itself

    @override
    def create(
        self, lock: PublishLock, name: TableName, metadata: TableMetadata
    ) -> OpenTable | LockOver:
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
                "which was made a moment ago: check whether another program removes it."
            )
        return table

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
        request = _request(name, table.metadata, staging, publication)
        at = self._request_at(table, publication)
        self.io.write(at, request.model_dump_json().encode())
        recorded = self.store.record_publication(lock, publication)
        if isinstance(recorded, Stale):
            self.io.discard((at, *staging.written))
        if not isinstance(recorded, Settled):
            return recorded
        failpoints.reach("before_publish")
        return self._send(lock, name, table, publication, request)

    @override
    @span("catalog")
    def resume(
        self,
        lock: PublishLock,
        name: TableName,
        table: OpenTable | None,
        publication: PlannedPublication,
    ) -> Published:
        request = None if table is None else self._kept_request(table, publication)
        if table is None or request is None or not _can_arrive(request, table.metadata):
            return self.drop(lock, table, publication)
        return self._send(lock, name, table, publication, request)

    @override
    def drop(
        self, lock: PublishLock, table: OpenTable | None, publication: PlannedPublication
    ) -> Published:
        if table is None:
            return self.store.drop_publication(lock, publication)
        if _has(table.metadata, publication):
            return self._settle(lock, table, publication)
        request = self._kept_request(table, publication)
        outcome = self.store.drop_publication(lock, publication)
        if isinstance(outcome, Settled):
            # Its manifests stay for as long as any that nothing names.
            self.io.discard([self._request_at(table, publication)])
            if request is not None and not _can_arrive(request, table.metadata):
                self.io.discard([states_location(table.metadata.location, publication.id)])
        return outcome

    def _send(
        self,
        lock: PublishLock,
        name: TableName,
        table: OpenTable,
        publication: PlannedPublication,
        request: CommitTableRequest,
    ) -> Published:
        from pyiceberg.exceptions import CommitFailedException

        try:
            current = self._table(name)
            if current is None:
                raise PublicationRefused(f"{_shown(name)} is gone from catalog {name.catalog}.")
            self.catalog.commit_table(current, request.requirements, request.updates)
        except CommitFailedException as error:
            # Something between here and the catalog might have sent it twice.
            current = self._table(name)
            if current is None or not _has(current.metadata, publication):
                raise PublicationRefused(
                    f"Catalog {name.catalog} refused a publication "
                    f"({_reason(error, self.catalog.name)}). Another program may have committed "
                    "first. What waits is published later."
                ) from error
        except TableUnavailable:
            raise
        except Exception as error:
            raise self._unavailable(error) from error
        failpoints.reach("after_publish")
        return self._settle(lock, table, publication)

    def _settle(
        self, lock: PublishLock, table: OpenTable, publication: PlannedPublication
    ) -> Published:
        outcome = self.store.commit_publication(lock, publication)
        assert not isinstance(outcome, PointerMoved)
        if isinstance(outcome, Settled):
            self.io.discard([self._request_at(table, publication)])
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

    def _table(self, name: TableName) -> Table | None:
        from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError

        try:
            return self.catalog.load_table((*_namespace(name), name.name))
        except (NoSuchTableError, NoSuchNamespaceError):
            return None
        except Exception as error:
            raise self._unavailable(error) from error

    def _unavailable(self, error: Exception) -> TableUnavailable:
        return TableUnavailable(
            f"Catalog {self.catalog.name} did not take the request "
            f"({_reason(error, self.catalog.name)}). The same request is sent again later. Output "
            "is committed meanwhile."
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
    try:
        return OtherCatalog(store, open_client(name, properties), io)
    except Exception as error:
        raise TableUnavailable(
            f"Catalog {name} cannot be opened ({_reason(error, name)}): check that it runs, "
            "catalog_properties and its secrets; output is still committed."
        ) from error


def _request(
    name: TableName, metadata: TableMetadata, staging: Staging, publication: PlannedPublication
) -> CommitTableRequest:
    """Return the request for a staged publication, which holds for the table as it was seen."""
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
            made(AssertRefSnapshotId, ref=MAIN_BRANCH, snapshot_id=publication.base),
            made(AssertCurrentSchemaId, current_schema_id=metadata.current_schema_id),
            made(AssertDefaultSpecId, default_spec_id=metadata.default_spec_id),
        ),
        updates=tuple(staging.updates),
    )


def _can_arrive(request: CommitTableRequest, metadata: TableMetadata) -> bool:
    """Return True if a table can still take a request: all that it requires holds."""
    from pyiceberg.exceptions import CommitFailedException
    from pyiceberg.table.update import update_table_metadata

    try:
        for requirement in request.requirements:
            requirement.validate(metadata)
        # A commit to another branch uses up sequence numbers.
        update_table_metadata(metadata, request.updates)
    except (CommitFailedException, ValueError):
        return False
    return True


def _has(metadata: TableMetadata, publication: PlannedPublication) -> bool:
    mark = mark_of(metadata)
    return mark is not None and mark.publication == publication.id


def _shown(name: TableName) -> str:
    return f"The table {name.namespace}.{name.name}"


def _reason(error: Exception, name: str) -> str:
    """Return an error of a catalog without its secrets, which a service's replies can repeat."""
    from pyiceberg.utils.config import Config

    text = str(error)
    for each, value in (Config().get_catalog_config(name) or {}).items():
        # A credential is an id and a secret, with a colon between them.
        if SECRET_PROPERTY.search(each) and (secret := str(value).rpartition(":")[2]):
            text = text.replace(secret, "***")
    return f"{type(error).__name__}: {without_secrets(one_line(text))}"


def _namespace(name: TableName) -> tuple[str, ...]:
    return tuple(name.namespace.split("."))
