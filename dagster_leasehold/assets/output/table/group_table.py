"""Opens the published table of one group to publish, read, compare or clean it."""

from __future__ import annotations

import time
from collections.abc import Callable
from uuid import UUID, uuid4

from dagster_leasehold.assets.errors import TableUnavailable
from dagster_leasehold.assets.output.table.catalogs import GroupTable, OpenTable
from dagster_leasehold.assets.output.table.comparison import TableComparison
from dagster_leasehold.assets.output.table.maintenance import data_files
from dagster_leasehold.assets.output.table.metadata_files import PlaceIO
from dagster_leasehold.assets.output.table.other_catalog import open_catalog
from dagster_leasehold.assets.output.table.publisher import Publisher
from dagster_leasehold.assets.output.table.shard_states import Watermark
from dagster_leasehold.assets.places.address import location_of
from dagster_leasehold.assets.places.place import OutputPlace
from dagster_leasehold.assets.table_settings import CatalogSettings, TableSettings
from dagster_leasehold.lease_store.identifiers import GroupKey
from dagster_leasehold.lease_store.roles.publications import Publications
from dagster_leasehold.lease_store.store import LedgerAndRewrites


def build_publisher(
    *,
    store: LedgerAndRewrites,
    key: GroupKey,
    settings: TableSettings,
    catalog: CatalogSettings,
    place: OutputPlace,
    now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    new_id: Callable[[], UUID] = uuid4,
    watermark: Watermark = lambda _: None,
) -> Publisher:
    """Return the publisher of a group's output.

    `watermark` returns the largest event time of a batch, or None.
    """
    io = PlaceIO(place, location_of(place))
    name = settings.table_name(catalog.name, key)
    table_catalog = open_catalog(catalog, name, store, io, lambda: new_id().hex)
    group = GroupTable(store, key, name, table_catalog, io, place)
    return Publisher(group, settings, now_ms, new_id, watermark)


def find_table(
    store: Publications, key: GroupKey, catalog: CatalogSettings, place: OutputPlace
) -> tuple[OpenTable, PlaceIO] | None:
    """Return the table of a group and the access to its metadata; None if nothing was published."""
    publication = store.publication(key)
    name = None if publication is None else publication.table
    if publication is None or name is None:
        return None
    io = PlaceIO(place, location_of(place))
    table = open_catalog(catalog, name, store, io).find()
    if table is None and publication.number:
        raise TableUnavailable(
            f"Catalog {name.catalog} does not have the table {name.namespace}.{name.name} to which "
            f"{key} publishes: set that catalog with its properties, or check whether the table "
            "was removed."
        )
    return None if table is None else (table, io)


def comparison_of(
    store: LedgerAndRewrites, key: GroupKey, catalog: CatalogSettings, place: OutputPlace
) -> TableComparison | None:
    """Return the comparison of a group's table with the ledger; None if nothing was published."""
    publication = store.publication(key)
    if publication is None or publication.table is None:
        return None
    io = PlaceIO(place, location_of(place))
    table_catalog = open_catalog(catalog, publication.table, store, io)
    return TableComparison(GroupTable(store, key, publication.table, table_catalog, io, place))


def files_of_table(
    store: Publications, key: GroupKey, catalog: CatalogSettings, place: OutputPlace
) -> set[str]:
    """Return the data files that the snapshots of a group's table name, by their ledger paths.

    It includes the files of a newer state, because the ledger may have been restored from a backup.
    """
    publication = store.publication(key)
    name = None if publication is None else publication.table
    if name is None and catalog.properties:
        raise TableUnavailable(
            f"The output of {key} has metadata of a table that its ledger does not name: the "
            "ledger was recreated, or restored from a backup. To keep the files of the table, "
            "first run `leasehold table create --adopt`."
        )
    io = PlaceIO(place, location_of(place))
    newest = open_catalog(catalog, name, store, io).newest_state()
    published = find_table(store, key, catalog, place)
    states = (None if published is None else published[0], newest)
    return {path for table in states if table is not None for path in data_files(io, table)}
