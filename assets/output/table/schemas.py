"""Schema, partitioning and sort order of a table, from agreed columns and settings.

Field ids are the table's own, given once by name and never again: no file bears any. The property
`schema.name-mapping.default` tells readers which column of a file is which field.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import count
from typing import TYPE_CHECKING

from dagster_leasehold.assets.output.table.columns import Column, Columns, ColumnType
from dagster_leasehold.assets.table_settings import PARTITION_FORM

if TYPE_CHECKING:
    from pyiceberg.partitioning import PartitionSpec
    from pyiceberg.schema import Schema
    from pyiceberg.table.sorting import SortOrder
    from pyiceberg.types import IcebergType, NestedField, StructType

TIME_COLUMN = "event_time"
SHARD_COLUMN = "shard_id"
_SHARD: Column = {"name": SHARD_COLUMN, "type": "string"}


def evolved(schema: Schema | None, columns: Columns, last_id: int) -> Schema:
    """Return a table's schema with all agreed columns; fields that it has keep their ids.

    It is the given one itself if there is nothing to add or to widen. Fields of the table that
    another writer added stay. Before any file has columns, the table has the one that all files
    will have, as engines cannot read a table without columns.

    Args:
        schema: the table's; None before there is a table.
        columns: that the files may have.
        last_id: the highest field id that the table has ever given.
    """
    from pyiceberg.schema import Schema as IcebergSchema

    ids = count(last_id + 1)
    before = () if schema is None else schema.fields
    fields = _fields(before, columns if columns or before else [_SHARD], ids)
    if schema is not None and fields == schema.fields:
        return schema
    number = 0 if schema is None else schema.schema_id + 1
    return IcebergSchema(*fields, schema_id=number)


def name_mapping(schema: Schema) -> str:
    """Return the value of `schema.name-mapping.default`."""
    from pyiceberg.table.name_mapping import create_mapping_from_schema

    return create_mapping_from_schema(schema).model_dump_json()


def partition_spec(schema: Schema, partitioning: Sequence[str]) -> PartitionSpec | None:
    """Return the spec with number 1; None where the columns that it needs are not in the table.

    The spec with number 0 has no field: that of files which are in no one partition.
    """
    from pyiceberg.partitioning import PARTITION_FIELD_ID_START, PartitionField
    from pyiceberg.partitioning import PartitionSpec as IcebergSpec
    from pyiceberg.transforms import IdentityTransform, parse_transform

    fields: list[PartitionField] = []
    for text in partitioning:
        match = PARTITION_FORM.fullmatch(text)
        transform = match[1] if match else None
        source = _field_of(schema, TIME_COLUMN if transform else SHARD_COLUMN)
        if source is None:
            return None
        number = PARTITION_FIELD_ID_START + len(fields)
        made = parse_transform(transform) if transform else IdentityTransform()
        name = f"{TIME_COLUMN}_{transform}" if transform else SHARD_COLUMN
        fields.append(PartitionField(source.field_id, number, made, name))
    return IcebergSpec(*fields, spec_id=1) if fields else None


def sort_order(schema: Schema, order: Sequence[str]) -> SortOrder | None:
    """Return the sort order with number 1; None without one, or where a column is missing."""
    from pyiceberg.table.sorting import NullOrder, SortDirection, SortField
    from pyiceberg.table.sorting import SortOrder as IcebergOrder
    from pyiceberg.transforms import IdentityTransform

    fields: list[SortField] = []
    for text in order:
        name, _, direction = text.partition(" ")
        try:
            source = schema.find_field(name)
        except ValueError:
            return None
        down = direction == "desc"
        fields.append(
            SortField(
                source.field_id,
                IdentityTransform(),
                SortDirection.DESC if down else SortDirection.ASC,
                NullOrder.NULLS_LAST if down else NullOrder.NULLS_FIRST,
            )
        )
    return IcebergOrder(*fields, order_id=1) if fields else None


def _field_of(schema: Schema, name: str) -> NestedField | None:
    """Return a column that the ledger knows something of, if the table has it in its own type."""
    from pyiceberg.types import StringType, TimestamptzType

    kind = TimestamptzType if name == TIME_COLUMN else StringType
    for field in schema.fields:
        if field.name == name and isinstance(field.field_type, kind):
            return field
    return None


def time_field(schema: Schema) -> NestedField | None:
    """Return the column `event_time` if it holds moments."""
    return _field_of(schema, TIME_COLUMN)


def shard_field(schema: Schema) -> NestedField | None:
    """Return the column `shard_id` if it holds text."""
    return _field_of(schema, SHARD_COLUMN)


def _fields(
    fields: Iterable[NestedField], columns: Sequence[Column], ids: Iterator[int]
) -> tuple[NestedField, ...]:
    from pyiceberg.types import NestedField as Field

    wanted = {column["name"]: column["type"] for column in columns}
    result: list[NestedField] = []
    for field in fields:
        if (kind := wanted.pop(field.name, None)) is not None:
            evolved_type = _evolved_type(field.field_type, kind, ids)
            field = field.model_copy(update={"field_type": evolved_type})  # noqa: PLW2901
        result.append(field)
    # The ids of a level come before those of what is nested in it, as engines number them.
    numbered = [(next(ids), name, kind) for name, kind in wanted.items()]
    result += [
        Field(number, name, _evolved_type(None, kind, ids), required=False)
        for number, name, kind in numbered
    ]
    return tuple(result)


def _evolved_type(before: IcebergType | None, kind: ColumnType, ids: Iterator[int]) -> IcebergType:
    """Return the type of a field: widened or added to, where it had one before.

    A type that no agreed one fits (somebody else widened it) stays as it is.
    """
    from pyiceberg.types import ListType, MapType, StructType

    if isinstance(kind, str):
        return _evolved_word(before, kind)
    (form, inner), *_ = kind.items()
    if form == "struct":
        nested: StructType = before if isinstance(before, StructType) else StructType()
        return StructType(*_fields(nested.fields, inner, ids))
    if form == "list":
        if isinstance(before, ListType):
            element = _evolved_type(before.element_type, inner, ids)
            # A copy would keep the field of the old type, once somebody has looked at it.
            return ListType(before.element_id, element, before.element_required)
        return ListType(next(ids), _evolved_type(None, inner, ids), element_required=False)
    if isinstance(before, MapType):
        value = _evolved_type(before.value_type, inner[1], ids)
        ids_before = before.key_id, before.key_type, before.value_id
        return MapType(*ids_before, value, before.value_required)
    key_id, value_id = next(ids), next(ids)
    key, value = (_evolved_type(None, each, ids) for each in inner)
    return MapType(key_id, key, value_id, value, value_required=False)


def _evolved_word(before: IcebergType | None, word: str) -> IcebergType:
    from pyiceberg.exceptions import ResolveError
    from pyiceberg.schema import promote
    from pyiceberg.types import IcebergType as AnyType

    kind = AnyType.model_validate(word)
    if before is None:
        return kind
    try:
        return promote(before, kind)
    except ResolveError:
        return before
