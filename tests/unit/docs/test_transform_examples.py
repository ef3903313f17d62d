"""The transforms of the page about them, on records of a shard."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa

from dagster_leasehold.assets.arrow_transform import ArrowTransform, checked
from dagster_leasehold.lease_store.identifiers import ShardId
from dagster_leasehold.shard_sources.source import record_schema
from tests.unit.docs.test_docs import DOCS, fences

BAD = b"no JSON"


def transform_of(name: str) -> ArrowTransform:
    [example] = [
        block
        for block in fences(DOCS / "how-to" / "transform.md", "python")
        if f"@arrow_transform\ndef {name}(" in block
    ]
    names: dict[str, Any] = {}
    exec(example.partition("\nstream = ")[0], names)
    assert isinstance(names[name], ArrowTransform)
    return names[name]


def output_of(name: str, *values: dict[str, object]) -> pa.Table:
    records = [
        {
            "shard_id": "0",
            "cursor": str(at),
            "event_time": datetime(2026, 1, 31, tzinfo=UTC),
            "key": b"k",
            "value": value,
            "attributes": [("a", "b")],
        }
        for at, value in enumerate([*(json.dumps(value).encode() for value in values), BAD])
    ]
    table = pa.Table.from_pylist(records, record_schema())
    output = checked(transform_of(name)(table), ShardId("0"), name)
    errors = output.column("quarantine_error")
    assert output.filter(errors.is_valid()).column("value").to_pylist() == [BAD]
    assert output.schema.field("event_time").type == pa.timestamp("us", tz="UTC")
    return output.filter(errors.is_null())


def test_the_pyarrow_transform_of_the_page_runs() -> None:
    output = output_of("visits", {"path": "/Cart", "status": 200}, {"path": "/health"})
    assert output.select(["path", "status"]).to_pylist() == [{"path": "/cart", "status": 200}]
