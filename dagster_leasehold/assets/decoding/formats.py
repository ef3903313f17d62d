"""The formats of a column, and the decoder for each schema."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from dagster_leasehold.assets.decoding.payloads import Decoder
from dagster_leasehold.assets.decoding.schema_registry import RegisteredSchema, SchemaRegistry
from dagster_leasehold.assets.decoding.wire_format import SchemaKey
from dagster_leasehold.assets.errors import SchemaUnusable, TransformUnusable
from dagster_leasehold.lease_store.errors import shown

_KINDS = {"avro": "AVRO", "protobuf": "PROTOBUF", "json-schema": "JSON"}
"""The registry's name for each format."""


@dataclass(frozen=True)
class ColumnFormat:
    """The format of values or keys, as a value that can be sent to other processes.

    Attributes:
        name: the format.
        registry: the registry with the schemas; None without one.
        schema: the content of the schema's file, or the columns as DDL text.
        message: the full name of the Protobuf message in the file of descriptors.
        schema_file: the name of the file, for messages.
        debezium: True if the values are Debezium's envelopes.
    """

    name: str
    registry: SchemaRegistry | None = None
    schema: bytes = b""
    message: str = ""
    schema_file: str = ""
    debezium: bool = False

    @property
    def has_header(self) -> bool:
        """True if each value begins with the id of its schema."""
        return self.registry is not None

    @property
    def has_paths(self) -> bool:
        """True if the path of a message type follows the id."""
        return self.has_header and self.name == "protobuf"

    def schema_name(self, key: SchemaKey) -> str:
        """Return the name of a schema for messages."""
        if self.registry is not None:
            return f"schema {key.number}"
        return f"schema {shown(self.schema_file)}" if self.schema_file else "schema of decode"

    def decoder(self, key: SchemaKey, column: str) -> Decoder | str:
        """Return the decoder for a schema, or an error message for its records.

        Raises:
            SchemaUnusable: the schema is not valid, or cannot become columns.
            RegistryUnavailable: the schema cannot be fetched.
            TransformUnusable: a library is missing.
        """
        try:
            decoder = self._decoder(key, column)
        except ModuleNotFoundError as missing:
            raise TransformUnusable(
                f"Decoding {self.name} needs the library {missing.name}, which Spark's workers "
                "lack: install dagster-leasehold[registry] on them."
            ) from missing
        except RecursionError:
            raise SchemaUnusable(
                f"The types of the {self.schema_name(key)} are nested too deeply: decode the "
                "records in a transform."
            ) from None
        if isinstance(decoder, str) or not self.debezium:
            return decoder
        from dagster_leasehold.assets.decoding.debezium import DebeziumDecoder

        return DebeziumDecoder(decoder, self.schema_name(key))

    def _decoder(self, key: SchemaKey, column: str) -> Decoder | str:
        if self.registry is None:
            return _OF_FILES[self.name](self, self.schema_name(key))
        registered = self.registry.schema(key.number, _KINDS[self.name])
        if registered is None:
            return f"{column} has the schema id {key.number}, which the schema registry lacks"
        try:
            return _REGISTERED_DECODERS[self.name](registered, key, self.schema_name(key))
        except LookupError:
            path = ".".join(map(str, key.path))
            return f"{column} names the message type {path}, which schema {key.number} lacks"


def _registered_avro(schema: RegisteredSchema, _: SchemaKey, name: str) -> Decoder:
    from dagster_leasehold.assets.decoding.avro_schemas import AvroDecoder

    return AvroDecoder(schema.text, [*schema.references.values()], name)


def _registered_protobuf(schema: RegisteredSchema, key: SchemaKey, name: str) -> Decoder:
    from dagster_leasehold.assets.decoding.protobuf_messages import ProtobufDecoder, registered_type

    return ProtobufDecoder(registered_type(schema.text, schema.references, key.path, name), name)


def _registered_json(schema: RegisteredSchema, _: SchemaKey, name: str) -> Decoder:
    from dagster_leasehold.assets.decoding.json_schemas import json_schema_decoder

    return json_schema_decoder(schema.text, schema.references, name)


def _avro(form: ColumnFormat, name: str) -> Decoder:
    from dagster_leasehold.assets.decoding.avro_schemas import AvroDecoder

    return AvroDecoder(form.schema.decode(), (), name)


def _protobuf(form: ColumnFormat, name: str) -> Decoder:
    from dagster_leasehold.assets.decoding.protobuf_messages import ProtobufDecoder, described_type

    return ProtobufDecoder(described_type(form.schema, form.message, name), name)


def _json_schema(form: ColumnFormat, name: str) -> Decoder:
    from dagster_leasehold.assets.decoding.json_schemas import json_schema_decoder

    return json_schema_decoder(form.schema.decode(), {}, name)


def _json(form: ColumnFormat, name: str) -> Decoder:
    from dagster_leasehold.assets.arrow_parsing.field_types import fields_of
    from dagster_leasehold.assets.decoding.debezium import PayloadDecoder, json_envelope
    from dagster_leasehold.assets.decoding.json_values import JsonDecoder

    fields = fields_of(form.schema.decode())
    if form.debezium:
        return PayloadDecoder(JsonDecoder(json_envelope(fields), name))
    return JsonDecoder(fields, name)


def _message_pack(form: ColumnFormat, name: str) -> Decoder:
    from dagster_leasehold.assets.arrow_parsing.field_types import fields_of
    from dagster_leasehold.assets.decoding.json_values import MessagePackDecoder

    return MessagePackDecoder(fields_of(form.schema.decode()), name)


def _text(_: ColumnFormat, __: str) -> Decoder:
    from dagster_leasehold.assets.decoding.json_values import TextDecoder

    return TextDecoder()


_REGISTERED_DECODERS: dict[str, Callable[[RegisteredSchema, SchemaKey, str], Decoder]] = {
    "avro": _registered_avro,
    "protobuf": _registered_protobuf,
    "json-schema": _registered_json,
}
_OF_FILES: dict[str, Callable[[ColumnFormat, str], Decoder]] = {
    "avro": _avro,
    "protobuf": _protobuf,
    "json-schema": _json_schema,
    "json": _json,
    "msgpack": _message_pack,
    "text": _text,
}
