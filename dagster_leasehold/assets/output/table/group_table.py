"""Opens the published table of one group to publish, read, compare or clean it."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import cache
from uuid import UUID, uuid4

from dagster_leasehold.assets.errors import TableUnavailable
from dagster_leasehold.assets.output.table.catalogs import GroupTable, OpenTable, TableCatalog
from dagster_leasehold.assets.output.table.columns import stream_routes
from dagster_leasehold.assets.output.table.comparison import TableComparison
from dagster_leasehold.assets.output.table.maintenance import data_files
from dagster_leasehold.assets.output.table.metadata_files import PlaceIO
from dagster_leasehold.assets.output.table.other_catalog import open_catalog
from dagster_leasehold.assets.output.table.publisher import Publisher
from dagster_leasehold.assets.output.table.shard_states import Watermark
from dagster_leasehold.assets.places.address import location_of
from dagster_leasehold.assets.places.place import OutputPlace
from dagster_leasehold.assets.table_settings import CatalogSettings, TableSettings, route_table
from dagster_leasehold.lease_store.identifiers import GroupKey
from dagster_leasehold.lease_store.publication_rows import TableName
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
    name = settings.table_name(catalog.name, key)
    group = _group_table(store, key, catalog, name, place, new_name=lambda: new_id().hex)
    return Publisher(group, settings, now_ms, new_id, watermark)


def _group_table(
    store: LedgerAndRewrites,
    key: GroupKey,
    catalog: CatalogSettings,
    name: TableName,
    place: OutputPlace,
    *,
    new_name: Callable[[], str] = lambda: "",
) -> GroupTable:
    io = PlaceIO(place, location_of(place))

    @cache
    def of_route(route: str) -> TableCatalog:
        return open_catalog(catalog, route_table(name, route), store, io, new_name)

    own = open_catalog(catalog, name, store, io, new_name)
    return GroupTable(store, key, name, own, io, place, of_route)


def find_table(
    store: Publications,
    key: GroupKey,
    catalog: CatalogSettings,
    place: OutputPlace,
    route: str = "",
) -> tuple[OpenTable, PlaceIO] | None:
    """Return the table of a group, or of one of its routes, and the access to its metadata.

    The result is None if nothing was published.
    """
    publication = store.publication(key)
    name = None if publication is None else publication.table
    if publication is None or name is None:
        return None
    io = PlaceIO(place, location_of(place))
    if route:
        table = open_catalog(catalog, route_table(name, route), store, io).find()
        return None if table is None else (table, io)
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
    return TableComparison(_group_table(store, key, catalog, publication.table, place))


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
    routes = ["", *sorted(stream_routes(store, key))] if name is not None else [""]
    published = [find_table(store, key, catalog, place, route) for route in routes]
    states = (newest, *(None if each is None else each[0] for each in published))
    return {path for table in states if table is not None for path in data_files(io, table)}
