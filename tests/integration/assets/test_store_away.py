"""An outage of the store or the catalog: which part reports it, and no record is lost or
duplicated.

The server of the store, and that of the catalog, is stopped and restarted with its data.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dagster_leasehold.assets.consuming.spark_sweeper import SparkSweeper
from dagster_leasehold.assets.deployment import Deployment
from dagster_leasehold.assets.guarding.run_on_spark import RunOnSpark
from dagster_leasehold.assets.output.table.publish_rounds import PublishRounds
from dagster_leasehold.assets.places.address import output_place
from dagster_leasehold.assets.table_settings import CatalogSettings
from dagster_leasehold.lease_store.group_rows import Timing
from tests.integration.assets.test_other_catalog import Scene
from tests.object_store import ENVIRONMENT, new_bucket, serve
from tests.ports import free_port
from tests.rest_catalog import give_token, rest_catalog
from tests.table_engines import pyiceberg_rows
from tests.unit.assets.consumption_world import NODE, World
from tests.unit.assets.output.table.publishing_world import Publishing


def rounds(publishing: Publishing) -> PublishRounds:
    """The publishing of one deployment."""
    world = publishing.world
    deployment = Deployment(
        lambda: publishing.store,
        (NODE,),
        Timing(),
        lambda _: world.place,
        catalog=publishing.catalog,
    )
    return PublishRounds(
        world.stream,
        deployment,
        lambda: {row.name: row.incarnation for row in world.store.pulse(world.key).nodes},
        lambda: world.now_s,
    )


def tick(rounds: PublishRounds, world: World) -> str:
    world.now_s += 600.0
    return rounds.tick()[0]


@pytest.mark.long
@pytest.mark.spark
def test_consumption_continues_after_an_outage_of_the_object_store(
    tmp_path: Path, connect_session: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """1. It is gone before a batch is written. 2. It is gone before a batch is published."""
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    world = World(tmp_path, elsewhere=output_place(f"s3://{new_bucket()}/out"))
    server = serve()
    publishing = Publishing(tmp_path, world=world)
    sensor = rounds(publishing)

    def consume(run: str) -> set[str]:
        sweeper = SparkSweeper(
            stream=world.stream,
            spark=RunOnSpark(session=lambda: connect_session, run=run, work="stream orders"),
            output_root=world.place,
        )
        return {report.error for report in world.consume(run, sweeper=sweeper).values()}

    assert consume("run-1") == {""}
    assert tick(sensor, world).startswith("Published 6 batches of 20 records.")

    world.append(world.ids[0], 3)
    server.stop()
    (sentence,) = consume("run-2") - {""}
    assert "NETWORK_CONNECTION" in sentence
    assert "\n" not in sentence
    server.start()
    assert consume("run-3") == {""}

    server.stop()
    line = tick(sensor, world)
    assert "NETWORK_CONNECTION" in line
    assert "Output that can be written is still committed, and published later" in line
    server.start()
    assert tick(sensor, world).startswith("Published 1 batches of 3 records.")
    rows = pyiceberg_rows(publishing.metadata_at())
    assert sorted(row["value"] for row in rows) == publishing.committed()
    assert len(rows) == 23


def test_runs_commit_during_an_outage_of_the_catalog(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    give_token(monkeypatch)
    port = free_port()
    properties = {"type": "rest", "uri": f"http://127.0.0.1:{port}"}
    scene = Scene(tmp_path, catalog=CatalogSettings("lake", properties))
    sensor = rounds(scene)

    def consume(run: str) -> None:
        scene.world.append(scene.world.ids[0], 2)
        reports = scene.world.consume(run)
        assert {report.error for report in reports.values()} == {""}

    consume("run-1")
    line = tick(sensor, scene.world)
    assert "Catalog lake cannot be opened" in line
    assert "Output is still committed" in line
    with rest_catalog(tmp_path, port):
        assert tick(sensor, scene.world).startswith("Published")
    consume("run-2")
    line = tick(sensor, scene.world)
    assert "Catalog lake did not accept the request" in line
    assert "Output is still committed" in line
    with rest_catalog(tmp_path, port):
        assert tick(sensor, scene.world).startswith("Published 1 batches of 2 records.")
        assert scene.published() == scene.committed()
        assert len(scene.published()) == 24
