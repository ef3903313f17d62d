"""Schema, partitioning and sort order of a table, from agreed columns and settings.

Data files have no field ids. The property `schema.name-mapping.default` maps their columns to the
fields of the table, which keep their ids.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

from dagster_leasehold.assets.output.table.columns import (
    Column,
    Columns,
    arrow_schema,
    columns_of,
    present,
    stored_schema,
)
from dagster_leasehold.assets.partition_fields import SHARD_COLUMN, TIME_COLUMN
from dagster_leasehold.assets.partition_fields import PartitionField as Field
from dagster_leasehold.assets.table_settings import sort_text

if TYPE_CHECKING:
    from pyiceberg.partitioning import PartitionField, PartitionSpec
    from pyiceberg.schema import Schema
    from pyiceberg.table.metadata import TableMetadata
    from pyiceberg.table.sorting import SortOrder
    from pyiceberg.types import NestedField

_SHARD: Column = {"name": SHARD_COLUMN, "type": "string"}


def evolved(schema: Schema | None, columns: Columns, last_id: int) -> Schema:
    """Return a table's schema with all agreed columns; its fields keep their ids and wider types.

    It is the given schema itself if there is nothing to change. A new table gets at least the
    column of the shard, because engines cannot read a table without columns. It also gets removed
    columns, so that the next schema can remove them, and their ids stay in the name mapping.

    Args:
        schema: the newest schema of the table; None for a new table.
        last_id: the highest field id that the table has ever used.
    """
    from pyiceberg.schema import Schema as IcebergSchema
    from pyiceberg.table.update.schema import UpdateSchema

    def update_of(schema: Schema) -> Any:
        table = SimpleNamespace(
            schema=lambda: schema, last_column_id=last_id, schemas=[schema], partition_specs=()
        )
        # PyIceberg reads only the metadata of the transaction.
        return UpdateSchema(cast(Any, SimpleNamespace(table_metadata=table)))

    before = IcebergSchema(schema_id=-1) if schema is None else schema
    names, update = {field.name for field in before.fields}, update_of(before)
    for column in columns:
        if column.get("removed") and column["name"] in names:
            update.delete_column((column["name"],))
        earlier = names.intersection(column.get("earlier", ()))
        if earlier and column["name"] not in names:
            update.rename_column((earlier.pop(),), column["name"])
    renamed: Schema = update._apply()
    added = columns if schema is None else present(columns)
    update = update_of(renamed)
    update.union_by_name(arrow_schema(added if added or renamed.fields else [_SHARD]))
    after: Schema = update._apply()
    return before if after.fields == before.fields else after


def columns_of_table(metadata: TableMetadata) -> Columns:
    """Return the columns of a table in the form that runs agree on, also the removed ones."""
    from pyiceberg.io.pyarrow import schema_to_pyarrow

    fields = {field.field_id: (metadata.schema(), field) for field in metadata.schema().fields}
    mapped = {each.field_id: each.names for each in metadata.name_mapping() or ()}
    removed = {
        field.field_id: (schema, field)
        for schema in metadata.schemas
        for field in schema.fields
        if field.field_id not in fields and field.name in mapped.get(field.field_id, ())
    }
    types = {
        (schema.schema_id, column["name"]): column
        for schema in {
            schema.schema_id: schema for schema, _ in (fields | removed).values()
        }.values()
        for column in columns_of(stored_schema(schema_to_pyarrow(schema, include_field_ids=False)))
    }
    columns: Columns = []
    for field_id, (schema, field) in (fields | removed).items():
        column = dict(types[schema.schema_id, field.name])
        if earlier := [name for name in mapped.get(field_id, ()) if name != field.name]:
            column["earlier"] = earlier
        if field_id in removed:
            column["removed"] = True
        columns.append(column)
    return columns


def names_in_files(metadata: TableMetadata, schema: Schema) -> dict[str, str]:
    """Return the column of a schema for each other name that it has in data files."""
    fields = {field.field_id: field.name for field in schema.fields}
    return {
        name: fields[each.field_id]
        for each in metadata.name_mapping() or ()
        if each.field_id in fields
        for name in each.names
        if name != fields[each.field_id]
    }


def name_mapping(schema: Schema, columns: Columns, before: str = "") -> str:
    """Return the value of `schema.name-mapping.default`.

    It has the earlier names of renamed columns. A removed column stays in it, because PyIceberg
    cannot read a file with a column that it lacks.

    Args:
        columns: the agreed columns.
        before: the value of the table's earlier schema.
    """
    from pyiceberg.table.name_mapping import (
        NameMapping,
        create_mapping_from_schema,
        parse_mapping_from_json,
    )

    earlier = {column["name"]: column.get("earlier", ()) for column in columns}
    removed = {
        name
        for column in columns
        if column.get("removed")
        for name in (column["name"], *column.get("earlier", ()))
    }
    fields = [
        each.model_copy(update={"names": [*earlier.get(each.names[0], ()), each.names[0]]})
        for each in create_mapping_from_schema(schema)
    ]
    ids = {field.field_id for field in fields}
    fields += [
        each
        for each in (parse_mapping_from_json(before) if before else ())
        if each.field_id not in ids and removed.issuperset(each.names)
    ]
    return NameMapping(fields).model_dump_json()


def file_specs(metadata: TableMetadata, partitioning: Sequence[str]) -> list[PartitionSpec]:
    """Return the specs for files, in order of preference.

    The first has all fields of the partitioning, if the table has their columns. The second has
    only the shard, for files of several partitions. A spec that the table has keeps its number.
    """
    from pyiceberg.partitioning import PARTITION_FIELD_ID_START, PartitionField
    from pyiceberg.partitioning import PartitionSpec as IcebergSpec
    from pyiceberg.transforms import parse_transform

    schema, candidates = metadata.schema(), [*metadata.partition_specs]
    numbers = count(
        max(
            [PARTITION_FIELD_ID_START, (metadata.last_partition_id or 0) + 1]
            + [field.field_id + 1 for spec in candidates for field in spec.fields]
        )
    )
    fields: dict[str, PartitionField | None] = {}
    for own in map(Field.parse, partitioning):
        width = f"[{own.width}]" if own.width else ""
        transform = parse_transform(f"{own.transform}{width}")
        source = _source_of(schema, own)
        if source is None or not transform.can_transform(source.field_type):
            fields[str(own)] = None
            continue
        same = (
            field
            for spec in candidates
            for field in spec.fields
            if (field.source_id, field.transform) == (source.field_id, transform)
        )
        fields[str(own)] = next(same, None) or PartitionField(
            source.field_id, next(numbers), transform, own.name
        )
    whole = [*fields.values()]
    coarse = [field for text, field in fields.items() if text == SHARD_COLUMN and field]
    specs: list[PartitionSpec] = []
    for target in ([each for each in whole if each] if None not in whole else coarse, coarse):
        spec = next((each for each in candidates if list(each.fields) == target), None)
        if spec is None:
            spec = IcebergSpec(*target, spec_id=max(each.spec_id for each in candidates) + 1)
            candidates.append(spec)
        if spec not in specs:
            specs.append(spec)
    return specs


def field_text(schema: Schema, field: PartitionField) -> str:
    """Return the text of a field of a spec, as the settings and the ledger name it."""
    transform: Any = field.transform
    column = schema.find_column_name(field.source_id) or ""
    width = getattr(transform, "num_buckets", 0) or getattr(transform, "width", 0)
    return str(Field(column, str(transform).partition("[")[0], width))


def shard_index(metadata: TableMetadata, spec_id: int) -> int | None:
    """Return the position of the shard among the fields of a spec, or None."""
    from pyiceberg.transforms import IdentityTransform

    shard = shard_field(metadata.schema())
    for index, field in enumerate(metadata.specs()[spec_id].fields):
        if (
            shard is not None
            and field.source_id == shard.field_id
            and isinstance(field.transform, IdentityTransform)
        ):
            return index
    return None


def sort_order(schema: Schema, order: Sequence[str], number: int = 1) -> SortOrder | None:
    """Return the sort order with a number; None without one, or if a column is missing."""
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
        if not source.field_type.is_primitive:
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
    return IcebergOrder(*fields, order_id=number) if fields else None


def sort_orders(metadata: TableMetadata) -> dict[str, int]:
    """Return the numbers of a table's sort orders by their texts; see `sort_text`."""
    orders: dict[str, int] = {}
    for order in metadata.sort_orders:
        names = [metadata.schema().find_column_name(field.source_id) for field in order.fields]
        ways = [" desc" if str(field.direction) == "DESC" else "" for field in order.fields]
        texts = [f"{name}{way}" for name, way in zip(names, ways, strict=True)]
        if order.fields:
            orders[sort_text(texts)] = order.order_id
    return orders


def _source_of(schema: Schema, field: Field) -> NestedField | None:
    """Return the column of a partition field; None if the table lacks it."""
    if field.of_source:
        return _field_of(schema, field.column)
    return next((each for each in schema.fields if each.name == field.column), None)


def _field_of(schema: Schema, name: str) -> NestedField | None:
    """Return a column of records, if the table has it with its original type."""
    from pyiceberg.types import StringType, TimestamptzType

    kind = TimestamptzType if name == TIME_COLUMN else StringType
    for field in schema.fields:
        if field.name == name and isinstance(field.field_type, kind):
            return field
    return None


def time_field(schema: Schema) -> NestedField | None:
    """Return the column `event_time`, if it has times with a zone."""
    return _field_of(schema, TIME_COLUMN)


def shard_field(schema: Schema) -> NestedField | None:
    """Return the column `shard_id`, if it has texts."""
    return _field_of(schema, SHARD_COLUMN)
