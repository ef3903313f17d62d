"""JSON Schema: the columns of a schema. `parse_json` describes which values fit a column.

Types, formats and required fields of the record are checked; other keywords, such as `minimum`, are
not. A value of several possible types becomes its JSON text.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from dagster_leasehold.assets.decoding.json_values import JsonDecoder
from dagster_leasehold.assets.errors import SchemaUnusable
from dagster_leasehold.lease_store.errors import one_line, shown

_PLAIN = {
    "string": pa.string(),
    "integer": pa.int64(),
    "number": pa.float64(),
    "boolean": pa.bool_(),
}
_FORMATS = {"date-time": pa.timestamp("us", tz="UTC"), "date": pa.date32()}
_CONNECT = {
    "int8": pa.int32(),
    "int16": pa.int32(),
    "int32": pa.int32(),
    "float32": pa.float32(),
    "bytes": pa.binary(),
}


def json_schema_decoder(text: str, references: Mapping[str, str], name: str) -> JsonDecoder:
    """Return the decoder of a JSON Schema.

    Args:
        text: the schema.
        references: the schemas that it names with `$ref`, by name.
        name: the schema in messages, such as `schema 7`.

    Raises:
        SchemaUnusable: the schema is not valid, or cannot become columns.
    """
    try:
        schema = json.loads(text)
        documents = {key: json.loads(other) for key, other in references.items()}
    except ValueError as error:
        raise SchemaUnusable(
            f"The JSON {name} is not valid ({one_line(str(error))}): register a valid schema."
        ) from error
    types = _Types(schema, documents, name)
    root, document = types.resolved(schema, schema)
    if not isinstance(root, dict) or not root.get("properties"):
        raise SchemaUnusable(
            f"The JSON {name} describes no object with properties, so it has no columns: decode "
            "its records in a transform."
        )
    fields = pa.schema(types.fields(root, document, ()))
    required = frozenset(
        each
        for each in root.get("required", ())
        if each in fields.names and not types.nullable(root["properties"][each], document)
    )
    return JsonDecoder(fields, name, required)


class _Types:
    """Finds the types of columns.

    Args:
        root: the schema.
        documents: the schemas that it names, by name.
        name: the name of the schema for messages.
    """

    def __init__(self, root: Any, documents: Mapping[str, Any], name: str) -> None:
        self._root = root
        self._documents = documents
        self._name = name

    def fields(self, schema: Any, document: Any, within: tuple[Any, ...]) -> list[pa.Field]:
        """Return the fields of an object."""
        return [
            pa.field(name, self._type(each, document, (*within, id(schema))))
            for name, each in schema["properties"].items()
        ]

    def nullable(self, schema: Any, document: Any) -> bool:
        """Return True if null is a valid value."""
        schema, document = self.resolved(schema, document)
        if not isinstance(schema, dict):
            return True
        choices = schema.get("oneOf") or schema.get("anyOf") or ()
        kinds = schema.get("type", ())
        named = [kinds] if isinstance(kinds, str) else [*kinds]
        return "null" in named or any(self.nullable(choice, document) for choice in choices)

    def resolved(self, schema: Any, document: Any) -> tuple[Any, Any]:
        """Follow references; return the schema and the document that has it."""
        place = pointer = ""
        for _ in range(100):
            if not isinstance(schema, dict) or "$ref" not in schema:
                return schema, document
            place, _, pointer = str(schema["$ref"]).partition("#")
            document = self._documents.get(place) if place else document
            schema = document
            for part in filter(None, pointer.split("/")):
                key = part.replace("~1", "/").replace("~0", "~")
                schema = schema.get(key) if isinstance(schema, dict) else None
            if schema is None:
                break
        raise SchemaUnusable(
            f"The JSON {self._name} has a reference {shown(str(pointer or place))} to nothing: "
            "register the schema with its references."
        )

    def _type(self, schema: Any, document: Any, within: tuple[Any, ...]) -> pa.DataType:
        schema, document = self.resolved(schema, document)
        if not isinstance(schema, dict):
            return pa.string()
        choices = [
            each
            for each in schema.get("oneOf") or schema.get("anyOf") or ()
            if not (isinstance(each, dict) and each.get("type") == "null")
        ]
        if len(choices) == 1:
            return self._type(choices[0], document, within)
        kinds = schema.get("type", "object" if "properties" in schema else ())
        named = {kinds} if isinstance(kinds, str) else {*kinds} - {"null"}
        if named == {"integer", "number"}:
            named = {"number"}
        if choices or len(named) != 1:
            return pa.string()
        return self._named_type(named.pop(), schema, document, within)

    def _named_type(
        self, kind: str, schema: Any, document: Any, within: tuple[Any, ...]
    ) -> pa.DataType:
        if kind in _PLAIN:
            special = schema.get("connect.type") if kind != "string" else schema.get("format")
            if kind == "string" and schema.get("connect.type") == "bytes":
                special = "bytes"
            return (_CONNECT | _FORMATS).get(special or "", _PLAIN[kind])
        if id(schema) in within:
            raise SchemaUnusable(
                f"A type of the JSON {self._name} contains itself, so it cannot become a column: "
                "decode the records in a transform."
            )
        inner = (*within, id(schema))
        if kind == "array":
            items = schema.get("items")
            return pa.list_(self._type(items, document, inner) if items else pa.string())
        if schema.get("properties"):
            return pa.struct(self.fields(schema, document, within))
        values = schema.get("additionalProperties")
        if isinstance(values, dict):
            return pa.map_(pa.string(), self._type(values, document, inner))
        return pa.string()
