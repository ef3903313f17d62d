"""The settings of a stream's published table and of its catalog."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated

from pydantic import Field

from dagster_leasehold.assets.declared import NOT_NEGATIVE, POSITIVE, Declared, declared
from dagster_leasehold.lease_store.errors import InvalidSetting, shown
from dagster_leasehold.lease_store.identifiers import GroupKey
from dagster_leasehold.lease_store.publication_rows import TableName

CATALOG_DEFAULT = "leasehold"
NAMESPACE_DEFAULT = "leasehold"
PARTITION_FORM = re.compile(r"(year|month|day|hour)\(event_time\)|shard_id")
"""A partition field: a transform of the event time, or the shard."""
PARTITION_FIELD = Field(
    json_schema_extra={"pattern": r"^(shard_id|(year|month|day|hour)\(event_time\))$"}
)
SECRET_PROPERTY = re.compile(r"(?i)secret|token|password|credential|access-key|session-key")
"""Names of catalog properties that hold secrets, which only the environment can set."""
_SORT = re.compile(r"(\w+)( asc| desc)?")
_LEVEL = r"[A-Za-z0-9_][A-Za-z0-9_-]*"
_NAME = re.compile(rf"(?:({_LEVEL}(?:\.{_LEVEL})*)\.)?({_LEVEL})")


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
    """The fields of the table's partitions: `shard_id`, and `year`, `month`, `day` or `hour` of
    `event_time`, or none."""
    sort_order: tuple[str, ...] = ()
    """The columns that engines sort by when they rewrite the table, each with ` asc` or ` desc` if
    needed."""
    properties: Mapping[str, str] = field(default_factory=dict[str, str], hash=False)
    """Iceberg's table properties."""
    snapshots_kept: Annotated[int, POSITIVE] = 50
    """The number of newest snapshots that stay readable."""
    publish_interval_s: Annotated[float, NOT_NEGATIVE] = 5.0
    """The shortest average time between publications, in seconds."""

    def __post_init__(self) -> None:
        if self.name is not None and not _NAME.fullmatch(self.name):
            raise InvalidSetting(
                f"The table name {shown(self.name)} is not valid: use letters, digits, _ and -, "
                "with an optional namespace and dot before it."
            )
        _check_partitioning(self.partitioning)
        _check_sort_order(self.sort_order)

    def table_name(self, catalog: str, key: GroupKey) -> TableName:
        """Return the full name of a group's table in a catalog."""
        if self.name is not None and (match := _NAME.fullmatch(self.name)) is not None:
            return TableName(catalog, match[1] or NAMESPACE_DEFAULT, match[2])
        default = key.stream if key.group == "default" else f"{key.stream}__{key.group}"
        return TableName(catalog, NAMESPACE_DEFAULT, re.sub(r"[^A-Za-z0-9_-]", "_", default))


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


def _check_partitioning(partitioning: Sequence[str]) -> None:
    """Check that the ledger's row of a file determines the partition of the whole file."""
    for text in partitioning:
        if not PARTITION_FORM.fullmatch(text):
            raise InvalidSetting(
                f"The partitioning {shown(text)} can differ within a file: use shard_id, and "
                "year, month, day or hour of event_time, for example day(event_time)."
            )
    if len(set(partitioning)) < len(partitioning):
        raise InvalidSetting("The partitioning names a field twice: name it once.")


def _check_sort_order(order: Sequence[str]) -> None:
    """Check that a sort order has columns, each with an optional `asc` or `desc`."""
    for text in order:
        if not _SORT.fullmatch(text):
            raise InvalidSetting(
                f"The sort order {shown(text)} is not valid: name a column, then optionally asc or "
                "desc."
            )
