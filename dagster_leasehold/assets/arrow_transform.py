"""Transforms from Arrow table to Arrow table: how one is declared, and its result."""

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
    """A transform from Arrow table to Arrow table, made by `arrow_transform`.

    It bears the name, the module and the docstring of its function, and is called like it.
    """

    function: TableFunction

    def __post_init__(self) -> None:
        named = self.function if hasattr(self.function, "__qualname__") else type(self.function)
        for attribute in ("__module__", "__name__", "__qualname__", "__doc__"):
            object.__setattr__(self, attribute, getattr(named, attribute))

    def __call__(self, records: pa.Table) -> pa.Table:
        """Return the function's result for these records, unchecked."""
        return self.function(records)


def arrow_transform(function: TableFunction) -> ArrowTransform:
    """Declare a stream's transform as one from Arrow table to Arrow table; a decorator.

    Records then stay in the worker that reads them, which is several times faster than a transform
    of DataFrames. The table holds consecutive records of one shard in their order, a part of a
    batch, with the columns `shard_id`, `cursor`, `event_time`, `key`, `value` and `attributes`.
    The function keeps the column `shard_id` as it is; it can leave rows out, and add rows and
    columns. Rows whose column `quarantine_error` is not null go to quarantine instead of the
    output. It is called many times for one batch, in several processes, so that each call stands
    alone: what counts or compares records of a whole batch is for Spark.

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


def name_of(transform: Callable[..., object] | None) -> str:
    """Return the name of a transform; empty if there is none."""
    if transform is None:
        return ""
    named = transform if hasattr(transform, "__qualname__") else type(transform)
    return f"{named.__module__}.{getattr(named, '__qualname__', '')}"


def checked(output: object, shard: ShardId, name: str) -> pa.Table:
    """Return the output of an Arrow transform if it can be committed.

    Columns of large strings, views and dictionaries, as libraries return text and bytes,
    become plain ones, and moments of any zone are in UTC, so that files do not differ by the
    library or the machine.

    Args:
        output: the value that the transform returned.
        shard: the shard that all its records belong to.
        name: the name of the transform, for messages.

    Raises:
        TransformError: it is no table, or its shards or its quarantine are not as they must be.
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
            f"{where} returned several columns of the name {', '.join(map(shown, repeated))}: give "
            "each column a name of its own."
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
    """Check the columns of a transform's output, of either kind.

    Args:
        where: the transform, at the beginning of a sentence.
        columns: the names of the columns.
        shards_are_strings: True if `shard_id` is among them, and of its type.

    Raises:
        TransformError: `shard_id` is not as it was, or quarantine lacks columns.
    """
    if not shards_are_strings:
        raise TransformError(
            f"{where} dropped or changed the column {SHARD_COLUMN}: keep it, since output is "
            "written and committed shard by shard."
        )
    missing = [column for column in QUARANTINE_COLUMNS if column not in columns]
    if ERROR_COLUMN in columns and missing:
        raise TransformError(
            f"{where} returns {ERROR_COLUMN} without {', '.join(missing)}: keep these columns, "
            "which quarantined records are stored with."
        )


def _in_plain_types(where: str, table: pa.Table) -> pa.Table:
    import pyarrow as pa

    kinds = [_plain(kind) for kind in table.schema.types]
    for at, (field, kind) in enumerate(zip(table.schema, kinds, strict=True)):
        if field.type.equals(kind):
            continue
        try:
            column = table.column(at).cast(kind)
        except pa.ArrowException as error:
            raise TransformError(
                f"{where} returned column {shown(field.name)} as {shown(str(field.type))}, which "
                f"Arrow cannot bring into {shown(str(kind))} ({one_line(str(error))}): return the "
                "latter, or another type."
            ) from error
        table = table.set_column(at, field.with_type(kind), column)
    return table


def _plain(kind: pa.DataType) -> pa.DataType:
    """Return the type that holds the same values without the layout of one library."""
    import pyarrow as pa

    of = pa.types
    simple = {
        pa.large_string(): pa.string(),
        pa.string_view(): pa.string(),
        pa.large_binary(): pa.binary(),
        pa.binary_view(): pa.binary(),
    }
    if kind in simple:
        return simple[kind]
    if of.is_dictionary(kind):
        return _plain(kind.value_type)
    if of.is_timestamp(kind) and kind.tz:
        return pa.timestamp(kind.unit, "UTC")
    return _plain_nested(kind) if of.is_nested(kind) else kind


def _plain_nested(kind: Any) -> Any:
    import pyarrow as pa

    of = pa.types
    if of.is_struct(kind):
        return pa.struct([field.with_type(_plain(field.type)) for field in kind])
    if of.is_map(kind):
        return pa.map_(_plain(kind.key_type), _plain(kind.item_type))
    if of.is_fixed_size_list(kind):
        return pa.list_(kind.value_field.with_type(_plain(kind.value_type)), kind.list_size)
    if of.is_list(kind) or of.is_large_list(kind):
        return pa.list_(kind.value_field.with_type(_plain(kind.value_type)))
    return kind
