"""Streams that decode their records, on real Spark: committed once, or held with a sentence."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa
import pytest

from dagster_leasehold.assets.arrow_transform import arrow_transform
from dagster_leasehold.assets.consuming.consumption_report import ConsumptionReport, StopReason
from dagster_leasehold.assets.decode_settings import Decode
from dagster_leasehold.assets.output.committed_output import CommittedOutput
from dagster_leasehold.assets.output.quarantined import quarantined_records
from dagster_leasehold.assets.shard_stream import ShardStream
from dagster_leasehold.assets.table_settings import TableSettings
from dagster_leasehold.lease_store.identifiers import ShardId
from dagster_leasehold.lease_store.rules.verification import verify
from dagster_leasehold.shard_sources.local_log import LocalLog
from tests.integration.assets.runs import claim_all, consume_stream, store_of
from tests.schema_registry import SchemaRegistryServer

pytestmark = pytest.mark.spark
ZERO = ShardId("0")


@pytest.fixture
def registry() -> Iterator[SchemaRegistryServer]:
    with SchemaRegistryServer() as server:
        yield server


def written(registry: SchemaRegistryServer, **fields: Any) -> bytes:
    """A record whose schema has the types of these values, registered as a producer does."""
    kinds = {bool: "int", int: "long", str: "string", float: "double"}
    columns = [{"name": name, "type": kinds[type(value)]} for name, value in fields.items()]
    schema = {"type": "record", "name": "Order", "fields": columns}
    number = registry.register("orders-value", schema)
    target = io.BytesIO()
    fastavro.schemaless_writer(target, fastavro.parse_schema(schema), fields)
    return b"\0" + number.to_bytes(4, "big") + target.getvalue()


class Orders:
    """A deployment with one shard of orders in Avro."""

    def __init__(self, home: Path, spark_folder: Path, decode: Decode, transform: Any = None):
        self.home, self._spark_folder, self._runs = home, spark_folder, 0
        self.log = LocalLog.create(home / "log", 1)
        self.stream = ShardStream("orders", self.log, transform=transform, decode=decode)
        claim_all(self.stream, home)

    def consume(self) -> ConsumptionReport:
        self._runs += 1
        replaces = f"run-{self._runs - 1}" if self._runs > 1 else None
        run = f"run-{self._runs}"
        return consume_stream(self.stream, self.home, self._spark_folder, run, replaces)[ZERO]

    def table(self) -> pa.Table:
        """The published table, without the columns of all records."""
        store, key = store_of(self.home), self.stream.key
        assert verify(store, key) == []
        output = CommittedOutput(store, key, self.home / "output", TableSettings())
        table = output.dataset(wait=True).to_table()
        return table.drop_columns(
            ["shard_id", "cursor", "event_time", "key", "value", "attributes"]
        )

    def rows(self) -> list[dict[str, Any]]:
        return self.table().to_pylist()


def test_records_are_committed_as_columns(
    tmp_path: Path, spark_folder: Path, registry: SchemaRegistryServer, connect_session: Any
) -> None:
    @arrow_transform
    def without_two(records: Any) -> Any:
        import pyarrow.compute as pc

        return records.filter(pc.fill_null(pc.not_equal(records["id"], 2), True))

    decode = Decode("avro", registry=registry.url, client={"max.retries": 0})
    orders = Orders(tmp_path, spark_folder, decode, without_two)
    first = [written(registry, id=number) for number in (1, 2, 3)]
    orders.log.append(ZERO, [*first, b"no Avro", written(registry, id=4, note="gift")])
    assert orders.consume().stopped is StopReason.CAUGHT_UP
    expected = [{"id": 1, "note": None}, {"id": 3, "note": None}, {"id": 4, "note": "gift"}]
    assert orders.rows() == expected
    [bad] = quarantined_records(store_of(tmp_path), orders.stream.key, tmp_path / "output", ZERO)
    assert (bad.value, bad.error) == (b"no Avro", "value does not begin with the id of a schema")

    registry.failure = 503
    orders.log.append(ZERO, [written(registry, id=5, price=0.5)])
    report = orders.consume()
    assert report.stopped is StopReason.FAILED
    assert "answers with the error 503" in report.error
    assert orders.rows() == expected

    registry.failure = 0
    assert orders.consume().stopped is StopReason.CAUGHT_UP
    assert orders.rows() == [row | {"price": None} for row in expected] + [
        {"id": 5, "note": None, "price": 0.5}
    ]


def test_a_schema_that_does_not_fit_the_table_holds_the_shard(
    tmp_path: Path, spark_folder: Path, registry: SchemaRegistryServer, connect_session: Any
) -> None:
    orders = Orders(tmp_path, spark_folder, Decode("avro", registry=registry.url))
    orders.log.append(ZERO, [written(registry, id=1)])
    assert orders.consume().stopped is StopReason.CAUGHT_UP
    orders.log.append(ZERO, [written(registry, id="one")])
    for _ in range(3):
        report = orders.consume()
        assert report.stopped is StopReason.FAILED
        assert "Records with schema 2 do not fit the table" in report.error
        assert "'id' is long in the table" in report.error
    assert orders.rows() == [{"id": 1}]


def test_the_table_follows_its_schemas(
    tmp_path: Path, spark_folder: Path, registry: SchemaRegistryServer, connect_session: Any
) -> None:
    orders = Orders(tmp_path, spark_folder, Decode("avro", registry=registry.url))
    for fields in ({"id": True}, {"id": 2**40, "note": "a"}, {"note": "b"}, {"id": False}):
        orders.log.append(ZERO, [written(registry, **fields)])
        assert orders.consume().stopped is StopReason.CAUGHT_UP
    table = orders.table()
    assert table.schema.types == [pa.int64(), pa.string()]
    assert [tuple(row.values()) for row in table.to_pylist()] == [
        (1, None),
        (2**40, "a"),
        (None, "b"),
        (0, None),
    ]
    orders.log.append(ZERO, [written(registry, NOTE="c")])
    report = orders.consume()
    assert report.stopped is StopReason.FAILED
    assert "Records with schema 4 do not fit the table" in report.error
    assert "named 'note' and 'NOTE'" in report.error
