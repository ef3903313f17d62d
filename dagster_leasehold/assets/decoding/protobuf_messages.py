"""Protobuf: the columns of a message type, whose descriptor comes with the schema.

A field with presence is null if it is absent; others have their default. Enums become the names of
their values. Wrappers become nullable columns, timestamps become times, and `Struct` and `Any`
become JSON text.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any

import numpy as np
import pyarrow as pa
from google.protobuf import descriptor_pb2, descriptor_pool, json_format, message_factory
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import DecodeError

from dagster_leasehold.assets.decoding.payloads import Mask, Payloads
from dagster_leasehold.assets.errors import SchemaUnusable
from dagster_leasehold.lease_store.errors import one_line, shown

_KINDS = {
    FieldDescriptor.CPPTYPE_BOOL: pa.bool_(),
    FieldDescriptor.CPPTYPE_INT32: pa.int32(),
    FieldDescriptor.CPPTYPE_UINT32: pa.int64(),
    FieldDescriptor.CPPTYPE_INT64: pa.int64(),
    FieldDescriptor.CPPTYPE_UINT64: pa.decimal128(20, 0),
    FieldDescriptor.CPPTYPE_FLOAT: pa.float32(),
    FieldDescriptor.CPPTYPE_DOUBLE: pa.float64(),
    FieldDescriptor.CPPTYPE_STRING: pa.string(),
    FieldDescriptor.CPPTYPE_ENUM: pa.string(),
}
_TIMESTAMP = "google.protobuf.Timestamp"
_WRAPPERS = frozenset(
    f"google.protobuf.{kind}Value"
    for kind in ("Double", "Float", "Int64", "UInt64", "Int32", "UInt32", "Bool", "String", "Bytes")
)
_AS_JSON = frozenset(f"google.protobuf.{kind}" for kind in ("Struct", "Value", "ListValue", "Any"))
_KNOWN_FILE = re.compile(r"(google/protobuf|google/type|confluent|confluent/types?)/(\w+)\.proto")


class ProtobufDecoder:
    """Decodes Protobuf messages of one type.

    Args:
        message: the type of the messages.
        name: the schema in messages, such as `schema 7`.

    Raises:
        SchemaUnusable: the type cannot become columns.
    """

    def __init__(self, message: Descriptor, name: str) -> None:
        self._descriptor = message
        self._parse: Callable[[bytes], Any] = message_factory.GetMessageClass(message).FromString
        self._empty = message_factory.GetMessageClass(message)()
        self._fields = [*message.fields]
        self.fields = pa.schema(_struct(message, (), name))
        self.complaint = f"is not a Protobuf message {message.full_name} of the {name}"

    def decode(self, payloads: Payloads) -> tuple[list[pa.Array], Mask]:
        """Return the columns, and a mask of the values that do not conform to the schema."""
        bad = np.zeros(len(payloads), np.bool_)
        messages: list[Any] = []
        for index, value in enumerate(payloads):
            try:
                messages.append(self._parse(value))
            except DecodeError:
                messages.append(self._empty)
                bad[index] = True
        columns = [
            _column(messages, each, field.type)
            for each, field in zip(self._fields, self.fields, strict=True)
        ]
        return columns, bad


def registered_type(
    text: str, references: Mapping[str, str], path: Sequence[int], name: str
) -> Descriptor:
    """Return a message type of a registered schema.

    Args:
        text: the serialized file descriptor in base 64.
        references: the descriptors of the files that it imports, by file name.
        path: the index of each type in the type around it, beginning with the outermost type.
        name: the name of the schema for messages.

    Raises:
        SchemaUnusable: the descriptor is not valid.
        LookupError: the schema has no type at this path.
    """
    pool = descriptor_pool.DescriptorPool()
    try:
        for file_name, other in references.items():
            _add(pool, other, file_name)
        file = _add(pool, text, f"{name}.proto")
        types: Any = pool.FindFileByName(file.name).message_types_by_name
    except (ValueError, TypeError, KeyError, ImportError, DecodeError, binascii.Error) as error:
        raise SchemaUnusable(
            f"The Protobuf {name} cannot be read as a serialized descriptor "
            f"({one_line(str(error))}): use a registry that answers with `format=serialized`."
        ) from error
    declared = [types[each.name] for each in file.message_type]
    descriptor: Any = None
    for part in path:
        if not 0 <= part < len(declared):
            raise LookupError(f"no message type {part}")
        descriptor = declared[part]
        declared = [*descriptor.nested_types]
    return descriptor


def described_type(descriptors: bytes, message: str, name: str) -> Descriptor:
    """Return a message type of a file of descriptors, as `protoc --descriptor_set_out` writes it.

    Args:
        descriptors: the content of the file.
        message: the full name of the type; can be empty if the last file has only one.
        name: the name of the file for messages.

    Raises:
        SchemaUnusable: the file is not valid, or lacks the type.
    """
    pool = descriptor_pool.DescriptorPool()
    try:
        files = descriptor_pb2.FileDescriptorSet.FromString(descriptors).file
        for file in files:
            pool.Add(file)  # pyright: ignore[reportDeprecated]
        if not message and files and len(files[-1].message_type) == 1:
            package = files[-1].package
            message = ".".join(filter(None, (package, files[-1].message_type[0].name)))
        return pool.FindMessageTypeByName(message)
    except (ValueError, TypeError, DecodeError, KeyError) as error:
        raise SchemaUnusable(
            f"The {name} has no message type {shown(message)} that can be used "
            f"({one_line(str(error))}): write the file with `protoc --include_imports "
            "--descriptor_set_out`, and name the type in `message`."
        ) from error


def _add(pool: Any, text: str, file_name: str) -> descriptor_pb2.FileDescriptorProto:
    file = descriptor_pb2.FileDescriptorProto.FromString(base64.b64decode(text, validate=True))
    # The registry names the file `default`; other files import it by the name of the reference.
    file.name = file_name
    for imported in file.dependency:
        _add_known(pool, imported)
    pool.Add(file)
    return file


def _add_known(pool: Any, file_name: str) -> None:
    """Add a file that every schema can import without a reference, and the files it imports."""
    match = _KNOWN_FILE.fullmatch(file_name)
    if match is None:
        return
    package = match[1].replace("confluent", "confluent_kafka.schema_registry.confluent")
    module = import_module(f"{package}.{match[2]}_pb2".replace("/", "."))
    for other in module.DESCRIPTOR.dependencies:
        _add_known(pool, other.name)
    pool.AddSerializedFile(module.DESCRIPTOR.serialized_pb)


def _struct(message: Descriptor, within: tuple[str, ...], name: str) -> list[pa.Field]:
    if message.full_name in within:
        raise SchemaUnusable(
            f"The type {message.full_name} of the {name} contains itself, so it cannot become a "
            "column: decode the records in a transform."
        )
    around = (*within, message.full_name)
    return [pa.field(each.name, _type(each, around, name)) for each in message.fields]


def _type(field: FieldDescriptor, within: tuple[str, ...], name: str) -> pa.DataType:
    if _is_map(field):
        key, value = _entry(field)
        return pa.map_(_single(key, within, name), _single(value, within, name))
    single = _single(field, within, name)
    return pa.list_(single) if _is_repeated(field) else single


def _single(field: FieldDescriptor, within: tuple[str, ...], name: str) -> pa.DataType:
    if field.type == FieldDescriptor.TYPE_BYTES:
        return pa.binary()
    message = field.message_type
    if message is None:
        return _KINDS[field.cpp_type]
    if message.full_name == _TIMESTAMP:
        return pa.timestamp("us", tz="UTC")
    if message.full_name in _AS_JSON:
        return pa.string()
    if message.full_name in _WRAPPERS:
        return _single(message.fields[0], within, name)
    return pa.struct(_struct(message, within, name))


def _is_repeated(field: FieldDescriptor) -> bool:
    # Older releases have the label instead.
    either: Any = field
    if hasattr(either, "is_repeated"):
        return bool(either.is_repeated)
    return either.label == FieldDescriptor.LABEL_REPEATED


def _is_map(field: FieldDescriptor) -> bool:
    message = field.message_type
    return message is not None and message.GetOptions().map_entry


def _entry(field: FieldDescriptor) -> tuple[FieldDescriptor, FieldDescriptor]:
    """Return the fields of a map's entries, the key and the value."""
    message = field.message_type
    assert message is not None
    return message.fields_by_name["key"], message.fields_by_name["value"]


def _column(messages: Sequence[Any], field: FieldDescriptor, kind: Any) -> pa.Array:
    """Return a field of some messages as a column; None stands for an absent message."""
    name = field.name
    if _is_map(field):
        key, value = _entry(field)
        maps = [() if each is None else getattr(each, name).items() for each in messages]
        pairs = [pair for each in maps for pair in each]
        keys = _values([pair[0] for pair in pairs], key, kind.key_type)
        items = _values([pair[1] for pair in pairs], value, kind.item_type)
        return pa.MapArray.from_arrays(_offsets(maps), keys, items, type=kind)
    if _is_repeated(field):
        lists = [() if each is None else getattr(each, name) for each in messages]
        items = _values([item for each in lists for item in each], field, kind.value_type)
        return pa.ListArray.from_arrays(_offsets(lists), items, type=kind)
    if field.has_presence:
        values = [
            getattr(each, name) if each is not None and each.HasField(name) else None
            for each in messages
        ]
    else:
        values = [None if each is None else getattr(each, name) for each in messages]
    return _values(values, field, kind)


def _values(values: list[Any], field: FieldDescriptor, kind: Any) -> pa.Array:
    """Convert values of a field to a column; None becomes null."""
    message = field.message_type
    if message is None:
        if field.enum_type is not None:
            names = field.enum_type.values_by_number
            labels = {number: each.name for number, each in names.items()}
            values = [None if each is None else labels.get(each, str(each)) for each in values]
        return pa.array(values, kind)
    if message.full_name == _TIMESTAMP:
        return pa.array([None if each is None else _microseconds(each) for each in values], kind)
    if message.full_name in _AS_JSON:
        return pa.array([None if each is None else _json_text(each) for each in values], kind)
    if message.full_name in _WRAPPERS:
        return pa.array([None if each is None else each.value for each in values], kind)
    columns = [_column(values, each, kind.field(at).type) for at, each in enumerate(message.fields)]
    absent = pa.array([each is None for each in values], pa.bool_())
    if not columns:
        return pa.array([None if each is None else {} for each in values], kind)
    return pa.StructArray.from_arrays(columns, fields=[*kind], mask=absent)


def _microseconds(moment: Any) -> int:
    # Arrow's times have 64 bits; times outside the calendar are detected later.
    most = 2**62
    return max(-most, min(most, moment.seconds * 1_000_000 + moment.nanos // 1_000))


def _json_text(message: Any) -> str | None:
    try:
        return json_format.MessageToJson(message, indent=None)
    except (json_format.Error, TypeError, ValueError):
        return None


def _offsets(parts: Sequence[Any]) -> pa.Array:
    ends = np.cumsum([0, *map(len, parts)])
    return pa.array(ends.astype(np.int32))
