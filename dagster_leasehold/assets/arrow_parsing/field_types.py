"""Conversion of a Spark schema, or of its DDL text, to an Arrow schema; `parsing` calls it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from dagster_leasehold.assets.errors import TransformError
from dagster_leasehold.lease_store.errors import shown

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

_SIMPLE = {
    "boolean": pa.bool_(),
    "byte": pa.int8(),
    "tinyint": pa.int8(),
    "short": pa.int16(),
    "smallint": pa.int16(),
    "int": pa.int32(),
    "integer": pa.int32(),
    "long": pa.int64(),
    "bigint": pa.int64(),
    "float": pa.float32(),
    "real": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "timestamp_ltz": pa.timestamp("us", tz="UTC"),
    "timestamp_ntz": pa.timestamp("us"),
}
_DECIMAL = re.compile(r"(?:decimal|dec|numeric)(?:\((\d+)(?:,(-?\d+))?\))?")
_TOKEN = re.compile(r"\s*(?:`((?:[^`]|``)+)`|('(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\")|(\w+|\S))")


class _Unreadable(Exception):
    """The schema does not conform to the grammar, or has a type that is not supported."""


def fields_of(schema: str | StructType) -> pa.Schema:
    """Return the Arrow schema for a schema of Spark; each field can be null.

    Raises:
        TransformError: the schema cannot be read, or one of its types is not supported.
    """
    try:
        if isinstance(schema, str):
            return _fields_of_ddl(schema)
        fields: Any = schema.jsonValue()["fields"]
        return pa.schema([(field["name"], _type_of_json(field["type"])) for field in fields])
    except _Unreadable as error:
        text = schema if isinstance(schema, str) else schema.simpleString()
        raise TransformError(
            f"The schema {shown(text)} cannot be parsed from Arrow tables: {error}."
        ) from None


def _type_of_json(kind: Any) -> pa.DataType:
    if isinstance(kind, str):
        return _simple(kind)
    match kind["type"]:
        case "array":
            return _list_of(_type_of_json(kind["elementType"]))
        case "map":
            return _map_of(_type_of_json(kind["keyType"]), _type_of_json(kind["valueType"]))
        case "struct":
            return pa.struct([(f["name"], _type_of_json(f["type"])) for f in kind["fields"]])
        case other:
            raise _Unreadable(f"it has the type {other}")


def _simple(name: str) -> pa.DataType:
    if name in _SIMPLE:
        return _SIMPLE[name]
    if decimal := _DECIMAL.fullmatch(name.replace(" ", "")):
        precision, scale = int(decimal[1] or 10), int(decimal[2] or 0)
        if 1 <= precision <= 38 and 0 <= scale <= precision:
            return pa.decimal128(precision, scale)
    raise _Unreadable(f"it has the type {name.upper()}; use a transform of DataFrames for it")


def _list_of(values: pa.DataType) -> pa.DataType:
    # Spark uses this name too, so files match the files of DataFrame transforms.
    return pa.list_(pa.field("element", values))


def _map_of(keys: pa.DataType, values: pa.DataType) -> pa.DataType:
    if keys != pa.string():
        raise _Unreadable("a map of it has other keys than strings")
    return pa.map_(keys, values)


@lru_cache(maxsize=64)
def _fields_of_ddl(ddl: str) -> pa.Schema:
    tokens: list[str] = []
    for quoted, comment, other in _TOKEN.findall(ddl):
        # A mark in front distinguishes quoted names and comments from words of the grammar.
        name = quoted.replace("``", "`")
        tokens.append(f"`{name}" if name else f"'{comment}" if comment else other)
    reader = _DdlReader(tokens)
    if [token.lower() for token in tokens[:2]] == ["struct", "<"]:
        kind = reader.type()
        reader.end()
        return pa.schema(list(kind))
    fields = reader.fields("")
    reader.end()
    return pa.schema(fields)


class _DdlReader:
    """A recursive descent parser for the tokens of DDL text."""

    def __init__(self, tokens: Sequence[str]) -> None:
        self._tokens = tokens
        self._at = 0

    def fields(self, closing: str) -> list[pa.Field]:
        """Read fields up to the closing token, without that token."""
        fields: list[pa.Field] = []
        while not fields or self._take(","):
            if not fields and self._next() == closing:
                break
            name = self._word().removeprefix("`")
            self._take(":")
            fields.append(pa.field(name, self.type()))
            if self._take("not"):
                self._expect("null")
            if self._take("comment") and not self._word().startswith("'"):
                raise _Unreadable("a comment in it is not in quotes")
        return fields

    def type(self) -> pa.DataType:
        """Read one type."""
        match word := self._word().lower():
            case "array":
                return self._within(lambda: _list_of(self.type()))
            case "map":
                return self._within(self._map)
            case "struct":
                return self._within(lambda: pa.struct(self.fields(">")))
            case _:
                if not self._take("("):
                    return _simple(word)
                numbers = [self._word()]
                while self._take(","):
                    numbers.append(self._word())
                self._expect(")")
                return _simple(f"{word}({','.join(numbers)})")

    def end(self) -> None:
        """Check that nothing is left."""
        if self._next():
            raise _Unreadable(f"nothing is allowed at {shown(self._next())}")

    def _map(self) -> pa.DataType:
        keys = self.type()
        self._expect(",")
        return _map_of(keys, self.type())

    def _within(self, inner: Any) -> pa.DataType:
        self._expect("<")
        kind = inner()
        self._expect(">")
        return kind

    def _next(self) -> str:
        return self._tokens[self._at] if self._at < len(self._tokens) else ""

    def _word(self) -> str:
        word = self._next()
        if not word or word in "<>(),:":
            raise _Unreadable("it ends too early" if not word else f"{shown(word)} is misplaced")
        self._at += 1
        return word

    def _take(self, token: str) -> bool:
        if self._next().lower() != token:
            return False
        self._at += 1
        return True

    def _expect(self, token: str) -> None:
        if not self._take(token):
            raise _Unreadable(f"{shown(token)} is missing")
