"""Avro: the plan of a schema, and the decoder that follows it.

A union of null and a type is a nullable column. A union of several numbers is the widest of them.
Other unions are structs with the fields `member0`, `member1` and so on, as in Spark. Times become
microseconds, enums and UUIDs text. An unknown logical type leaves its type as it is.
"""

from __future__ import annotations

import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any
from uuid import UUID

import fastavro
import fastavro.schema
import numpy as np
import pyarrow as pa

from dagster_leasehold.assets.decoding.avro_cursors import ALL, Cursors
from dagster_leasehold.assets.decoding.avro_items import (
    DECIMAL_BYTES_MAX,
    NUMBER_BYTES_MAX,
    BytesItem,
    DecimalItem,
    EnumItem,
    FixedItem,
    Item,
    ListItem,
    NullItem,
    NumberItem,
    OptionalItem,
    RecordItem,
    TextItem,
    UnionItem,
    UuidItem,
)
from dagster_leasehold.assets.decoding.payloads import DECODED_COLUMN, Mask, Payloads
from dagster_leasehold.assets.errors import SchemaUnusable
from dagster_leasehold.lease_store.errors import one_line, shown

_INT = (-(2**31), 2**31 - 1)
_MICROSECONDS = {"millis": (1_000, 1), "micros": (1, 1), "nanos": (1, 1_000)}
REACH_MAX = 16 * 1024 * 1024
"""The most bytes of fixed length in a value, since memory for them is reserved."""
_DAY_US = 86_400_000_000
_DECIMAL_DIGITS_MAX = 38
_DEBEZIUM = {
    "io.debezium.time.Date": "date",
    "io.debezium.time.Time": "time-millis",
    "io.debezium.time.MicroTime": "time-micros",
    "io.debezium.time.Timestamp": "local-timestamp-millis",
    "io.debezium.time.MicroTimestamp": "local-timestamp-micros",
    "io.debezium.time.NanoTimestamp": "local-timestamp-nanos",
}
"""Debezium's type names, and the logical type of each."""
_NUMBERS = (pa.int32(), pa.int64(), pa.float32(), pa.float64())
_PLAIN: dict[str, Item] = {
    "null": NullItem(kind=pa.null(), reach=0, least=0),
    "boolean": FixedItem(kind=pa.bool_(), reach=1),
    "int": NumberItem(kind=pa.int32(), within=_INT),
    "long": NumberItem(kind=pa.int64()),
    "float": FixedItem(kind=pa.float32(), reach=4, least=4, width=4, form="<f4"),
    "double": FixedItem(kind=pa.float64(), reach=8, least=8, width=8, form="<f8"),
    "bytes": BytesItem(kind=pa.binary()),
    "string": TextItem(kind=pa.string()),
}


class AvroDecoder:
    """Decodes Avro values that one schema wrote.

    Args:
        schema: the schema, as JSON.
        references: schemas that it names, as JSON, each after the schemas that it names itself.
        name: the schema in messages, such as `schema 7`.

    Raises:
        SchemaUnusable: the schema is not valid, or cannot become columns.
    """

    def __init__(self, schema: str, references: Sequence[str] = (), name: str = "") -> None:
        named: dict[str, Any] = {}
        try:
            for text in references:
                fastavro.parse_schema(json.loads(text), named_schemas=named)
            self._schema = fastavro.parse_schema(json.loads(schema), named_schemas=named)
        except (ValueError, fastavro.schema.SchemaParseException, fastavro.schema.UnknownType) as e:
            raise SchemaUnusable(
                f"The Avro {name} is not valid ({one_line(str(e))}): register a valid schema."
            ) from e
        self._named = named
        self._plan = _Plans(named, name).item(self._schema, ())
        if self._plan.reach > REACH_MAX:
            raise SchemaUnusable(
                f"The values of the Avro {name} have {self._plan.reach:,} bytes of fixed length, "
                "which is too much: use the type bytes."
            )
        self._is_record = isinstance(self._plan, RecordItem)
        self.fields = pa.schema(
            [*self._plan.kind] if self._is_record else [(DECODED_COLUMN, self._plan.kind)]
        )
        self.complaint = f"is not Avro of the {name}"

    def decode(self, payloads: Payloads) -> tuple[list[pa.Array], Mask]:
        """Return the columns, and a mask of the values that do not conform to the schema."""
        cursors = Cursors(payloads, self._plan.reach)
        if isinstance(self._plan, RecordItem):
            columns = [item.read(cursors, ALL) for item in self._plan.items]
        else:
            columns = [self._plan.read(cursors, ALL)]
        bad = cursors.unfinished()
        if cursors.left.any():
            columns = self._with_left(payloads, columns, cursors.left, bad)
        return columns, bad

    def _with_left(
        self, payloads: Payloads, columns: list[pa.Array], left: Mask, bad: Mask
    ) -> list[pa.Array]:
        """Decode the values in `left` one by one, and insert them into the columns."""
        numbers = np.flatnonzero(left)
        kind = pa.struct([*self.fields])
        rows: list[pa.Array] = []
        for number, value in zip(numbers.tolist(), payloads.at_rows(numbers), strict=True):
            try:
                rows.append(pa.array([self._one(value)], kind))
            except Exception:
                bad[number] = True
                rows.append(pa.nulls(1, kind))
        order = np.arange(len(left))
        order[numbers] = len(left) + np.arange(len(numbers))
        singles = pa.concat_arrays(rows).flatten()
        return [
            pa.concat_arrays([column, single]).take(pa.array(order))
            for column, single in zip(columns, singles, strict=True)
        ]

    def _one(self, value: bytes) -> Any:
        source = io.BytesIO(value)
        decoded: Any = _plain(fastavro.schemaless_reader(source, self._schema, None))
        if source.tell() != len(value):
            raise ValueError("bytes are left")
        return decoded if self._is_record else {DECODED_COLUMN: decoded}


def _plain(value: Any) -> Any:
    """Convert the UUIDs in a value of fastavro to text, because Arrow does not accept them."""
    if isinstance(value, Mapping):
        return {key: _plain(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_plain(inner) for inner in value]
    return str(value) if isinstance(value, UUID) else value


class _Plans:
    """Builds the items of a schema.

    Args:
        named: the named types, by their full names.
        name: the name of the schema for messages.
    """

    def __init__(self, named: Mapping[str, Any], name: str) -> None:
        self._named = named
        self._name = name

    def item(self, schema: Any, within: tuple[str, ...]) -> Item:
        """Return the item of a part of the schema; `within` names the records around it."""
        if isinstance(schema, list):
            return self._union(schema, within)
        if isinstance(schema, str):
            return _PLAIN.get(schema) or self._named_item(schema, within)
        return _logical(schema) or self._plain_item(schema, within)

    def _plain_item(self, schema: Mapping[str, Any], within: tuple[str, ...]) -> Item:
        kind = schema["type"]
        if kind in ("record", "error"):
            return self._record(schema, within)
        if kind in ("array", "map"):
            return self._list(schema, within)
        if kind == "enum":
            return EnumItem(kind=pa.string(), symbols=tuple(schema["symbols"]))
        return _fixed(schema["size"]) if kind == "fixed" else self.item(kind, within)

    def _list(self, schema: Mapping[str, Any], within: tuple[str, ...]) -> Item:
        is_map = schema["type"] == "map"
        inner = self.item(schema["values" if is_map else "items"], within)
        return ListItem(
            kind=pa.map_(pa.string(), inner.kind) if is_map else pa.list_(inner.kind),
            items=inner,
            keys=_PLAIN["string"] if is_map else None,
            alone=_plainly_read(inner),
        )

    def _named_item(self, name: str, within: tuple[str, ...]) -> Item:
        if name in within:
            raise SchemaUnusable(
                f"The type {shown(name)} of the {self._name} contains itself, so it cannot become "
                "a column: decode the records in a transform."
            )
        return self.item(self._named[name], within)

    def _record(self, schema: Any, within: tuple[str, ...]) -> Item:
        around = (*within, schema["name"])
        items = tuple(self.item(field["type"], around) for field in schema["fields"])
        names = [field["name"] for field in schema["fields"]]
        return RecordItem(
            kind=pa.struct([(name, item.kind) for name, item in zip(names, items, strict=True)]),
            reach=sum(item.reach for item in items),
            least=sum(item.least for item in items),
            items=items,
        )

    def _union(self, schemas: Sequence[Any], within: tuple[str, ...]) -> Item:
        items = [self.item(schema, within) for schema in schemas]
        others = [item for item in items if not isinstance(item, NullItem)]
        reach = NUMBER_BYTES_MAX + max([item.reach for item in items], default=0)
        if len(items) == 2 and len(others) == 1:
            place = items.index(others[0])
            return OptionalItem(kind=others[0].kind, reach=reach, item=others[0], place=place)
        if len(others) == 1 and len(items) == 1:
            return UnionItem(kind=others[0].kind, reach=reach, items=tuple(items))
        if not others:
            return UnionItem(kind=pa.null(), reach=reach, items=tuple(items))
        kinds = [item.kind for item in others]
        for numbers in (_NUMBERS[:2], _NUMBERS[2:]):
            if all(kind in numbers for kind in kinds):
                widest = max(kinds, key=numbers.index)
                return UnionItem(kind=widest, reach=reach, items=tuple(items))
        members = pa.struct([(f"member{index}", kind) for index, kind in enumerate(kinds)])
        return UnionItem(kind=members, reach=reach, items=tuple(items))


def _fixed(width: int) -> Item:
    kind = pa.binary(width)
    return FixedItem(kind=kind, reach=width, least=width, width=width, form=f"V{width}")


def _logical(schema: Mapping[str, Any]) -> Item | None:
    """Return the item of a logical type; None if the schema has no known one."""
    logical, kind = schema.get("logicalType"), schema["type"]
    logical = logical or _DEBEZIUM.get(schema.get("connect.name", ""))
    if logical == "decimal":
        return _decimal(schema)
    if logical == "uuid" and kind == "fixed" and schema["size"] == 16:
        return UuidItem(kind=pa.string(), reach=16, least=16)
    if (logical, kind) == ("date", "int"):
        return NumberItem(kind=pa.date32(), within=_INT)
    form, _, unit = (logical or "").rpartition("-")
    if form == "time" and (unit, kind) in (("millis", "int"), ("micros", "long")):
        times, _ = _MICROSECONDS[unit]
        most = _DAY_US // times - 1
        return NumberItem(kind=pa.time64("us"), within=(0, most), times=times)
    if form in ("timestamp", "local-timestamp") and kind == "long" and unit in _MICROSECONDS:
        times, divided = _MICROSECONDS[unit]
        most = (2**63 - 1) // times
        return NumberItem(
            kind=pa.timestamp("us", tz="UTC" if form == "timestamp" else None),
            within=(-most, most),
            times=times,
            divided=divided,
        )
    return None


def _decimal(schema: Mapping[str, Any]) -> Item | None:
    precision, scale = schema.get("precision", 0), schema.get("scale", 0)
    if not 0 < precision <= _DECIMAL_DIGITS_MAX or not 0 <= scale <= precision:
        return None
    decimal = DecimalItem(kind=pa.decimal128(precision, scale))
    if schema["type"] == "bytes":
        return decimal
    width = schema["size"] if schema["type"] == "fixed" else 0
    fits = 0 < width <= DECIMAL_BYTES_MAX
    return replace(decimal, width=width, reach=width, least=width) if fits else None


def _plainly_read(item: Item) -> bool:
    """Return True if a value from fastavro shows the type that it has in each union."""
    match item:
        case UnionItem():
            return not pa.types.is_struct(item.kind)
        case OptionalItem():
            return _plainly_read(item.item)
        case ListItem():
            return item.alone
        case RecordItem():
            return all(map(_plainly_read, item.items))
        case _:
            return True
