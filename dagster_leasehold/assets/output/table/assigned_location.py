"""Output at the location that a catalog assigns to the table of a group.

Files of records are written before they are published. So the first run creates the table, without
columns of its own, before it writes anything:

1. Two runs of a new group find no table. Each records the table's name, which no other group can
   use from then on.
2. Both request the creation of the table. The catalog refuses the later request, because the table
   exists, and that run loads it.
3. Both write below its location. A run that dies here leaves a table without a snapshot, which the
   next run uses.

A table that was removed and created again has another location. If the group has committed output,
such a table is refused.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import uuid4

from dagster_leasehold.assets.errors import TableUnavailable
from dagster_leasehold.assets.output.folder_owner import MARK
from dagster_leasehold.assets.output.table.columns import ColumnAgreement
from dagster_leasehold.assets.output.table.publish_locks import table_conflict_text
from dagster_leasehold.assets.output.table.table_access import TableAccess
from dagster_leasehold.assets.places.address import output_place
from dagster_leasehold.assets.places.local_place import local_place
from dagster_leasehold.assets.places.store_place import StorePlace
from dagster_leasehold.assets.table_settings import CatalogSettings, TableSettings
from dagster_leasehold.lease_store import failpoints
from dagster_leasehold.lease_store.errors import InvalidSetting
from dagster_leasehold.lease_store.identifiers import GroupKey
from dagster_leasehold.lease_store.outcomes import PublishesElsewhere
from dagster_leasehold.lease_store.publication_rows import PublishLock, TableName
from dagster_leasehold.lease_store.roles.publications import Publications

if TYPE_CHECKING:
    from dagster_leasehold.assets.places.place import OutputPlace


def assigned_place(store: Publications, key: GroupKey, catalog: CatalogSettings) -> OutputPlace:
    """Return the location of a group's table.

    Raises:
        TableUnavailable: there is no table yet, or the catalog does not give access to it.
    """
    publication = store.publication(key)
    name = None if publication is None else publication.table
    if name is None:
        raise TableUnavailable(
            f"{key} has no table yet in catalog {catalog.name}, which assigns the location of its "
            f"output: start a run, or run `leasehold table create {key.stream}`."
        )
    access, location = TableAccess(catalog, name), ""
    try:
        location = access.location()
        place = output_place(location)
        if isinstance(place, StorePlace) and access.vends():
            return replace(place, access=access)
    except OSError as error:
        raise TableUnavailable(str(error)) from None
    except InvalidSetting as error:
        raise TableUnavailable(
            f"Catalog {catalog.name} keeps the table {name.namespace}.{name.name} at {location}, "
            f"which cannot be used: {error}"
        ) from None
    return place


def create_assigned_table(
    store: Publications, key: GroupKey, settings: TableSettings, catalog: CatalogSettings
) -> None:
    """Create the table of a group, unless it exists.

    Raises:
        TableUnavailable: the catalog does not answer, another group has the table, or the table
            with the committed output is gone.
    """
    # Imported here because they load PyIceberg.
    from dagster_leasehold.assets.output.table.metadata_files import PlaceIO
    from dagster_leasehold.assets.output.table.other_catalog import open_other_catalog
    from dagster_leasehold.assets.output.table.publisher import first_metadata

    name = settings.table_name(catalog.name, key)
    _record(store, key, name)
    nowhere = PlaceIO(local_place(Path()), "")  # only publications need a place
    opened = open_other_catalog(catalog, name, store, nowhere)
    committed = _has_output(store, key)
    if opened.find() is None:
        if committed:
            raise _gone(name, "is not there")
        columns = [dict(each) for each in ColumnAgreement(store, key).agree(()).columns]
        opened.create_without_lock(first_metadata(key, settings, "", columns, uuid4()))
        failpoints.reach("after_table")
    place = assigned_place(store, key, catalog)
    if committed and (place / MARK).content() is None:
        raise _gone(name, f"is at {place} now, and its files are not there")


def _record(store: Publications, key: GroupKey, name: TableName) -> None:
    """Record the name of a group's table, unless another group uses the name."""
    publication = store.publication(key)
    if publication is not None and publication.table == name:
        return
    lock = store.take_publish_lock(key, None, "", name)
    if isinstance(lock, PublishesElsewhere):
        raise TableUnavailable(table_conflict_text(key, name, lock))
    if isinstance(lock, PublishLock):
        store.release_publish_lock(lock)


def _has_output(store: Publications, key: GroupKey) -> bool:
    publication = store.publication(key)
    published = publication is not None and (publication.number or publication.pending)
    return bool(published or store.unpublished(key, limit=1))


def _gone(name: TableName, where: str) -> TableUnavailable:
    return TableUnavailable(
        f"The table {name.namespace}.{name.name} of catalog {name.catalog} {where}, and committed "
        "output is at its former location: register its newest metadata file in the catalog again."
    )
