"""The columns of a table as JSON, and the merge of a file's columns into them.

A column has a `name` and a `type`. A primitive type has Iceberg's name (`long`, `decimal(10, 2)`,
`timestamptz`); a nested type is `{"list": type}`, `{"map": [key, value]}` or `{"struct": [column,
…]}`. Spark's workers also describe their files this way, so this module needs only Arrow.

A column of a table can also have `earlier`, the names that it had before it was renamed, and
`removed`. Files keep the columns with which they were written.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

from dagster_leasehold.assets.errors import SchemaUnusable, TooManyRoutes, TransformError
from dagster_leasehold.lease_store.errors import one_line, shown
from dagster_leasehold.lease_store.identifiers import GroupKey
from dagster_leasehold.lease_store.outcomes import Changed
from dagster_leasehold.lease_store.publication_rows import TableColumns
from dagster_leasehold.lease_store.roles.publications import Publications

if TYPE_CHECKING:
    import pyarrow as pa

    from dagster_leasehold.assets.shard_stream import ShardStream

ColumnType = str | dict[str, Any]
Column = dict[str, Any]
"""A column as JSON: `name` and `type`, and in a table also `earlier` and `removed`."""
Columns = list[Column]

ROUTES = "routes"
"""The key of a column for the routes that have values in it."""
DECIMAL_DIGITS_MAX = 38
_DECIMAL = re.compile(r"decimal\((\d+), (\d+)\)")
_FIXED = re.compile(r"fixed\[(\d+)\]")
_OF_ICEBERG = {
    *("_file", "_pos", "_deleted", "_spec_id", "_partition", "_row_id"),
    "_last_updated_sequence_number",
}
"""The names of Iceberg's metadata columns. Spark reads no table that has a column with one."""
_WIDER = {"int": ("long",), "float": ("double",)}


class _DoesNotFit(Exception):
    """Two types of a column, or of its nested field at `path`, have no common wider type."""

    def __init__(self, path: str, before: ColumnType, now: ColumnType) -> None:
        super().__init__(path)
        self.path, self.before, self.now = path, before, now


def stored_schema(schema: pa.Schema) -> pa.Schema:
    """Return the schema for writing rows, with types that a table can have.

    Times are converted to microseconds, unsigned integers to signed integers of twice the size, and
    encodings to plain types. Columns without a type are dropped, such as a column of nulls or of
    empty lists. A table reads missing columns as null.

    Raises:
        TransformError: a table cannot have the type of a column.
    """
    import pyarrow as pa

    return pa.schema(_stored_fields("", schema), metadata=schema.metadata)


def in_stored_types(rows: pa.RecordBatch, stored: pa.Schema) -> pa.RecordBatch:
    """Return rows with the columns of a stored schema; missing columns become null.

    Raises:
        TransformError: a value has more digits than the type of its column in a table.
    """
    import pyarrow as pa

    if rows.schema.equals(stored):
        return rows
    columns: list[pa.Array] = []
    for field in stored:
        if field.name not in rows.schema.names:
            columns.append(pa.nulls(rows.num_rows, field.type))
            continue
        column = rows.column(field.name)
        try:
            columns.append(column if column.type.equals(field.type) else column.cast(field.type))
        except pa.ArrowException as error:
            raise TransformError(
                f"Column {shown(field.name)} cannot be stored as {field.type}, its type in the "
                f"table ({one_line(str(error))}): round its values, or return another type."
            ) from error
    return pa.RecordBatch.from_arrays(columns, schema=stored)


def columns_of(schema: pa.Schema) -> Columns:
    """Return the columns of a file with a stored schema.

    Raises:
        TransformError: a table cannot have the type of a column, or engines cannot distinguish two
            column names.
    """
    columns = [_column(field.name, _type_of(field.name, field.type)) for field in schema]
    check_names(columns)
    return columns


def merged(agreed: Columns, file: Columns) -> Columns:
    """Return the agreed columns, widened and extended by the columns of a file.

    The result equals `agreed` if the file has no new column or type. The order does not matter.

    Raises:
        TransformError: a column of the file does not fit the agreed column, or engines cannot
            distinguish two column names.
    """
    try:
        # The columns of a restored table can have names that the agreed ones lack.
        agreed = _in_current_names(file, agreed)
        file = _in_current_names(agreed, file)
        columns = _with_routes(_merged_fields("", agreed, file), agreed, file)
    except _DoesNotFit as misfit:
        raise TransformError(
            f"Column {shown(misfit.path)} is {type_text(misfit.before)} in the table, but "
            f"{type_text(misfit.now)} in the new records: use the type of the table, or give the "
            "column another name."
        ) from None
    if columns != agreed:
        check_names(columns)
    return columns


def of_route(columns: Iterable[Column], route: str, names: Collection[str]) -> tuple[Column, ...]:
    """Note a route on the columns that its file has, which are named."""
    return tuple(
        {**column, ROUTES: [route]} if column["name"] in names else column for column in columns
    )


def routes_of(columns: Iterable[Mapping[str, Any]]) -> set[str]:
    """Return the routes that are noted on columns."""
    return {route for column in columns for route in column.get(ROUTES, ())}


def stream_routes(store: Publications, key: GroupKey) -> set[str]:
    """Return the routes of a stream, in one statement."""
    publication = store.publication(key)
    return set() if publication is None else routes_of(publication.columns.columns)


def columns_of_route(columns: Iterable[Mapping[str, Any]], route: str) -> Columns:
    """Return the columns that files of a route have."""
    return [dict(column) for column in columns if route in column.get(ROUTES, ())]


def _with_routes(columns: Columns, *sources: Iterable[Column]) -> Columns:
    """Return columns with the routes that are noted on them in some sources."""
    routes: dict[str, set[str]] = {}
    for column in (each for source in sources for each in source):
        routes.setdefault(column["name"], set()).update(column.get(ROUTES, ()))
    return [
        {**column, ROUTES: sorted(own)} if (own := routes[column["name"]]) else column
        for column in columns
    ]


def joined(one: Columns, other: Columns) -> Columns | None:
    """Return common columns for the rows of two files, or None if there are none."""
    import pyarrow as pa

    if one == other:
        return one
    try:
        both = merged(one, other)
        for each in (one, other):
            # Older releases of PyArrow cannot change the order of a struct's fields.
            rows = pa.RecordBatch.from_pylist([], arrow_schema(each))
            in_stored_types(rows, arrow_schema(both))
    except TransformError:
        return None
    return both


def earlier_names(columns: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    """Return the current name of each earlier name of a table's columns."""
    return {name: each["name"] for each in columns for name in each.get("earlier", ())}


def present(columns: Iterable[Mapping[str, Any]]) -> Columns:
    """Return the columns that a table shows, which are those that were not removed."""
    return [dict(each) for each in columns if not each.get("removed")]


def with_current_names(rows: pa.RecordBatch, names: Mapping[str, str]) -> pa.RecordBatch:
    """Return rows whose columns have current names; see `earlier_names`.

    If rows have a column under both names, as records of two schemas do, each row has the value
    that is not null.

    Raises:
        TransformError: a row has two values for a column.
    """
    import pyarrow as pa
    import pyarrow.compute

    pc: Any = pyarrow.compute
    for name in [each for each in rows.schema.names if each in names]:
        current, at = names[name], rows.schema.get_field_index(name)
        column = rows.column(at)
        if (other := rows.schema.get_field_index(current)) < 0:
            rows = rows.set_column(at, current, column)
            continue
        new = rows.column(other)
        try:
            twice = pc.any(pc.and_(column.is_valid(), new.is_valid())).as_py()
            both = None if twice else pc.coalesce(new, column)
        except pa.ArrowException:
            both = None
        if both is None:
            raise TransformError(_two_names(name, current))
        rows = rows.set_column(other, current, both).drop_columns([name])
    return rows


def arrow_schema(columns: Columns) -> pa.Schema:
    """Return the stored schema that has these columns."""
    import pyarrow as pa

    return pa.schema([_arrow_field(column) for column in columns])


@dataclass(slots=True)
class ColumnAgreement:
    """The columns of one group's table, on which its runs agree before they commit.

    If two runs add columns at the same time, the store accepts one set of columns. The other run
    reads it and adds its own columns, or is refused.

    Attributes:
        routes_max: the most routes; None if the stream has no routes.
        fallback: the route of records with an unknown route, which does not count; empty for none.
    """

    store: Publications
    key: GroupKey
    routes_max: int | None = None
    fallback: str = ""
    _agreed: TableColumns | None = None

    @classmethod
    def of_stream(cls, store: Publications, stream: ShardStream) -> Self:
        """Return the agreement of a stream's runs."""
        limit = stream.iceberg.routes_max if stream.route_column else None
        return cls(store, stream.key, limit, stream.iceberg.fallback_route)

    def agree_decoded(
        self, files: Iterable[Sequence[Column]], schemas: Sequence[str]
    ) -> TableColumns:
        """Agree on the columns of files whose records were decoded with these schemas.

        Raises:
            TransformError: as `agree`.
            SchemaUnusable: instead, if there are schemas.
        """
        try:
            return self.agree(files)
        except TransformError as error:
            if not schemas:
                raise
            raise SchemaUnusable(
                f"Records with {', '.join(schemas)} do not fit the table, so nothing of their "
                f"batch was committed. {error}"
            ) from error

    def agree(self, files: Iterable[Sequence[Column]]) -> TableColumns:
        """Agree on the columns of some files, and return the columns of the table.

        The store is read only for columns that are new to this process.

        Raises:
            TransformError: a column does not fit the agreed one.
            TooManyRoutes: the files have more new routes than the stream can add.
        """
        column_lists = [list(columns) for columns in files]
        agreed = self._agreed or self.read()
        while True:
            columns: Columns = [dict(column) for column in agreed.columns]
            before = columns
            for each in column_lists:
                columns = merged(columns, each)
            surplus = self._surplus(before, columns)
            columns = _without_routes(columns, surplus)
            if columns == before:
                self._agreed = agreed
                if surplus:
                    raise TooManyRoutes(self.routes_max or 0)
                return agreed
            # If another run was faster, read its columns.
            outcome = self.store.agree_columns(self.key, columns, seen_version=agreed.version)
            agreed = (
                TableColumns(agreed.version + 1, tuple[Any, ...](columns))
                if isinstance(outcome, Changed)
                else self.read()
            )

    def _surplus(self, before: Columns, columns: Columns) -> set[str]:
        """Return the new routes beyond the limit."""
        if self.routes_max is None:
            return set()
        before_routes = routes_of(before) - {self.fallback}
        new = sorted(routes_of(columns) - before_routes - {self.fallback})
        return set(new[max(0, self.routes_max - len(before_routes)) :])

    def change(self, seen: TableColumns, columns: Columns, *, observer: str, reason: str) -> bool:
        """Replace the columns for an operator; return False if they are not `seen` any longer."""
        version = seen.version
        outcome = self.store.agree_columns(
            self.key, columns, seen_version=version, observer=observer, reason=reason
        )
        self._agreed = None
        return isinstance(outcome, Changed)

    def earlier_names(self) -> dict[str, str]:
        """Return the current names of renamed columns, by earlier name."""
        return earlier_names(self.read().columns)

    def read(self) -> TableColumns:
        """Read the columns of the table from the store."""
        publication = self.store.publication(self.key)
        return TableColumns() if publication is None else publication.columns


def _without_routes(columns: Columns, routes: Collection[str]) -> Columns:
    """Return columns without these routes."""
    remaining: Columns = []
    for column in columns:
        own = [route for route in column.get(ROUTES, ()) if route not in routes]
        plain = {key: value for key, value in column.items() if key != ROUTES}
        remaining.append({**plain, ROUTES: own} if own else plain)
    return remaining


def _two_names(name: str, current: str) -> str:
    return (
        f"The table's column {shown(current)} was renamed from {shown(name)}, and the new records "
        "have both: return only the new name."
    )


def _in_current_names(agreed: Sequence[Column], file: Sequence[Column]) -> Columns:
    """Return the columns of a file under the names of the table.

    Raises:
        TransformError: the file has a column under two names.
    """
    names, present_names = earlier_names(agreed), {each["name"] for each in file}
    for name in present_names & names.keys():
        if names[name] in present_names:
            raise TransformError(_two_names(name, names[name]))
    return [{**each, "name": names.get(each["name"], each["name"])} for each in file]


def check_names(columns: Columns) -> None:
    """Refuse Iceberg's own names, and names that differ only in case.

    Most engines cannot distinguish the latter.
    A nested field is named by its path, so a dot in a column's name can also make two names equal.
    A column's earlier names count, unless they differ from its own name only in case.
    """
    for column in columns:
        if column["name"].lower() in _OF_ICEBERG:
            raise TransformError(
                f"Column {shown(column['name'])} has a name that Iceberg reserves, and Spark could "
                "not read the table: give it another name."
            )
    names: dict[str, str] = {}
    earlier = {
        name.lower(): name
        for name, current in earlier_names(columns).items()
        if name.lower() != current.lower()
    }
    for name in _paths(columns):
        if (other := names.get(name.lower()) or earlier.get(name.lower())) is not None:
            raise TransformError(
                f"Two columns are named {shown(other)} and {shown(name)}, which engines that read "
                "the table cannot distinguish: rename one."
            )
        names[name.lower()] = name


def _paths(columns: Columns, prefix: str = "") -> Iterator[str]:
    for column in columns:
        path = f"{prefix}{column['name']}"
        yield path
        yield from _paths(_nested_columns(column["type"]), f"{path}.")


def _nested_columns(kind: ColumnType) -> Columns:
    """Return the fields inside a type, with Iceberg's names."""
    if isinstance(kind, str):
        return []
    (form, inner), *_ = kind.items()
    if form == "list":
        return [_column("element", inner)]
    if form == "map":
        return [_column("key", inner[0]), _column("value", inner[1])]
    return inner


def _stored_fields(prefix: str, fields: Iterable[pa.Field]) -> list[pa.Field]:
    import pyarrow as pa

    stored = [(field, _stored(f"{prefix}{field.name}", field.type)) for field in fields]
    return [
        pa.field(field.name, kind, field.nullable) for field, kind in stored if kind is not None
    ]


def _stored(name: str, kind: pa.DataType) -> pa.DataType | None:
    """Return the type in a table for an Arrow type; None if no value can have it."""
    import pyarrow as pa

    if pa.types.is_null(kind):
        return None
    if isinstance(kind, pa.BaseExtensionType):
        return _stored(name, kind.storage_type)
    if isinstance(kind, pa.DictionaryType):
        return _stored(name, kind.value_type)
    for is_kind, stored in _PLAIN:
        if getattr(pa.types, is_kind)(kind):
            return stored(pa, kind)
    return _stored_nested(name, kind)


def _stored_integer(arrow: Any, kind: Any) -> Any:
    if arrow.types.is_uint64(kind):
        return arrow.decimal128(20, 0)
    small = kind.bit_width < 32 or kind.equals(arrow.int32())
    return arrow.int32() if small else arrow.int64()


def _stored_decimal(arrow: Any, kind: Any) -> Any:
    fits = kind.precision <= DECIMAL_DIGITS_MAX
    return arrow.decimal128(kind.precision, kind.scale) if fits else kind


_PLAIN: tuple[tuple[str, Callable[[Any, Any], Any]], ...] = (
    ("is_integer", _stored_integer),
    ("is_float16", lambda arrow, _: arrow.float32()),
    ("is_timestamp", lambda arrow, kind: arrow.timestamp("us", tz="UTC" if kind.tz else None)),
    ("is_time", lambda arrow, _: arrow.time64("us")),
    ("is_date", lambda arrow, _: arrow.date32()),
    ("is_large_string", lambda arrow, _: arrow.string()),
    ("is_string_view", lambda arrow, _: arrow.string()),
    ("is_large_binary", lambda arrow, _: arrow.binary()),
    ("is_binary_view", lambda arrow, _: arrow.binary()),
)
"""Arrow's predicates on types, each with the type in a table."""


def _stored_nested(name: str, kind: pa.DataType) -> pa.DataType | None:
    import pyarrow as pa

    types = pa.types
    if isinstance(kind, pa.MapType):
        key, value = _stored(name, kind.key_type), _stored(name, kind.item_type)
        return None if key is None or value is None else pa.map_(key, value)
    if isinstance(kind, pa.StructType):
        fields = _stored_fields(f"{name}.", [kind.field(at) for at in range(kind.num_fields)])
        return pa.struct(fields) if fields else None
    # PyArrow cannot cast list views with short offsets.
    predicates = (
        types.is_list,
        types.is_large_list,
        types.is_fixed_size_list,
        types.is_large_list_view,
    )
    if any(is_kind(kind) for is_kind in predicates):
        element = _stored(name, kind.value_type)
        return None if element is None else pa.list_(element)
    if types.is_decimal(kind):
        kind = _stored_decimal(pa, kind)
    _type_of(name, kind)
    return kind


def _plain_types() -> dict[pa.DataType, str]:
    """Return Arrow's types without parameters, and their names in Iceberg."""
    import pyarrow as pa

    return {
        pa.bool_(): "boolean",
        pa.int32(): "int",
        pa.int64(): "long",
        pa.float32(): "float",
        pa.float64(): "double",
        pa.date32(): "date",
        pa.time64("us"): "time",
        pa.timestamp("us"): "timestamp",
        pa.timestamp("us", tz="UTC"): "timestamptz",
        pa.string(): "string",
        pa.binary(): "binary",
    }


def _arrow_field(column: Column) -> pa.Field:
    import pyarrow as pa

    return pa.field(column["name"], _arrow_type(column["type"]))


def _arrow_type(kind: ColumnType) -> pa.DataType:
    import pyarrow as pa

    if isinstance(kind, dict):
        (form, inner), *_ = kind.items()
        if form == "struct":
            return pa.struct([_arrow_field(column) for column in inner])
        if form == "list":
            return pa.list_(_arrow_type(inner))
        return pa.map_(_arrow_type(inner[0]), _arrow_type(inner[1]))
    if match := _DECIMAL.fullmatch(kind):
        return pa.decimal128(int(match[1]), int(match[2]))
    if match := _FIXED.fullmatch(kind):
        return pa.binary(int(match[1]))
    return next(plain for plain, word in _plain_types().items() if word == kind)


def _type_of(name: str, kind: pa.DataType) -> ColumnType:
    import pyarrow as pa

    types = pa.types
    if (word := _plain_types().get(kind)) is not None:
        return word
    if types.is_decimal128(kind) and 0 <= kind.scale <= kind.precision:
        return f"decimal({kind.precision}, {kind.scale})"
    if types.is_fixed_size_binary(kind):
        return f"fixed[{kind.byte_width}]"
    if isinstance(kind, pa.MapType):
        return {"map": [_type_of(name, kind.key_type), _type_of(name, kind.item_type)]}
    if isinstance(kind, pa.ListType):
        return {"list": _type_of(name, kind.value_type)}
    if isinstance(kind, pa.StructType) and kind.num_fields:
        fields = [kind.field(at) for at in range(kind.num_fields)]
        inner = [_column(at.name, _type_of(f"{name}.{at.name}", at.type)) for at in fields]
        return {"struct": inner}
    raise TransformError(
        f"Column {shown(name)} has the type {shown(str(kind))}, which a table cannot have: return "
        "another type."
    )


def _column(name: str, kind: ColumnType) -> Column:
    return {"name": name, "type": kind}


def _merged_fields(path: str, agreed: Sequence[Column], file: Sequence[Column]) -> Columns:
    added = {column["name"]: column for column in file}
    fields: Columns = []
    for column in agreed:
        name, kind = column["name"], column["type"]
        own = added.pop(name, column)
        both = _merged_type(f"{path}{name}", kind, own["type"])
        fields.append({**own, **column, "type": both})
    return [*fields, *added.values()]


def _merged_type(path: str, agreed: ColumnType, file: ColumnType) -> ColumnType:
    if agreed == file:
        return agreed
    if isinstance(agreed, dict) and isinstance(file, dict):
        nested = _merged_nested(path, agreed, file)
        if nested is not None:
            return nested
    wider = _wider(agreed, file) if isinstance(agreed, str) and isinstance(file, str) else None
    if wider is not None:
        return wider
    raise _DoesNotFit(path, agreed, file)


def _merged_nested(path: str, agreed: Column, file: Column) -> Column | None:
    if "struct" in agreed and "struct" in file:
        return {"struct": _merged_fields(f"{path}.", agreed["struct"], file["struct"])}
    if "list" in agreed and "list" in file:
        return {"list": _merged_type(f"{path}.element", agreed["list"], file["list"])}
    # The keys of a map cannot be widened.
    if "map" in agreed and "map" in file and agreed["map"][0] == file["map"][0]:
        value = _merged_type(f"{path}.value", agreed["map"][1], file["map"][1])
        return {"map": [agreed["map"][0], value]}
    return None


def _wider(agreed: str, file: str) -> str | None:
    """Return the wider of two types, or None if neither includes the other."""
    if agreed in _WIDER.get(file, ()):
        return agreed
    if file in _WIDER.get(agreed, ()):
        return file
    one, other = _DECIMAL.fullmatch(agreed), _DECIMAL.fullmatch(file)
    if one and other and one[2] == other[2]:
        return f"decimal({max(int(one[1]), int(other[1]))}, {one[2]})"
    return None


def type_text(kind: ColumnType) -> str:
    """Return a readable name of a column's type."""
    if isinstance(kind, str):
        return kind
    (form, inner), *_ = kind.items()
    if form == "list":
        return f"list of {type_text(inner)}"
    if form == "map":
        return f"map of {type_text(inner[0])} to {type_text(inner[1])}"
    fields = (f"{column['name']} {type_text(column['type'])}" for column in inner)
    return f"struct of {', '.join(fields)}"
