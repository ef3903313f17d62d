"""The settings of a stream's published table and of its catalog."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated

from pydantic import BeforeValidator, Field

from dagster_leasehold.assets.declared import NOT_NEGATIVE, POSITIVE, Declared, declared
from dagster_leasehold.assets.partition_fields import (
    PARTITION,
    UNDIVIDED,
    PartitionField,
    Partitioning,
)
from dagster_leasehold.assets.publication_check import PublicationCheck, declared_check
from dagster_leasehold.assets.routes import (
    QUARANTINE,
    ROUTE,
    STREAM_ONLY,
    Routing,
    check_unknown_routes,
)
from dagster_leasehold.lease_store.errors import InvalidSetting, shown
from dagster_leasehold.lease_store.identifiers import GroupKey
from dagster_leasehold.lease_store.publication_rows import TableName

OTHER_CHECKS = ("lag", "no_gap", "progress", "quarantine_rate", "table")
"""The names of the other asset checks of a stream."""
CATALOG_DEFAULT = "leasehold"
NAMESPACE_DEFAULT = "leasehold"
PARTITION_FIELD = Field(json_schema_extra={"pattern": f"^{PARTITION}$"})
SECRET_PROPERTY = re.compile(r"(?i)secret|token|password|credential|access-key|session-key")
"""Names of catalog properties that hold secrets, which only the environment can set."""
_SORT = re.compile(r"(\w+)( asc| desc)?")
_LEVEL = r"[A-Za-z0-9_][A-Za-z0-9_-]*"
_NAME = re.compile(rf"(?:({_LEVEL}(?:\.{_LEVEL})*)\.)?({_LEVEL})")


def sort_text(order: Sequence[str]) -> str:
    """Return a sort order as one text, such as `user, at desc`; empty for none."""
    return ", ".join(each.removesuffix(" asc") for each in order)


@declared
class TableSettings(Declared):
    """The name and layout of a stream's published table.

    Examples:
        >>> TableSettings(name="web.visits", partitioning=["shard_id"]).snapshots_kept
        50
    """

    name: Annotated[str | None, Field(examples=["web.visits"])] = None
    """The name of the published table, as `NAME` or `NAMESPACE.NAME`; by default `STREAM`,
    or `STREAM__GROUP` for a group other than `default`."""
    partitioning: tuple[Annotated[str, PARTITION_FIELD], ...] = ("shard_id", "day(event_time)")
    """The fields of the table's partitions, or none: a column, `bucket(N, column)`,
    `truncate(N, column)`, or `year`, `month`, `day` or `hour` of a column."""
    partitions_max: Annotated[int, POSITIVE] = 100
    """The most partitions into which a task divides the records of a shard in one batch; further
    records go into one file that is partitioned by `shard_id` only."""
    sort_order: tuple[str, ...] = ()
    """The columns by which compaction sorts files, each with ` asc` or ` desc` if needed."""
    routes_max: Annotated[int, POSITIVE] = 100
    """The most routes."""
    unknown_routes: Annotated[str, Field(json_schema_extra={"pattern": f"^{ROUTE}$"})] = STREAM_ONLY
    """The place of records with a null, invalid or surplus route: only the `stream`'s table,
    `quarantine`, or the table of a route."""
    properties: Mapping[str, str] = field(default_factory=dict[str, str], hash=False)
    """Iceberg's table properties."""
    snapshots_kept: Annotated[int, POSITIVE] = 50
    """The number of newest snapshots that stay readable."""
    publish_interval_s: Annotated[float, NOT_NEGATIVE] = 5.0
    """The shortest average time between publications, in seconds."""
    out_of_order_s: Annotated[float, NOT_NEGATIVE] = 0.0
    """The most by which a record can be older than the newest record of its shard, for the event
    time up to which snapshots are complete, in seconds."""
    idle_after_s: Annotated[float | None, NOT_NEGATIVE, Field(examples=[300])] = None
    """The time after which a shard without new records no longer holds back that event time, in
    seconds; without it, every shard does."""

    publication_checks: tuple[
        Annotated[
            PublicationCheck,
            BeforeValidator(declared_check, json_schema_input_type=str | PublicationCheck),
        ],
        ...,
    ] = ()
    """Checks of committed records before they are published, made by `publication_check`."""

    def __post_init__(self) -> None:
        _check_names(self.publication_checks)
        if self.name is not None and not _NAME.fullmatch(self.name):
            raise InvalidSetting(
                f"The table name {shown(self.name)} is not valid: use letters, digits, _ and -, "
                "with an optional namespace and dot before it."
            )
        _check_partitioning(self.partitioning)
        _check_sort_order(self.sort_order)
        check_unknown_routes(self.unknown_routes)

    @property
    def divided_by(self) -> Partitioning:
        """The division of a batch into files; none if only shard and event time are fields."""
        fields = tuple(PartitionField.parse(text) for text in self.partitioning)
        if all(field.of_source for field in fields):
            return UNDIVIDED
        return Partitioning(fields, self.partitions_max)

    @property
    def fallback_route(self) -> str:
        """The route of records with an unknown route; empty for none."""
        return "" if self.unknown_routes in (STREAM_ONLY, QUARANTINE) else self.unknown_routes

    def routing(self, column: str, routes: Collection[str]) -> Routing:
        """Return the division of a batch by route, for the routes of the stream and new ones."""
        own = frozenset(routes) - {self.fallback_route}
        room = max(0, self.routes_max - len(own))
        quarantines = self.unknown_routes == QUARANTINE
        return Routing(column, own, room, self.fallback_route, quarantines)

    def table_name(self, catalog: str, key: GroupKey) -> TableName:
        """Return the full name of a group's table in a catalog."""
        if self.name is not None and (match := _NAME.fullmatch(self.name)) is not None:
            return TableName(catalog, match[1] or NAMESPACE_DEFAULT, match[2])
        default = key.stream if key.group == "default" else f"{key.stream}__{key.group}"
        return TableName(catalog, NAMESPACE_DEFAULT, re.sub(r"[^A-Za-z0-9_-]", "_", default))


def route_table(table: TableName, route: str) -> TableName:
    """Return the name of a route's table, beside the table of the stream."""
    return TableName(table.catalog, table.namespace, f"{table.name}__{route}")


@dataclass(frozen=True)
class CatalogSettings:
    """The catalog of a deployment's tables.

    Attributes:
        name: the name of the catalog in PyIceberg's configuration.
        properties: PyIceberg's properties without secrets; empty if the lease database is the
            catalog.
        assigns: True if the catalog assigns the location of each table, where its output is.
    """

    name: str = CATALOG_DEFAULT
    properties: Mapping[str, str] = field(default_factory=dict[str, str], hash=False)
    assigns: bool = False


THE_LEASE_DATABASE = CatalogSettings()


def _check_names(checks: Sequence[PublicationCheck]) -> None:
    """Check that each publication check has a name that no other asset check has.

    Raises:
        InvalidSetting: a name is taken.
    """
    names = [*OTHER_CHECKS]
    for check in checks:
        if check.name in names:
            raise InvalidSetting(
                f"The name {shown(check.name)} of a publication check is taken: choose another."
            )
        names.append(check.name)


def _check_partitioning(partitioning: Sequence[str]) -> None:
    """Check that a partitioning has fields of valid forms, each once.

    Raises:
        InvalidSetting: a field has another form, or occurs twice.
    """
    names = [PartitionField.parse(text).name for text in partitioning]
    if len(set(names)) < len(names):
        raise InvalidSetting("The partitioning names a field twice: name it once.")


def _check_sort_order(order: Sequence[str]) -> None:
    """Check that a sort order has columns, each with an optional `asc` or `desc`."""
    for text in order:
        if not _SORT.fullmatch(text):
            raise InvalidSetting(
                f"The sort order {shown(text)} is not valid: name a column, then optionally asc or "
                "desc."
            )
