"""Protobuf messages as columns, with a registry and with a file of descriptors."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.schema_registry import SchemaRegistryClient  # noqa: TID253
from confluent_kafka.schema_registry.confluent import meta_pb2  # noqa: TID253
from confluent_kafka.schema_registry.protobuf import ProtobufSerializer  # noqa: TID253
from confluent_kafka.serialization import MessageField, SerializationContext  # noqa: TID253
from google.protobuf import (
    descriptor_pb2,
    descriptor_pool,
    message_factory,
    struct_pb2,
    text_format,
    timestamp_pb2,
    wrappers_pb2,
)

from dagster_leasehold.assets.decode_settings import Decode
from dagster_leasehold.assets.errors import SchemaUnusable
from tests.schema_registry import SchemaRegistryServer
from tests.unit.assets.decoding.decoded_records import decoded

MONEY = """
name: "shop/money.proto" package: "shop" syntax: "proto3"
message_type { name: "Money"
  field { name: "units" number: 1 label: LABEL_OPTIONAL type: TYPE_INT64 } }
"""
ORDER = """
name: "shop/order.proto" package: "shop" syntax: "proto3"
dependency: "shop/money.proto"
dependency: "google/protobuf/timestamp.proto"
dependency: "google/protobuf/wrappers.proto"
dependency: "google/protobuf/struct.proto"
dependency: "confluent/meta.proto"
message_type { name: "Other" }
message_type { name: "Order"
  field { name: "id" number: 1 label: LABEL_OPTIONAL type: TYPE_UINT32 }
  field { name: "note" number: 2 label: LABEL_OPTIONAL type: TYPE_STRING
          proto3_optional: true oneof_index: 0 }
  field { name: "price" number: 3 label: LABEL_OPTIONAL type: TYPE_MESSAGE
          type_name: ".shop.Money" }
  field { name: "at" number: 4 label: LABEL_OPTIONAL type: TYPE_MESSAGE
          type_name: ".google.protobuf.Timestamp" }
  field { name: "tags" number: 5 label: LABEL_REPEATED type: TYPE_STRING }
  field { name: "lines" number: 6 label: LABEL_REPEATED type: TYPE_MESSAGE
          type_name: ".shop.Order.Line" }
  field { name: "stock" number: 7 label: LABEL_REPEATED type: TYPE_MESSAGE
          type_name: ".shop.Order.StockEntry" }
  field { name: "status" number: 8 label: LABEL_OPTIONAL type: TYPE_ENUM
          type_name: ".shop.Status" }
  field { name: "weight" number: 9 label: LABEL_OPTIONAL type: TYPE_MESSAGE
          type_name: ".google.protobuf.DoubleValue" }
  field { name: "more" number: 10 label: LABEL_OPTIONAL type: TYPE_MESSAGE
          type_name: ".google.protobuf.Struct" }
  field { name: "big" number: 11 label: LABEL_OPTIONAL type: TYPE_UINT64 }
  field { name: "raw" number: 12 label: LABEL_OPTIONAL type: TYPE_BYTES }
  nested_type { name: "Line"
    field { name: "article" number: 1 label: LABEL_OPTIONAL type: TYPE_STRING } }
  nested_type { name: "StockEntry" options { map_entry: true }
    field { name: "key" number: 1 label: LABEL_OPTIONAL type: TYPE_STRING }
    field { name: "value" number: 2 label: LABEL_OPTIONAL type: TYPE_INT32 } }
  oneof_decl { name: "_note" } }
enum_type { name: "Status" value { name: "NEW" number: 0 } value { name: "SENT" number: 1 } }
"""
NODE = """
name: "node.proto" syntax: "proto3"
message_type { name: "Node"
  field { name: "next" number: 1 label: LABEL_OPTIONAL type: TYPE_MESSAGE type_name: ".Node" } }
"""


def files(*texts: str) -> descriptor_pb2.FileDescriptorSet:
    result = descriptor_pb2.FileDescriptorSet()
    for module in (timestamp_pb2, wrappers_pb2, struct_pb2, descriptor_pb2, meta_pb2):
        module.DESCRIPTOR.CopyToProto(result.file.add())
    for text in texts:
        result.file.append(text_format.Parse(text, descriptor_pb2.FileDescriptorProto()))
    return result


@pytest.fixture(scope="module")
def types() -> dict[str, Any]:
    pool = descriptor_pool.DescriptorPool()
    for file in files(MONEY, ORDER, NODE).file:
        pool.AddSerializedFile(file.SerializeToString())
    names = ("shop.Order", "shop.Order.Line", "Node", "google.protobuf.Timestamp")
    messages = {name: pool.FindMessageTypeByName(name) for name in names}
    return {name: message_factory.GetMessageClass(each) for name, each in messages.items()}


@pytest.fixture
def registry() -> Iterator[SchemaRegistryServer]:
    with SchemaRegistryServer() as server:
        yield server


def order(types: dict[str, Any]) -> Any:
    message = types["shop.Order"](id=4_000_000_000, note="", tags=["a", "b"], status=1)
    message.price.units = 5
    message.at.FromDatetime(datetime(2026, 1, 31, 8, tzinfo=UTC))
    message.lines.add(article="cup")
    message.stock["cup"] = 3
    message.weight.value = 0.5
    message.more.update({"a": [1]})
    message.big = 2**64 - 1
    message.raw = b"\xff"
    return message


ROW: dict[str, Any] = {
    "id": 4_000_000_000,
    "note": "",
    "price": {"units": 5},
    "at": datetime(2026, 1, 31, 8, tzinfo=UTC),
    "tags": ["a", "b"],
    "lines": [{"article": "cup"}],
    "stock": [("cup", 3)],
    "status": "SENT",
    "weight": 0.5,
    "more": '{"a": [1.0]}',
    "big": Decimal(2**64 - 1),
    "raw": b"\xff",
}
EMPTY: dict[str, Any] = {
    "id": 0,
    "tags": [],
    "lines": [],
    "stock": [],
    "status": "NEW",
    "big": Decimal(0),
    "raw": b"",
}


def serialized(registry: SchemaRegistryServer, *messages: Any) -> list[bytes]:
    client = SchemaRegistryClient({"url": registry.url})
    options = {"use.deprecated.format": False}
    serialize = ProtobufSerializer(type(messages[0]), client, options)
    context = SerializationContext("orders", MessageField.VALUE)
    return [serialize(message, context) for message in messages]


def test_messages_of_a_registered_schema(
    registry: SchemaRegistryServer, types: dict[str, Any]
) -> None:
    values = serialized(registry, order(types), types["shop.Order"]())
    rows = decoded(Decode("protobuf", registry=registry.url), [*values, None, values[0]])
    assert rows == [ROW, EMPTY, {}, ROW]


def test_a_nested_message_type(registry: SchemaRegistryServer, types: dict[str, Any]) -> None:
    values = serialized(registry, types["shop.Order.Line"](article="cup"))
    assert decoded(Decode("protobuf", registry=registry.url), values) == [{"article": "cup"}]


def test_bad_messages(registry: SchemaRegistryServer, types: dict[str, Any]) -> None:
    [good] = serialized(registry, order(types))
    cases = [good, good[:-1], good[:5], good[:5] + b"\x02\x12" + good[7:], good[:5] + b"\xff"]
    rows = decoded(Decode("protobuf", registry=registry.url), cases)
    assert rows[0] == ROW
    errors = [row["quarantine_error"] for row in rows[1:]]
    number = int.from_bytes(good[1:5], "big")
    assert errors[0] == f"value is not a Protobuf message shop.Order of the schema {number}"
    assert errors[2] == f"value names the message type 9, which schema {number} lacks"
    assert all("schema" in error for error in errors)


def test_a_file_of_descriptors(tmp_path: Path, types: dict[str, Any]) -> None:
    path = tmp_path / "order.desc"
    path.write_bytes(files(MONEY, ORDER).SerializeToString())
    settings = Decode("protobuf", schema=str(path), message="shop.Order")
    rows = decoded(settings, [order(types).SerializeToString(), b"\xff"])
    assert rows[0] == ROW
    assert rows[1] == {
        "value": b"\xff",
        "quarantine_error": "value is not a Protobuf message shop.Order of the schema 'order.desc'",
    }
    with pytest.raises(SchemaUnusable, match=r"no message type 'shop\.None'"):
        decoded(Decode("protobuf", schema=str(path), message="shop.None"), [b""])


def test_a_type_that_contains_itself(tmp_path: Path) -> None:
    path = tmp_path / "node.desc"
    path.write_bytes(files(NODE).SerializeToString())
    with pytest.raises(SchemaUnusable, match="contains itself"):
        decoded(Decode("protobuf", schema=str(path)), [b""])
