"""Kill a publisher between the tables of two routes: each record is in each table once."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest
from pyiceberg.catalog import load_catalog

from dagster_leasehold.assets.output.table.columns import stream_routes
from dagster_leasehold.assets.output.table.group_table import build_publisher
from dagster_leasehold.assets.output.table.publish_locks import take_lock
from dagster_leasehold.assets.places.address import output_place
from dagster_leasehold.assets.shard_stream import ShardStream
from dagster_leasehold.assets.table_settings import CatalogSettings, TableSettings
from dagster_leasehold.lease_store.publication_rows import PublishLock
from tests.failpoints import Failpoint
from tests.unit.assets.output.table.test_route_tables import ROUTES, kind_of, with_kind
from tests.unit.orchestration.consumed_home import KEY, NODE, ConsumedHome

POINTS = (Failpoint.AFTER_ROUTE,)
RECORDS = 12


def catalog_of(root: Path) -> CatalogSettings:
    uri = f"sqlite:///{root}/lake.db"
    return CatalogSettings("lake", {"type": "sql", "uri": uri, "warehouse": "none"})


def routed_home(root: Path) -> ConsumedHome:
    home = ConsumedHome(root / "home")
    home.stream = ShardStream(str(KEY.stream), home.log, limits=home.stream.limits, route="kind")
    return home


def consume(home: ConsumedHome, run: str) -> None:
    home.append(RECORDS)
    settings, routes = TableSettings(), stream_routes(home.store, KEY)
    home.sweeper.keeps = with_kind
    home.sweeper.partitioning = replace(
        settings.divided_by, routing=settings.routing("kind", routes)
    )
    home.consume(run)


def publish(root: Path) -> None:
    home, catalog = routed_home(root), catalog_of(root)
    name = TableSettings().table_name(catalog.name, KEY)
    lock = take_lock(home.store, KEY, name, {NODE: "a-1"})
    assert isinstance(lock, PublishLock)
    publisher = build_publisher(
        store=home.store,
        key=KEY,
        settings=TableSettings(),
        catalog=catalog,
        place=output_place(home.output),
    )
    while publisher.publish(lock).more:
        pass


def values_in(root: Path, name: str) -> list[bytes]:
    catalog = catalog_of(root)
    table = load_catalog(catalog.name, **catalog.properties).load_table(("leasehold", name))
    return sorted(table.scan(selected_fields=("value",)).to_arrow()["value"].to_pylist())


@pytest.mark.parametrize("point", POINTS, ids=lambda point: point.label)
def test_a_killed_publisher_leaves_each_record_in_each_table_once(
    tmp_path: Path, point: Failpoint
) -> None:
    for number in range(2):
        consume(routed_home(tmp_path), f"run-{number}")
        point.kills("-m", __name__, str(tmp_path))
        publish(tmp_path)
        committed = [
            b"%d:%d" % (shard, each) for shard in range(2) for each in range((number + 1) * RECORDS)
        ]
        assert values_in(tmp_path, "demo") == sorted(committed)
        for route in ROUTES:
            own = [each for each in committed if (kind_of(each) or "").lower() == route]
            assert values_in(tmp_path, f"demo__{route}") == sorted(own)


if __name__ == "__main__":
    publish(Path(sys.argv[1]))
