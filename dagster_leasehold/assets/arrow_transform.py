"""The declaration of Arrow transforms, and the checks of their output.

A stream declares its transform with `arrow_transform`. Workers call `checked` on each output.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dagster_leasehold.assets.errors import TransformError
from dagster_leasehold.lease_store.errors import one_line, shown
from dagster_leasehold.lease_store.identifiers import ShardId

if TYPE_CHECKING:
    import pyarrow as pa

SHARD_COLUMN = "shard_id"
ERROR_COLUMN = "quarantine_error"
QUARANTINE_COLUMNS = ("shard_id", "cursor", "event_time", "key", "value", ERROR_COLUMN)

TableFunction = Callable[["pa.Table"], "pa.Table"]


@dataclass(frozen=True)
class ArrowTransform:
    """A transform of Arrow tables, which `arrow_transform` creates.

    It has the name, module and docstring of its function, and can be called like the function.
    """

    function: TableFunction

    def __post_init__(self) -> None:
        named = self.function if hasattr(self.function, "__qualname__") else type(self.function)
        for attribute in ("__module__", "__name__", "__qualname__", "__doc__"):
            object.__setattr__(self, attribute, getattr(named, attribute))

    def __call__(self, records: pa.Table) -> pa.Table:
        """Return the function's output for these records without checking it."""
        return self.function(records)


def arrow_transform(function: TableFunction) -> ArrowTransform:
    """Turn a function of Arrow tables into the transform of a stream.

    The worker that reads the records also transforms them, which is several times faster than a
    transform of DataFrames. The function receives part of a batch: consecutive records of one
    shard, in order, with the columns `shard_id`, `cursor`, `event_time`, `key`, `value` and
    `attributes`. It must return `shard_id` unchanged. It can drop rows, add rows and add columns.
    Rows whose `quarantine_error` is not null go to quarantine instead of the output.

    Several processes call the function, many times per batch, so each call must be independent.
    Use a transform of DataFrames to count or compare the records of a whole batch.

    Args:
        function: takes a `pyarrow.Table` and returns one, with the same columns in every call.

    Examples:
        >>> @arrow_transform
        ... def visits(records):
        ...     return parse_json(records, "path string, status int")
        >>> ShardStream("visits", LocalLog("log"), transform=visits).name
        'visits'
    """
    return ArrowTransform(function)


def decodes(transform: ArrowTransform | None) -> bool:
    """Return True if a transform decodes records, so that its columns follow their schemas."""
    return getattr(getattr(transform, "function", None), "decodes", False)


def schemas_of(transform: ArrowTransform | None) -> tuple[str, ...]:
    """Return the schemas of the records that a transform has decoded, for messages."""
    return getattr(transform.function, "schemas", ()) if transform else ()


def name_of(transform: Callable[..., object] | None) -> str:
    """Return the qualified name of a transform, or an empty text for None."""
    if transform is None:
        return ""
    named = transform if hasattr(transform, "__qualname__") else type(transform)
    return f"{named.__module__}.{getattr(named, '__qualname__', '')}"


def checked(output: object, shard: ShardId, name: str) -> pa.Table:
    """Check the output of an Arrow transform, and return it in plain types.

    Large strings, views and dictionaries become plain strings and bytes, and timestamps with a
    time zone become UTC. The files then do not depend on the library or the machine.

    Raises:
        TransformError: the output is not a table, repeats a column name, changes `shard_id`, has a
            column that Arrow cannot convert, or lacks columns for quarantine.
    """
    import pyarrow as pa
    import pyarrow.compute

    pc: Any = pyarrow.compute
    where = f"The transform {name}"
    if not isinstance(output, pa.Table):
        raise TransformError(
            f"{where} returned {type(output).__name__}: return the Arrow table to write."
        )
    table: Any = _in_plain_types(where, output)
    columns = table.schema.names
    repeated = sorted({column for column in columns if columns.count(column) > 1})
    if repeated:
        raise TransformError(
            f"{where} returned several columns named {', '.join(map(shown, repeated))}: give each "
            "column its own name."
        )
    strings = SHARD_COLUMN in columns and table.schema.field(SHARD_COLUMN).type == pa.string()
    check_columns(where, columns, shards_are_strings=strings)
    shards = table.column(SHARD_COLUMN)
    bounds = pc.min_max(shards).as_py()
    if table.num_rows and (shards.null_count or set(bounds.values()) != {shard}):
        raise TransformError(
            f"{where} changed values of the column {SHARD_COLUMN}, which were all {shown(shard)}: "
            "leave this column as it is."
        )
    return table


def check_columns(where: str, columns: Collection[str], *, shards_are_strings: bool) -> None:
    """Check the columns of a transform's output, from Arrow or from Spark.

    Args:
        where: the transform, as the subject of a message.
        shards_are_strings: True if the output has a column `shard_id` of strings.

    Raises:
        TransformError: `shard_id` was dropped or changed, or columns for quarantine are missing.
    """
    if not shards_are_strings:
        raise TransformError(
            f"{where} dropped or changed the column {SHARD_COLUMN}: keep it, because output is "
            "written and committed shard by shard."
        )
    missing = [column for column in QUARANTINE_COLUMNS if column not in columns]
    if ERROR_COLUMN in columns and missing:
        raise TransformError(
            f"{where} returns {ERROR_COLUMN} without {', '.join(missing)}: keep these columns, "
            "because quarantine stores them."
        )


def _in_plain_types(where: str, table: pa.Table) -> pa.Table:
    import pyarrow as pa

    plain_types = [_plain(type_) for type_ in table.schema.types]
    for index, (field, type_) in enumerate(zip(table.schema, plain_types, strict=True)):
        if field.type.equals(type_):
            continue
        try:
            column = table.column(index).cast(type_)
        except pa.ArrowException as error:
            raise TransformError(
                f"{where} returned column {shown(field.name)} as {shown(str(field.type))}, which "
                f"Arrow cannot convert to {shown(str(type_))} ({one_line(str(error))}). Return "
                "that type or another one."
            ) from error
        table = table.set_column(index, field.with_type(type_), column)
    return table


def _plain(type_: pa.DataType) -> pa.DataType:
    """Replace large, view and dictionary types with plain ones, and any time zone with UTC."""
    import pyarrow as pa

    simple = {
        pa.large_string(): pa.string(),
        pa.string_view(): pa.string(),
        pa.large_binary(): pa.binary(),
        pa.binary_view(): pa.binary(),
    }
    if type_ in simple:
        return simple[type_]
    if pa.types.is_dictionary(type_):
        return _plain(type_.value_type)
    if pa.types.is_timestamp(type_) and type_.tz:
        return pa.timestamp(type_.unit, "UTC")
    return _plain_nested(type_) if pa.types.is_nested(type_) else type_


def _plain_nested(type_: Any) -> Any:
    import pyarrow as pa

    if pa.types.is_struct(type_):
        return pa.struct([field.with_type(_plain(field.type)) for field in type_])
    if pa.types.is_map(type_):
        return pa.map_(_plain(type_.key_type), _plain(type_.item_type))
    if pa.types.is_fixed_size_list(type_):
        return pa.list_(type_.value_field.with_type(_plain(type_.value_type)), type_.list_size)
    if pa.types.is_list(type_) or pa.types.is_large_list(type_):
        return pa.list_(type_.value_field.with_type(_plain(type_.value_type)))
    return type_
