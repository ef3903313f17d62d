"""The tables of routes: each record in the stream's table and in one route's table, once.

With the default catalog and with a catalog that commits by itself, through kills at each step.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.catalog import load_catalog
from pyiceberg.table import StaticTable

from dagster_leasehold.assets.errors import TableUnavailable
from dagster_leasehold.assets.output.committed_output import CommittedOutput
from dagster_leasehold.assets.output.table.columns import stream_routes
from dagster_leasehold.assets.output.table.group_table import files_of_table
from dagster_leasehold.assets.rewriting.compaction import Compactor
from dagster_leasehold.assets.rewriting.replay import Replayer
from dagster_leasehold.assets.rewriting.replay_span import ReplaySpan
from dagster_leasehold.assets.routes import route_of
from dagster_leasehold.assets.table_settings import CatalogSettings, TableSettings, route_table
from dagster_leasehold.lease_store.identifiers import ShardId
from dagster_leasehold.lease_store.publication_rows import PublishLock
from tests.failpoints import Failpoint
from tests.ledger_output import ledger_records
from tests.table_engines import duckdb_query
from tests.unit.assets.consumption_world import World
from tests.unit.assets.output.table.publishing_world import Publishing
from tests.unit.assets.output.table.test_publisher import Killed, die_at

KINDS = ("clicks", "views", None, "Clicks", "../etc", "buys")
ROUTES = ("clicks", "views", "buys")
POINTS = (
    Failpoint.BEFORE_TABLE,
    Failpoint.AFTER_STAGE,
    Failpoint.BEFORE_PUBLISH,
    Failpoint.AFTER_ROUTE,
    Failpoint.AFTER_PUBLISH,
)


def kind_of(value: bytes) -> str | None:
    return KINDS[int(value.rpartition(b":")[2]) % len(KINDS)]


def with_kind(rows: pa.RecordBatch) -> pa.RecordBatch:
    kinds = [kind_of(value) for value in rows.column("value").to_pylist()]
    rows = rows.append_column("kind", pa.array(kinds, pa.string()))
    prices = pa.array([1 if kind == "buys" else None for kind in kinds], pa.int64())
    return rows.append_column("price", prices)


class Scene(Publishing):
    """A stream of two shards with 12 records each, whose column `kind` has the routes."""

    runs = 0

    def consume(self, records: int = 6) -> None:
        world = self.world
        self.runs += 1
        for shard in world.ids:
            world.append(shard, records)
        world.sweeper.keeps = with_kind
        routes = stream_routes(self.store, world.key)
        world.sweeper.partitioning = replace(
            self.settings.divided_by, routing=self.settings.routing("kind", routes)
        )
        reports = world.consume(f"run-{self.runs}")
        assert not any(report.error for report in reports.values()), reports

    def route_at(self, route: str) -> str:
        name = route_table(self.settings.table_name(self.catalog.name, self.world.key), route)
        if self.catalog.properties:
            catalog = load_catalog(self.catalog.name, **self.catalog.properties)
            return catalog.load_table((name.namespace, name.name)).metadata_location
        pointer = self.world.store.table_pointer(name)
        assert pointer is not None, f"{name} does not exist"
        return pointer.location

    def metadata_at(self) -> str:
        if self.catalog.properties:
            catalog = load_catalog(self.catalog.name, **self.catalog.properties)
            return catalog.load_table("leasehold.orders").metadata_location
        return super().metadata_at()

    def committed(self) -> list[bytes]:
        store, key = self.world.store, self.world.key
        each = (ledger_records(store, key, self.world.place, shard) for shard in self.world.ids)
        return sorted(v for own in each for rows in own for v in rows.column("value").to_pylist())

    def compact(self) -> None:
        compactor = Compactor(
            store=self.world.store, key=self.world.key, output_root=self.world.place, run="merge"
        )
        for report in compactor.compact(self.world.ids).values():
            assert not report.error

    def check(self, routes: tuple[str, ...] = ROUTES) -> None:
        """Each committed record is in the stream's table, and in the table of its route."""
        committed = self.committed()
        assert self.published() == committed
        assert len(committed) == len(set(committed))
        for route in routes:
            values = [each for each in committed if (kind_of(each) or "").lower() == route]
            assert self.published(self.route_at(route)) == values
            assert values


@pytest.fixture(params=["default", "other"])
def scene(request: pytest.FixtureRequest, tmp_path: Path) -> Scene:
    catalog = CatalogSettings()
    if request.param == "other":
        uri = f"sqlite:///{tmp_path}/catalog.db"
        catalog = CatalogSettings("lake", {"type": "sql", "uri": uri, "warehouse": "none"})
    world = World(tmp_path, records=6, declaration={"route": "kind"})
    return Scene(tmp_path, catalog=catalog, world=world)


def test_each_record_is_in_the_table_of_its_route(scene: Scene) -> None:
    scene.consume()
    scene.publish()
    scene.check()
    scene.consume()
    scene.publish()
    scene.check()


def test_a_route_gets_the_columns_for_which_it_has_values(scene: Scene) -> None:
    scene.consume()
    scene.publish()
    columns = {
        route: StaticTable.from_metadata(scene.route_at(route)).schema().column_names
        for route in ROUTES
    }
    assert "price" in columns["buys"]
    assert "price" not in columns["clicks"]
    assert {"shard_id", "cursor", "value", "kind"} <= {*columns["clicks"]}


def test_a_new_route_gets_a_table_on_first_use(scene: Scene) -> None:
    scene.world.sweeper.keeps = with_kind
    scene.consume()
    scene.publish()
    table = StaticTable.from_metadata(scene.route_at("buys"))
    assert table.metadata.properties["gc.enabled"] == "false"
    assert len(table.metadata.snapshots) == 1
    summary = table.metadata.snapshots[0].summary
    assert summary is not None
    assert summary["leasehold.route"] == "buys"
    main = StaticTable.from_metadata(scene.metadata_at())
    assert main.metadata.properties["gc.enabled"] == "false"


@pytest.mark.parametrize("point", POINTS, ids=lambda point: point.label)
def test_killed_at_any_step_each_record_is_in_each_table_once(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, point: Failpoint
) -> None:
    for _ in range(2):
        scene.consume()
        with monkeypatch.context() as patched:
            die_at(point, patched)
            with suppress(Killed):
                scene.publish()
        scene.publish()
        scene.check()


def test_killed_between_the_tables_of_two_routes(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Method: the n-th publisher dies at the first route that the earlier ones did not change."""
    if not scene.catalog.properties:
        pytest.skip("one transaction changes all tables")
    for _ in range(2):
        scene.consume()
        for _ in range(len(ROUTES)):
            with monkeypatch.context() as patched:
                die_at(Failpoint.AFTER_ROUTE, patched)
                with pytest.raises(Killed):
                    scene.publish()
            assert scene.store.publication(scene.world.key).pending is not None
        scene.publish()
        assert scene.store.publication(scene.world.key).pending is None
        scene.check()


def test_replay_compaction_and_withdrawal_change_the_tables_of_routes(scene: Scene) -> None:
    scene.consume()
    scene.publish()
    scene.compact()
    scene.publish()
    scene.check()
    files = [each for each in scene.world.store.batches(scene.world.key) if each.files]
    paths = [file.path for each in files for file in each.files]
    assert len(paths) == 2 * (len(ROUTES) + 1)
    assert {route_of(path) for path in paths} == {"", *ROUTES}
    replayer = Replayer(
        stream=scene.stream, store=scene.store, output_root=scene.world.place,
        sweeper=scene.world.sweeper, run="replay",
    )  # fmt: skip
    for report in replayer.replay(scene.world.ids, ReplaySpan()).values():
        assert not report.error
    scene.publish()
    scene.check()
    scene.consume()
    shard = scene.world.ids[0]
    outcome = scene.world.store.force_checkpoint(
        scene.world.key, shard, "4", observer="test", reason="test"
    )
    assert outcome
    scene.publish()
    scene.consume()
    scene.publish()
    scene.check()


def test_no_more_routes_than_the_setting(scene: Scene) -> None:
    scene.settings = TableSettings(routes_max=2, unknown_routes="other")
    scene.world.stream = scene.world.stream.__class__(
        scene.world.stream.name,
        scene.world.log,
        route="kind",
        iceberg=scene.settings,
        limits=scene.world.stream.limits,
    )
    world = scene.world
    world.sweeper.keeps = with_kind
    for run in ("run-1", "run-2", "run-3"):
        routes = stream_routes(scene.store, world.key)
        world.sweeper.partitioning = replace(
            scene.settings.divided_by, routing=scene.settings.routing("kind", routes)
        )
        world.consume(run)
    scene.publish()
    routes = stream_routes(scene.store, world.key)
    assert len(routes - {"other"}) == 2
    assert scene.published() == scene.committed()
    counts = {route: len(scene.published(scene.route_at(route))) for route in routes}
    assert sum(counts.values()) == len(scene.committed())


def test_a_foreign_change_of_a_routes_table_stops_publication(scene: Scene) -> None:
    scene.settings = TableSettings(partitioning=())
    scene.consume()
    scene.publish()
    if not scene.catalog.properties:
        pytest.skip("another program needs a catalog")
    catalog = load_catalog(scene.catalog.name, **scene.catalog.properties)
    table: Any = catalog.load_table("leasehold.orders__clicks")
    table.append(table.scan(limit=1).to_arrow())
    scene.consume()
    with pytest.raises(TableUnavailable, match=r"added 1 records to the table.*__clicks"):
        scene.publish()
    lock = scene.lock()
    assert isinstance(lock, PublishLock)
    scene.publisher().adopt(lock)
    scene.store.release_publish_lock(lock)
    scene.publish()
    scene.check()


def test_a_routes_table_that_was_removed_is_created_again(scene: Scene) -> None:
    scene.consume()
    scene.publish()
    if not scene.catalog.properties:
        pytest.skip("another program needs a catalog")
    load_catalog(scene.catalog.name, **scene.catalog.properties).drop_table(
        "leasehold.orders__clicks"
    )
    scene.consume()
    scene.publish()
    scene.check()


def test_vacuum_and_cleaning_keep_the_files_of_routes(scene: Scene) -> None:
    scene.consume()
    scene.publish()
    before = files_of_table(scene.store, scene.world.key, scene.catalog, scene.world.place)
    assert {route_of(path) for path in before} == {"", *ROUTES}
    scene.compact()
    scene.publish()
    scene.settings = TableSettings(snapshots_kept=1)
    after = files_of_table(scene.store, scene.world.key, scene.catalog, scene.world.place)
    assert before < after


def test_readers_read_all_routes_or_one(scene: Scene) -> None:
    scene.consume()
    scene.publish()
    output = CommittedOutput(
        scene.store, scene.world.key, str(scene.world.output), scene.settings, scene.catalog
    )
    assert output.dataset().count_rows() == 24
    clicks = output.dataset(route="clicks").to_table()
    assert {each.lower() for each in clicks.column("kind").to_pylist()} == {"clicks"}
    assert "price" not in clicks.column_names
    assert output.dataset(route="clicks", shards=[ShardId("0")]).count_rows() == 4


def test_differences_of_a_routes_table_are_found(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene.consume()
    scene.publish()
    comparison = scene.publisher().comparison
    assert comparison.compare().differences == ()
    if not scene.catalog.properties:
        return
    catalog = load_catalog(scene.catalog.name, **scene.catalog.properties)
    table: Any = catalog.load_table("leasehold.orders__views")
    table.delete("cursor = '1'")
    (difference,) = scene.publisher().comparison.compare().differences
    assert "orders__views" in difference
    assert duckdb_query(scene.metadata_at(), "count(*)") == [(24,)]
