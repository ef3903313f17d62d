"""Schema, partitioning and sort order of a table, from agreed columns and settings.

Field ids are the table's own, given once by name and never again: no file bears any. The property
`schema.name-mapping.default` tells readers which column of a file is which field.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import count
from typing import TYPE_CHECKING

from dagster_leasehold.assets.output.table.columns import (
    Column,
    Columns,
    ColumnType,
    columns_of,
    stored_schema,
)
from dagster_leasehold.assets.table_settings import PARTITION_FORM

if TYPE_CHECKING:
    from pyiceberg.partitioning import PartitionSpec
    from pyiceberg.schema import Schema
    from pyiceberg.table.metadata import TableMetadata
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


def columns_of_table(metadata: TableMetadata) -> Columns:
    """Return the columns of a table's newest schema, as runs would agree on them."""
    from pyiceberg.io.pyarrow import schema_to_pyarrow

    schema = schema_to_pyarrow(metadata.schema(), include_field_ids=False)
    return columns_of(stored_schema(schema))


def name_mapping(schema: Schema) -> str:
    """Return the value of `schema.name-mapping.default`."""
    from pyiceberg.table.name_mapping import create_mapping_from_schema

    return create_mapping_from_schema(schema).model_dump_json()


def file_specs(metadata: TableMetadata, partitioning: Sequence[str]) -> list[PartitionSpec]:
    """Return the specs that files go under, in the order that they are tried for a file.

    The first has all fields of a partitioning, if the table has their columns; the second has only
    those that every file has one value of, for files across midnight or without an event time. A
    spec that the table has is returned with its number; a new one has a number of its own.
    """
    from pyiceberg.partitioning import PARTITION_FIELD_ID_START, PartitionField
    from pyiceberg.partitioning import PartitionSpec as IcebergSpec
    from pyiceberg.transforms import IdentityTransform, parse_transform

    schema, candidates = metadata.schema(), [*metadata.partition_specs]
    numbers = count(
        max(
            [PARTITION_FIELD_ID_START, (metadata.last_partition_id or 0) + 1]
            + [field.field_id + 1 for spec in candidates for field in spec.fields]
        )
    )
    fields: dict[str, PartitionField | None] = {}
    for text in partitioning:
        match = PARTITION_FORM.fullmatch(text)
        word = match[1] if match else None
        source = _field_of(schema, TIME_COLUMN if word else SHARD_COLUMN)
        if source is None:
            fields[text] = None
            continue
        transform = parse_transform(word) if word else IdentityTransform()
        same = (
            field
            for spec in candidates
            for field in spec.fields
            if (field.source_id, field.transform) == (source.field_id, transform)
        )
        fields[text] = next(same, None) or PartitionField(
            source.field_id,
            next(numbers),
            transform,
            f"{TIME_COLUMN}_{word}" if word else SHARD_COLUMN,
        )
    whole = [*fields.values()]
    coarse = [field for text, field in fields.items() if text == SHARD_COLUMN and field]
    specs: list[PartitionSpec] = []
    for wanted in ([each for each in whole if each] if None not in whole else coarse, coarse):
        spec = next((each for each in candidates if list(each.fields) == wanted), None)
        if spec is None:
            spec = IcebergSpec(*wanted, spec_id=max(each.spec_id for each in candidates) + 1)
            candidates.append(spec)
        if spec not in specs:
            specs.append(spec)
    return specs


def shard_place(metadata: TableMetadata, spec_id: int) -> int | None:
    """Return the place of the shard among the fields of a spec; None if it has no such field."""
    from pyiceberg.transforms import IdentityTransform

    shard = shard_field(metadata.schema())
    for place, field in enumerate(metadata.specs()[spec_id].fields):
        if (
            shard is not None
            and field.source_id == shard.field_id
            and isinstance(field.transform, IdentityTransform)
        ):
            return place
    return None


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

    types = {column["name"]: column["type"] for column in columns}
    result: list[NestedField] = []
    for field in fields:
        if (kind := types.pop(field.name, None)) is not None:
            evolved_type = _evolved_type(field.field_type, kind, ids)
            field = field.model_copy(update={"field_type": evolved_type})  # noqa: PLW2901
        result.append(field)
    # The ids of a level come before the ids of nested fields, as engines number them.
    numbered = [(next(ids), name, kind) for name, kind in types.items()]
    result += [
        Field(number, name, _evolved_type(None, kind, ids), required=False)
        for number, name, kind in numbered
    ]
    return tuple(result)


def _evolved_type(before: IcebergType | None, kind: ColumnType, ids: Iterator[int]) -> IcebergType:
    """Return the type of a field: widened or added to, where it had one before.

    A type that no agreed one fits (another writer widened it) stays as it is.
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
            # A copy would keep the field of the old type, once it was looked up.
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
