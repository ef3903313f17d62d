"""Catalogs that commit by themselves, before the lease store knows: REST, Glue, Hive and others.

1. The publication is recorded in the lease store, with the snapshot that it follows.
2. The catalog is asked to put it behind that snapshot, and no other. The reply may be lost.
3. It is settled: by this turn, or by the next one, which looks for its id in the table first.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from typing_extensions import override

from dagster_leasehold.assets.errors import TableUnavailable
from dagster_leasehold.assets.output.table.catalog_clients import open_client
from dagster_leasehold.assets.output.table.catalogs import (
    LeaseDatabaseCatalog,
    OpenTable,
    Published,
    TableCatalog,
)
from dagster_leasehold.assets.output.table.metadata_files import PlaceIO
from dagster_leasehold.assets.output.table.staging import Staging, made
from dagster_leasehold.assets.table_settings import SECRET_PROPERTY
from dagster_leasehold.lease_store import failpoints
from dagster_leasehold.lease_store.errors import one_line, without_secrets
from dagster_leasehold.lease_store.failpoints import Failpoint
from dagster_leasehold.lease_store.outcomes import PointerMoved, Settled, TurnOver
from dagster_leasehold.lease_store.publication_rows import (
    PlannedPublication,
    PublishTurn,
    TableName,
)
from dagster_leasehold.lease_store.roles.publications import Publications
from dagster_leasehold.lease_store.tracing import span

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.table import Table
    from pyiceberg.table.metadata import TableMetadata


@dataclass(slots=True)
class OtherCatalog(TableCatalog):
    """Any catalog that PyIceberg knows: REST, Glue, Hive, or a database of its own.

    Attributes:
        store: keeps the publications that are on their way.
        catalog: PyIceberg's; each of its calls ends in time.
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
    @span("catalog")
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
        return TableUnavailable(
            f"Catalog {self.catalog.name} did not take the request "
            f"({_reason(error, self.catalog.name)}): it is asked again; output goes on being "
            "committed."
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
        return OtherCatalog(store, open_client(name, properties))
    except Exception as error:
        raise TableUnavailable(
            f"Catalog {name} cannot be opened ({_reason(error, name)}): check that it runs, "
            "catalog_properties and its secrets; output goes on being committed."
        ) from error


def _reason(error: Exception, name: str) -> str:
    """Return an error of a catalog without its secrets, which a service's replies may repeat."""
    from pyiceberg.utils.config import Config

    text = str(error)
    for each, value in (Config().get_catalog_config(name) or {}).items():
        # A credential is an id and a secret, with a colon between them.
        if SECRET_PROPERTY.search(each) and (secret := str(value).rpartition(":")[2]):
            text = text.replace(secret, "***")
    return f"{type(error).__name__}: {without_secrets(one_line(text))}"


def _namespace(name: TableName) -> tuple[str, ...]:
    return tuple(name.namespace.split("."))
