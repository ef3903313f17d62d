"""The declaration of how a stream's records become columns."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import field
from typing import Annotated, Any, Literal

from pydantic import Field

from dagster_leasehold.assets.declared import Declared, declared
from dagster_leasehold.lease_store.errors import InvalidSetting, shown, without_secrets

Format = Literal["avro", "protobuf", "json-schema", "json", "msgpack", "text"]
KeyFormat = Literal["avro", "protobuf", "json-schema", "text"]
REGISTERED = ("avro", "protobuf", "json-schema")
_DDL = ("json", "msgpack")
_SECRET = re.compile(r"password|secret|token$|user\.info", re.IGNORECASE)
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)


@declared
class Decode(Declared):
    """How the values of records, and perhaps the keys, become columns.

    A string stands for the format: `decode="avro"`. The schemas of `avro`, `protobuf` and
    `json-schema` come from a schema registry, or from the file `schema`.

    Raises:
        InvalidSetting: the settings contradict each other, or contain a secret.

    Examples:
        >>> Decode("avro", registry="http://registry:8081", key="avro").key
        'avro'
    """

    format: Annotated[Format, Field(examples=["avro"])]
    """`avro`, `protobuf`, `json-schema`, `json`, `msgpack` or `text`."""
    registry: Annotated[str, Field(examples=["https://registry:8081"])] = ""
    """The URL of the schema registry; by default `SCHEMA_REGISTRY_URL` of the environment."""
    client: Mapping[str, str | int | float | bool] = field(
        default_factory=dict[str, Any], hash=False
    )
    """Properties of Confluent's client, such as `ssl.ca.location`."""
    secrets: Mapping[str, str] = field(default_factory=dict[str, str], hash=False)
    """Secret properties, such as `bearer.auth.token`, each with its environment variable."""
    schema: Annotated[str, Field(examples=["schemas/order.avsc"])] = ""
    """Without a registry: the file of the schema or the Protobuf descriptors; for `json` and
    `msgpack` the fields as DDL text."""
    message: Annotated[str, Field(examples=["shop.Order"])] = ""
    """The Protobuf message in the file."""
    key: Annotated[KeyFormat | None, Field(examples=["avro"])] = None
    """The format of keys, whose columns begin with `key_`."""
    envelope: Literal["debezium"] | None = None
    """`debezium` for changes, whose rows become the columns."""
    prefix: Annotated[str, Field(examples=["order_"])] = ""
    """A prefix of the columns' names, for fields that share the name of a record's column."""

    def __post_init__(self) -> None:
        _check_client(self.client)
        _check_secrets(self.secrets)
        if without_secrets(self.registry) != self.registry or "@" in self.registry:
            raise InvalidSetting(
                "decode.registry contains a login: under secrets, set basic.auth.user.info to the "
                "name of an environment variable that contains it."
            )
        if self.format in _DDL and not self.schema:
            raise InvalidSetting(
                f"decode.schema is missing: {self.format} needs the fields, such as `id bigint`."
            )
        if self.registry and (self.schema or self.format not in REGISTERED) and not self.key:
            raise InvalidSetting(
                f"decode.registry is not used for {self.format} with these settings: remove it, or "
                "remove schema."
            )
        if self.format == "text" and (self.schema or self.envelope):
            raise InvalidSetting("decode.format is text, which has no schema and no envelope.")
        if self.format == "msgpack" and self.envelope:
            raise InvalidSetting("decode.envelope is not for msgpack: use json or avro.")
        if self.message and not (self.format == "protobuf" and self.schema):
            raise InvalidSetting("decode.message is only for protobuf with a schema file.")

    @property
    def registered(self) -> bool:
        """True if the schemas of values come from a registry."""
        return self.format in REGISTERED and not self.schema

    @property
    def schema_file(self) -> str:
        """The path of the schema; empty without a file."""
        return self.schema if self.format in REGISTERED else ""

    @property
    def modules(self) -> tuple[str, ...]:
        """The modules that Spark's workers need for decoding."""
        formats = {self.format, self.key}
        modules = ["numpy", "msgspec", *(["fastavro"] if "avro" in formats else [])]
        registered = self.key in REGISTERED or self.registered
        return (*modules, *(["confluent_kafka", "authlib"] if registered else []))


def _check_client(client: Mapping[str, Any]) -> None:
    for name, value in client.items():
        if name == "url":
            raise InvalidSetting("decode.client has url: set decode.registry instead.")
        if _SECRET.search(name) or without_secrets(str(value)) != str(value):
            raise InvalidSetting(
                f"decode.client has {shown(name)}, which is a secret: under secrets, set it to the "
                "name of an environment variable that contains it."
            )


def _check_secrets(secrets: Mapping[str, str]) -> None:
    for name, variable in secrets.items():
        if not _VARIABLE.fullmatch(variable):
            raise InvalidSetting(
                f"decode.secrets has {shown(name)} without the name of an environment variable: "
                "name the variable that contains the secret."
            )


def decode_settings(value: Any) -> Any:
    """Turn the name of a format into settings; return other values unchanged."""
    return {"format": value} if isinstance(value, str) else value
