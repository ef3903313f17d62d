"""The metadata that Dagster knows by name: in the definition, and in events."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import dagster as dg
import pytest

from dagster_leasehold.assets.deployment import Deployment
from dagster_leasehold.assets.output.table.columns import columns_of, stored_schema
from dagster_leasehold.assets.places.address import output_place
from dagster_leasehold.assets.shard_asset import build_shard_asset
from dagster_leasehold.assets.shard_run import ShardRun
from dagster_leasehold.assets.shard_stream import ShardStream
from dagster_leasehold.assets.table_metadata import RAW_COLUMNS, agreed_schema
from dagster_leasehold.assets.table_settings import CatalogSettings, TableSettings
from dagster_leasehold.lease_store.group_rows import Timing
from dagster_leasehold.lease_store.store import LeaseStore
from dagster_leasehold.shard_sources.source import record_schema
from tests.unit.assets.test_shard_run import RUN, ZERO, RecordingContext, Scene
from tests.unit.sensors.streams import scripted_stream

SCHEMA = "dagster/column_schema"
VISITS = [{"name": "path", "type": "string"}, {"name": "tags", "type": {"list": "long"}}]


def unopened() -> LeaseStore:
    raise AssertionError("a definition opens no lease store")


def definition(stream: ShardStream, output: str) -> dict[str, object]:
    place = output_place(output)
    catalog = CatalogSettings("lake")
    deployment = Deployment(unopened, (), Timing(), lambda _: place, catalog=catalog)
    (metadata,) = build_shard_asset(stream, deployment).metadata_by_key.values()
    return dict(metadata)


@pytest.mark.parametrize(
    ("output", "uri"),
    [("/data/orders", "file:///data/orders"), ("s3://lake/orders", "s3://lake/orders")],
)
def test_a_definition_names_the_table_and_its_place(output: str, uri: str) -> None:
    metadata = definition(scripted_stream(name="orders.eu")[0], output)
    assert metadata["dagster/table_name"] == "lake.leasehold.orders_eu"
    assert metadata["dagster/uri"] == uri
    named = replace(scripted_stream()[0], iceberg=TableSettings(name="sales.orders"))
    assert definition(named, output)["dagster/table_name"] == "lake.sales.orders"


def test_a_definition_lists_the_columns_of_a_stream_without_a_transform(tmp_path: Path) -> None:
    assert columns_of(stored_schema(record_schema())) == RAW_COLUMNS
    stream, _ = scripted_stream()
    shown = definition(stream, str(tmp_path))[SCHEMA]
    assert isinstance(shown, dg.TableSchemaMetadataValue)
    assert [(each.name, each.type) for each in shown.schema.columns][-2:] == [
        ("value", "binary"),
        ("attributes", "map of string to string"),
    ]
    assert all(each.description for each in shown.schema.columns)
    assert SCHEMA not in definition(replace(stream, transform=lambda frame: frame), str(tmp_path))


def test_a_materialization_lists_columns_that_the_definition_lacks() -> None:
    scene = Scene(RecordingContext())
    assert agreed_schema(scene.store, scene.stream) == {}
    scene.store.agree_columns(scene.stream.key, RAW_COLUMNS, seen_version=0)
    scene.commit(ZERO)
    assert SCHEMA not in scene.run.metadata(ZERO)
    scene.store.agree_columns(scene.stream.key, VISITS, seen_version=1)
    shown = ShardRun(scene.stream, scene.store, RUN).metadata(ZERO)[SCHEMA]
    assert [(each.name, each.type) for each in shown.schema.columns] == [
        ("path", "string"),
        ("tags", "list of long"),
    ]
