"""Records whose schemas a registry has, as Confluent's own serializers write them."""

from __future__ import annotations

import json
import logging
import pickle
import ssl
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import schema_registry as confluent  # noqa: TID253
from confluent_kafka.schema_registry.avro import AvroSerializer  # noqa: TID253
from confluent_kafka.serialization import MessageField, SerializationContext  # noqa: TID253

from dagster_leasehold.assets.decode_settings import Decode
from dagster_leasehold.assets.decoding.stream_decoding import decoding
from dagster_leasehold.assets.errors import RegistryUnavailable, SchemaUnusable
from dagster_leasehold.lease_store.errors import InvalidSetting
from tests.certificates import Authority
from tests.schema_registry import SchemaRegistryServer, login
from tests.unit.assets.decoding.decoded_records import decoded, records

PASSWORD = "hush-4711"
ORDER = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "id", "type": "long"},
        {
            "name": "amount",
            "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2},
        },
    ],
}
NEWER_ORDER = ORDER | {
    "fields": [*ORDER["fields"], {"name": "note", "type": ["null", "string"], "default": None}]
}


@pytest.fixture
def registry() -> Iterator[SchemaRegistryServer]:
    with SchemaRegistryServer() as server:
        yield server


def avro(
    registry: SchemaRegistryServer, schema: Any, *values: Any, field: str = "value"
) -> list[bytes]:
    client = confluent.SchemaRegistryClient({"url": registry.url})
    text = schema if isinstance(schema, confluent.Schema) else json.dumps(schema)
    serialize = AvroSerializer(client, text)
    kind = MessageField.VALUE if field == "value" else MessageField.KEY
    return [serialize(value, SerializationContext("orders", kind)) for value in values]


def order(number: int, **more: Any) -> dict[str, Any]:
    return {"id": number, "amount": Decimal("1.50")} | more


def test_several_schemas_in_one_batch(registry: SchemaRegistryServer) -> None:
    old = avro(registry, ORDER, order(1), order(2))
    new = avro(registry, NEWER_ORDER, order(3, note="gift"), order(4, note=None))
    settings = Decode("avro", registry=registry.url)
    registry.requests.clear()
    assert decoded(settings, [old[0], new[0], None, old[1], new[1]]) == [
        order(1),
        order(3, note="gift"),
        {},
        order(2),
        order(4),
    ]
    assert decoded(settings, old) == [order(1), order(2)]
    assert registry.requests == ["GET /schemas/ids/1", "GET /schemas/ids/2"]


def test_columns_stay_once_a_schema_has_added_them(registry: SchemaRegistryServer) -> None:
    old, new = (avro(registry, schema, order(1))[0] for schema in (ORDER, NEWER_ORDER))
    decode = decoding(Decode("avro", registry=registry.url))
    tables = [decode(records([value])) for value in (old, new, old)]
    assert "note" not in tables[0].schema.names
    assert tables[1].schema == tables[2].schema


def test_bad_records_go_to_quarantine_with_their_id(registry: SchemaRegistryServer) -> None:
    [good] = avro(registry, ORDER, order(1))
    cases = [good, b"\0\0\0\0\x63" + good[5:], good + b"\0", b"", b"\1" + good[1:], b"{}"]
    rows = decoded(Decode("avro", registry=registry.url), cases)
    assert rows[0] == order(1)
    assert [row["value"] for row in rows[1:]] == cases[1:]
    assert [row["quarantine_error"] for row in rows[1:]] == [
        "value has the schema id 99, which the schema registry lacks",
        "value is not Avro of the schema 1",
        *["value does not begin with the id of a schema"] * 3,
    ]


def test_references(registry: SchemaRegistryServer) -> None:
    address = {"type": "record", "name": "Address", "fields": [{"name": "city", "type": "string"}]}
    client = confluent.SchemaRegistryClient({"url": registry.url})
    client.register_schema("address", confluent.Schema(json.dumps(address), "AVRO"))
    customer = {
        "type": "record",
        "name": "Customer",
        "fields": [{"name": "home", "type": "Address"}],
    }
    reference = confluent.SchemaReference("Address", "address", 1)
    schema = confluent.Schema(json.dumps(customer), "AVRO", [reference])
    values = avro(registry, schema, {"home": {"city": "Bonn"}})
    assert decoded(Decode("avro", registry=registry.url), values) == [{"home": {"city": "Bonn"}}]


def test_keys(registry: SchemaRegistryServer) -> None:
    key_schema = {"type": "record", "name": "Key", "fields": [{"name": "id", "type": "long"}]}
    keys = [*avro(registry, key_schema, {"id": 7}, field="key"), None, b"no key"]
    values = avro(registry, ORDER, order(1), order(2), order(3))
    rows = decoded(Decode("avro", registry=registry.url, key="avro"), values, keys)
    assert rows[:2] == [order(1, key_id=7), order(2)]
    assert rows[2]["quarantine_error"] == "key does not begin with the id of a schema"
    assert rows[2]["value"] == values[2]
    assert decoded(Decode("avro", registry=registry.url, key="text"), values[:1], [b"a"]) == [
        order(1, key_decoded="a")
    ]


@pytest.mark.parametrize("failure", [500, 503, 429, 404])
def test_a_registry_that_fails_holds_the_shard(
    registry: SchemaRegistryServer, failure: int
) -> None:
    values = avro(registry, ORDER, order(1))
    registry.failure = failure
    settings = Decode("avro", registry=registry.url, client={"max.retries": 0})
    with pytest.raises(RegistryUnavailable, match=f"answers with the error {failure}"):
        decoded(settings, values)
    registry.failure = 0
    assert decoded(settings, values) == [order(1)]


def test_a_registry_that_does_not_answer_holds_the_shard() -> None:
    settings = Decode("avro", registry="http://127.0.0.1:9", client={"max.retries": 0})
    with pytest.raises(RegistryUnavailable, match=r"does not answer \(ConnectError\)"):
        decoded(settings, [b"\0\0\0\0\1\0"])


@pytest.mark.parametrize(
    ("secrets", "value", "header"),
    [
        ({"basic.auth.user.info": "REGISTRY_LOGIN"}, f"ann:{PASSWORD}", login("ann", PASSWORD)),
        ({"bearer.auth.token": "REGISTRY_LOGIN"}, PASSWORD, f"Bearer {PASSWORD}"),
    ],
)
def test_secrets_come_from_the_environment(
    registry: SchemaRegistryServer,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    secrets: dict[str, str],
    value: str,
    header: str,
) -> None:
    caplog.set_level(logging.DEBUG)
    values = avro(registry, ORDER, order(1))
    registry.authorization = header
    settings = Decode("avro", registry=registry.url, secrets=secrets)
    with pytest.raises(RegistryUnavailable, match=r"REGISTRY_LOGIN.*is not set"):
        decoded(settings, values)
    monkeypatch.setenv("REGISTRY_LOGIN", "ann:wrong")
    with pytest.raises(RegistryUnavailable, match=r"refuses access \(401\)") as refused:
        decoded(settings, values)
    monkeypatch.setenv("REGISTRY_LOGIN", value)
    assert decoded(settings, values) == [order(1)]
    transform = decoding(settings)
    texts = [repr(settings), repr(transform), str(refused.value), repr(refused.value.__context__)]
    texts.append(caplog.text)
    assert not any(PASSWORD in text or "wrong" in text for text in texts)
    assert PASSWORD.encode() not in pickle.dumps(transform)


@pytest.mark.parametrize("value", [f"{PASSWORD}\n", f"{PASSWORD}é"])
def test_a_malformed_secret_is_not_quoted(
    registry: SchemaRegistryServer, monkeypatch: pytest.MonkeyPatch, value: str
) -> None:
    monkeypatch.setenv("REGISTRY_LOGIN", value)
    for name in ("bearer.auth.token", "basic.auth.user.info"):
        settings = Decode("avro", registry=registry.url, secrets={name: "REGISTRY_LOGIN"})
        with pytest.raises(RegistryUnavailable) as error:
            decoded(settings, [b"\0\0\0\0\1\0"])
        assert PASSWORD not in str(error.value)


def test_a_certificate_identifies_the_client(tmp_path: Path) -> None:
    authority = Authority(tmp_path / "authority")
    own, own_key = authority.issue("registry")
    certificate, key = authority.issue("client")
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(own, own_key)
    tls.load_verify_locations(authority.certificate)
    tls.verify_mode = ssl.CERT_REQUIRED
    trust = {"ssl.ca.location": str(authority.certificate), "max.retries": 0}
    identity = {"ssl.certificate.location": str(certificate), "ssl.key.location": str(key)}
    with SchemaRegistryServer(tls) as registry, SchemaRegistryServer() as plain:
        [value] = avro(plain, ORDER, order(1))
        registry.register("orders-value", json.dumps(ORDER))
        with pytest.raises(RegistryUnavailable, match="does not answer"):
            decoded(Decode("avro", registry=registry.url, client=trust), [value])
        settings = Decode("avro", registry=registry.url, client=trust | identity)
        assert decoded(settings, [value]) == [order(1)]


def test_the_address_can_be_in_the_environment(
    registry: SchemaRegistryServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = avro(registry, ORDER, order(1))
    with pytest.raises(RegistryUnavailable, match="SCHEMA_REGISTRY_URL"):
        decoded(Decode("avro"), values)
    monkeypatch.setenv("SCHEMA_REGISTRY_URL", registry.url)
    assert decoded(Decode("avro"), values) == [order(1)]


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"registry": "http://ann:hush@registry"}, "contains a login"),
        ({"client": {"ssl.key.password": "hush"}}, "is a secret"),
        ({"secrets": {"basic.auth.user.info": "ann:hush"}}, "the name of an environment variable"),
        ({"format": "json"}, "schema is missing"),
        ({"format": "xml"}, "format"),
    ],
)
def test_refused_settings(settings: dict[str, Any], reason: str) -> None:
    with pytest.raises(InvalidSetting, match=reason) as refused:
        Decode(**({"format": "avro"} | settings))
    assert "hush" not in str(refused.value)


@pytest.mark.parametrize(
    ("later", "reason"),
    [
        ({"name": "id", "type": "string"}, "'id' is long.*string"),
        ({"name": "ID", "type": "long"}, "named 'id' and 'ID'"),
        ({"name": "Shard_Id", "type": "long"}, "has the field 'Shard_Id'"),
        ({"name": "_partition", "type": "long"}, "'_partition' has a name that Iceberg reserves"),
    ],
)
def test_a_schema_that_no_table_can_follow(
    registry: SchemaRegistryServer, later: Any, reason: str
) -> None:
    values = avro(registry, ORDER, order(1))
    changed = {"type": "record", "name": "Order", "fields": [later]}
    values += avro(registry, changed, {later["name"]: "a" if later["type"] == "string" else 1})
    with pytest.raises(SchemaUnusable, match=f"schema 2.*{reason}"):
        decoded(Decode("avro", registry=registry.url), values)


def test_fields_with_the_names_of_records_get_a_prefix(registry: SchemaRegistryServer) -> None:
    schema = {
        "type": "record",
        "name": "Pair",
        "fields": [{"name": "key", "type": "long"}, {"name": "value", "type": "string"}],
    }
    values = avro(registry, schema, {"key": 1, "value": "a"})
    with pytest.raises(SchemaUnusable, match="prefix: order_"):
        decoded(Decode("avro", registry=registry.url), values)
    rows = decoded(Decode("avro", registry=registry.url, prefix="order_"), values)
    assert rows == [{"order_key": 1, "order_value": "a"}]


def test_a_schema_of_another_format(registry: SchemaRegistryServer) -> None:
    registry.register("orders-value", '{"type": "object"}', "JSON")
    with pytest.raises(SchemaUnusable, match="of the type JSON, and the stream decodes AVRO"):
        decoded(Decode("avro", registry=registry.url), [b"\0\0\0\0\1{}"])


@pytest.mark.parametrize(("name", "kind"), [("avro", "AVRO"), ("json-schema", "JSON")])
def test_a_schema_of_endless_depth(registry: SchemaRegistryServer, name: Any, kind: str) -> None:
    depth = 20_000
    text = '{"type":"array","items":' * depth + '"long"' + "}" * depth
    if kind == "JSON":
        text = f'{{"type":"object","properties":{{"a":{text}}}}}'
    registry.register("orders-value", text, kind)
    with pytest.raises(SchemaUnusable, match="nested too deeply"):
        decoded(Decode(name, registry=registry.url), [b"\0\0\0\0\1\0"])


def test_nested_fields_follow(registry: SchemaRegistryServer) -> None:
    def nested(*names: str) -> Any:
        fields = [{"name": name, "type": "long"} for name in names]
        part = {"type": "record", "name": "Part", "fields": fields}
        columns = [
            {"name": "part", "type": part},
            {"name": "parts", "type": {"type": "array", "items": "Part"}},
        ]
        return {"type": "record", "name": "Whole", "fields": columns}

    one, two = {"a": 1}, {"b": 2, "a": 3}
    values = avro(registry, nested("a"), {"part": one, "parts": [one]})
    values += avro(registry, nested("b", "a"), {"part": two, "parts": [two, two]})
    assert decoded(Decode("avro", registry=registry.url), [*values, values[0]]) == [
        {"part": one | {"b": None}, "parts": [one | {"b": None}]},
        {"part": two, "parts": [two, two]},
        {"part": one | {"b": None}, "parts": [one | {"b": None}]},
    ]


def test_wider_types_follow(registry: SchemaRegistryServer) -> None:
    kinds = [("int", 1), ("long", 2**40)]
    values: list[bytes] = []
    for kind, value in kinds:
        schema = {"type": "record", "name": "N", "fields": [{"name": "n", "type": kind}]}
        values += avro(registry, schema, {"n": value})
    assert decoded(Decode("avro", registry=registry.url), values) == [{"n": 1}, {"n": 2**40}]
