"""Divides rows by route, as Spark's workers write them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dagster_leasehold.assets.arrow_transform import (
    ERROR_COLUMN,
    QUARANTINE_COLUMNS,
    ArrowTransform,
    decodes,
    schemas_of,
)
from dagster_leasehold.assets.errors import TransformError
from dagster_leasehold.assets.routes import ROUTE_COLUMN, RouteFunction, Routing, parsed_route
from dagster_leasehold.lease_store.errors import shown

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True)
class RoutedTransform:
    """Applies a transform, and adds the routes of its rows as the column `route`."""

    function: RouteFunction
    transform: ArrowTransform | None

    def __post_init__(self) -> None:
        # For messages about errors, and to send the code of the function to Spark's workers.
        named = self.transform or self.function
        for attribute in ("__module__", "__name__", "__qualname__", "__doc__"):
            value = getattr(named, attribute, getattr(type(named), attribute, ""))
            object.__setattr__(self, attribute, value)

    @property
    def decodes(self) -> bool:
        """True if the columns follow the schemas of records."""
        return decodes(self.transform)

    @property
    def schemas(self) -> tuple[str, ...]:
        """The schemas of the records, for messages."""
        return schemas_of(self.transform)

    def __call__(self, records: pa.Table) -> pa.Table:
        """Return the rows of the transform with their routes."""
        rows = records if self.transform is None else self.transform(records)
        if ROUTE_COLUMN in rows.schema.names:
            rows = rows.drop_columns([ROUTE_COLUMN])
        return rows.append_column(ROUTE_COLUMN, self.function(rows))


def routed(
    rows: pa.RecordBatch, routing: Routing, new_routes: set[str]
) -> Iterator[tuple[str | None, pa.RecordBatch]]:
    """Yield the rows of each route, in order; the route is empty for rows without a table.

    Rows with an unknown route that go to quarantine have the route None and an error.

    Args:
        rows: rows without an error.
        new_routes: the routes that the task has added, which this function extends.

    Raises:
        TransformError: the column of routes has no texts, or the rows lack columns for quarantine.
    """
    import pyarrow as pa
    import pyarrow.compute

    # Its functions are defined at run time, which a type checker cannot see.
    pc: Any = pyarrow.compute

    values = _texts(rows, routing.column).dictionary_encode(null_encoding="encode")
    names = values.dictionary.to_pylist()
    routes = [_table_of(name, routing, new_routes) for name in names]
    order = list(dict.fromkeys(routes))
    if len(order) == 1:
        yield _of_route(order[0], rows, routing)
        return
    places = {route: place for place, route in enumerate(order)}
    own = pa.array([places[route] for route in routes], pa.int32()).take(values.indices)
    for place, route in enumerate(order):
        yield _of_route(route, rows.filter(pc.equal(own, place)), routing)


def _texts(rows: pa.RecordBatch, column: str) -> pa.Array:
    import pyarrow as pa

    at = rows.schema.get_field_index(column)
    if at < 0 or pa.types.is_null(rows.schema.field(at).type):
        return pa.nulls(rows.num_rows, pa.string())
    values = rows.column(at)
    if pa.types.is_dictionary(values.type):
        values = values.dictionary_decode()
    if not (pa.types.is_string(values.type) or pa.types.is_large_string(values.type)):
        raise TransformError(
            f"Column {shown(column)} is {values.type}, and the names of routes are texts: route by "
            "a column of texts, or convert it."
        )
    return values


def _table_of(name: str | None, routing: Routing, new_routes: set[str]) -> str | None:
    """Return the route of rows with this name: empty for none, None for quarantine."""
    route = parsed_route(name)
    if route and route not in routing.routes and route != routing.fallback:
        if route not in new_routes and len(new_routes) >= routing.room:
            route = ""
        else:
            new_routes.add(route)
    if route:
        return route
    return None if routing.quarantines else routing.fallback


def _of_route(
    route: str | None, rows: pa.RecordBatch, routing: Routing
) -> tuple[str | None, pa.RecordBatch]:
    """Return a route and its rows; rows for quarantine get an error."""
    import pyarrow as pa

    if route is not None:
        return route, rows
    missing = [name for name in QUARANTINE_COLUMNS[:-1] if name not in rows.schema.names]
    if missing:
        raise TransformError(
            f"Records have an unknown route, and unknown_routes is quarantine: keep "
            f"{', '.join(missing)}, so that they can go there."
        )
    names = _texts(rows, routing.column).to_pylist()
    errors = [f"The route {shown(name or '')} in {routing.column} is unknown" for name in names]
    return None, rows.append_column(ERROR_COLUMN, pa.array(errors, pa.string()))
