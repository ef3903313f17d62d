"""JSON Schema, MessagePack, text and Debezium's envelope."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import fastavro
import msgspec
import pytest

from dagster_leasehold.assets.decode_settings import Decode
from dagster_leasehold.assets.errors import SchemaUnusable
from dagster_leasehold.lease_store.errors import InvalidSetting
from tests.schema_registry import SchemaRegistryServer
from tests.unit.assets.decoding.decoded_records import decoded

ADDRESS = {"type": "object", "properties": {"city": {"type": "string"}}}
ORDER = {
    "type": "object",
    "properties": {
        "id": {"type": "integer"},
        "price": {"type": ["null", "number"]},
        "at": {"type": "string", "format": "date-time"},
        "day": {"oneOf": [{"type": "null"}, {"type": "string", "format": "date"}]},
        "home": {"$ref": "address.json"},
        "lines": {"type": "array", "items": {"$ref": "#/definitions/line"}},
        "stock": {"type": "object", "additionalProperties": {"type": "integer"}},
        "any": {},
        "state": {"enum": ["NEW"]},
        "small": {"type": "integer", "connect.type": "int32"},
    },
    "required": ["id"],
    "definitions": {"line": {"type": "object", "properties": {"article": {"type": "string"}}}},
}
VALUE: dict[str, Any] = {
    "id": 1,
    "price": 2.5,
    "at": "2026-01-31T08:00:00Z",
    "day": "2026-01-31",
    "home": {"city": "Bonn"},
    "lines": [{"article": "cup"}],
    "stock": {"cup": 3},
    "any": [1, {"a": None}],
    "state": "NEW",
    "small": 7,
}
ROW = VALUE | {
    "at": datetime(2026, 1, 31, 8, tzinfo=UTC),
    "day": date(2026, 1, 31),
    "stock": [("cup", 3)],
    "any": '[1,{"a":null}]',
}


@pytest.fixture
def registry() -> Iterator[SchemaRegistryServer]:
    with SchemaRegistryServer() as server:
        server.register("address", ADDRESS, "JSON")
        yield server


def framed(number: int, value: Any) -> bytes:
    return b"\0" + number.to_bytes(4, "big") + json.dumps(value, separators=(",", ":")).encode()


def test_objects_of_a_registered_schema(registry: SchemaRegistryServer) -> None:
    references = [{"name": "address.json", "subject": "address", "version": 1}]
    number = registry.register("orders-value", ORDER, "JSON", references)
    cases = [VALUE, {"id": 2, "price": None}, {"price": 1}, {"id": "x"}]
    rows = decoded(Decode("json-schema", registry=registry.url), [framed(number, v) for v in cases])
    assert rows[:2] == [ROW, {"id": 2}]
    error = f"value is not a JSON object of the schema {number}"
    assert [row["quarantine_error"] for row in rows[2:]] == [error, error]


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        ({"type": "string"}, "no object with properties"),
        ({"$ref": "#/definitions/none"}, "reference.*to nothing"),
        ({"type": "object", "properties": {"next": {"$ref": "#"}}}, "contains itself"),
        ("no JSON", "is not valid"),
    ],
)
def test_schemas_that_cannot_be_columns(
    registry: SchemaRegistryServer, schema: Any, reason: str
) -> None:
    number = registry.register("orders-value", schema, "JSON")
    with pytest.raises(SchemaUnusable, match=reason):
        decoded(Decode("json-schema", registry=registry.url), [framed(number, {})])


def test_message_pack() -> None:
    fields = "id bigint, price decimal(9, 2), at timestamp, raw binary, sizes array<decimal(3, 1)>"
    at = datetime(2026, 1, 31, 8, tzinfo=UTC)
    good = {"id": 1, "price": "1.50", "at": at, "raw": b"\xff", "sizes": ["1.5"]}
    cases = [
        msgspec.msgpack.encode(good),
        msgspec.msgpack.encode({"at": "2026-01-31T08:00:00Z", "more": 1}),
        msgspec.msgpack.encode({"price": "1.505"}),
        msgspec.msgpack.encode({"id": 1}) + b"\0",
        b"\xc1",
        b"\x81\xa2\xff\xff\x01",
    ]
    rows = decoded(Decode("msgpack", schema=fields), cases)
    assert rows[0] == good | {"price": Decimal("1.50"), "sizes": [Decimal("1.5")]}
    assert rows[1] == {"at": at}
    error = "value is not a MessagePack map of the schema of decode"
    assert [row.get("quarantine_error") for row in rows[2:5]] == [error] * 3


def test_text() -> None:
    rows = decoded(Decode("text"), ["grüße".encode(), b"", None, b"\xff"])
    assert rows == [
        {"decoded": "grüße"},
        {"decoded": ""},
        {},
        {"value": b"\xff", "quarantine_error": "value is not text in UTF-8"},
    ]


def test_json_with_fields() -> None:
    rows = decoded(Decode("json", schema="id bigint"), [b'{"id": 1}', b"none"])
    assert rows[0] == {"id": 1}
    assert rows[1]["value"] == b"none"


CHANGES: list[tuple[dict[str, Any], dict[str, Any]]] = [
    (
        {"before": None, "after": {"id": 1, "name": "a"}, "op": "c", "source": {"ts_ms": 5}},
        {"id": 1, "name": "a", "__op": "c", "__deleted": False, "__source_ts_ms": 5},
    ),
    (
        {"before": {"id": 1, "name": "a"}, "after": None, "op": "d", "source": {"ts_ms": 6}},
        {"id": 1, "name": "a", "__op": "d", "__deleted": True, "__source_ts_ms": 6},
    ),
]


def test_debezium_in_json() -> None:
    settings = Decode("json", schema="id bigint, name string", envelope="debezium")
    plain = [json.dumps(change).encode() for change, _ in CHANGES]
    wrapped = [json.dumps({"schema": {}, "payload": change}).encode() for change, _ in CHANGES]
    rows = decoded(settings, [*plain, *wrapped, None, b"{}"])
    assert rows[:5] == [row for _, row in CHANGES] * 2 + [{}]
    assert "quarantine_error" in rows[5]


def test_debezium_in_avro(tmp_path: Path) -> None:
    row = {
        "type": "record",
        "name": "Value",
        "fields": [
            {"name": "id", "type": "long"},
            {"name": "name", "type": ["null", "string"]},
            {
                "name": "day",
                "type": ["null", {"type": "int", "connect.name": "io.debezium.time.Date"}],
            },
        ],
    }
    source = {"type": "record", "name": "Source", "fields": [{"name": "ts_ms", "type": "long"}]}
    envelope = {
        "type": "record",
        "name": "Envelope",
        "fields": [
            {"name": "before", "type": ["null", row]},
            {"name": "after", "type": ["null", "Value"]},
            {"name": "source", "type": source},
            {"name": "op", "type": "string"},
            {"name": "ts_ms", "type": ["null", "long"]},
        ],
    }
    path = tmp_path / "envelope.avsc"
    path.write_text(json.dumps(envelope))
    values: list[bytes] = []
    for change, _ in CHANGES:
        target = io.BytesIO()
        sides = {side: change[side] and change[side] | {"day": 1} for side in ("before", "after")}
        parsed = fastavro.parse_schema(envelope)
        fastavro.schemaless_writer(target, parsed, change | sides | {"ts_ms": None})
        values.append(target.getvalue())
    rows = decoded(Decode("avro", schema=str(path), envelope="debezium"), values)
    assert rows == [row | {"day": date(1970, 1, 2)} for _, row in CHANGES]
    path.write_text(json.dumps(row))
    with pytest.raises(SchemaUnusable, match="is not Debezium's envelope"):
        decoded(Decode("avro", schema=str(path), envelope="debezium"), values)


def test_a_schema_file_that_is_missing(tmp_path: Path) -> None:
    with pytest.raises(InvalidSetting, match=r"none\.avsc cannot be read"):
        decoded(Decode("avro", schema=str(tmp_path / "none.avsc")), [b""])
