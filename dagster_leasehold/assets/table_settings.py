"""The settings of a stream's table, checked where they are made."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from dagster_leasehold.lease_store.errors import InvalidSetting, shown
from dagster_leasehold.lease_store.identifiers import GroupKey
from dagster_leasehold.lease_store.publication_rows import TableName

CATALOG_DEFAULT = "leasehold"
PARTITIONING_DEFAULT = ("shard_id", "day(event_time)")
NAMESPACE_DEFAULT = "leasehold"
SNAPSHOTS_KEPT_DEFAULT = 50
PUBLISH_INTERVAL_DEFAULT_S = 5.0
PARTITION_FORM = re.compile(r"(year|month|day|hour)\(event_time\)|shard_id")
"""A field of a partitioning: of event time, or of the shard."""
SECRET_PROPERTY = re.compile(r"(?i)secret|token|password|credential|access-key|session-key")
"""Names of a catalog's properties that hold what only the environment may."""
_SORT = re.compile(r"(\w+)( asc| desc)?")
_LEVEL = r"[A-Za-z0-9_][A-Za-z0-9_-]*"
_NAME = re.compile(rf"(?:({_LEVEL}(?:\.{_LEVEL})*)\.)?({_LEVEL})")


@dataclass(frozen=True)
class TableSettings:
    """The published table of a stream: its name, and how it is laid out.

    Attributes:
        name: `table` or `namespace.table`; None for the stream's name in the namespace
            `leasehold`, with the group's name behind it unless that is `default`.
        partitioning: fields of the partition spec: `shard_id`, and `year`, `month`, `day` or `hour`
            of `event_time`; none for a table without partitions. A table that has another one gets
            this one with its next publication; its files stay where they are.
        sort_order: columns, each with `asc` or `desc` behind it if need be; it tells engines that
            rewrite the table how to sort. It counts when the table is made.
        properties: Iceberg's table properties.
        snapshots_kept: the newest snapshots that stay readable.
        publish_interval_s: the shortest time between publications, in seconds, on average.

    Raises:
        InvalidSetting: a value has no meaning.
    """

    name: str | None = None
    partitioning: tuple[str, ...] = PARTITIONING_DEFAULT
    sort_order: tuple[str, ...] = ()
    properties: Mapping[str, str] = field(default_factory=dict[str, str], hash=False)
    snapshots_kept: int = SNAPSHOTS_KEPT_DEFAULT
    publish_interval_s: float = PUBLISH_INTERVAL_DEFAULT_S

    def __post_init__(self) -> None:
        if self.name is not None and not _NAME.fullmatch(self.name):
            raise InvalidSetting(
                f"The table name {shown(self.name)} is not valid: use letters, digits, _ and -, "
                "with the namespace and a dot before it if need be."
            )
        _check_partitioning(self.partitioning)
        _check_sort_order(self.sort_order)
        if self.snapshots_kept < 1:
            raise InvalidSetting(f"snapshots_kept is {self.snapshots_kept}: use 1 or more.")
        if self.publish_interval_s < 0:
            raise InvalidSetting(
                f"publish_interval_s is {self.publish_interval_s}: use 0 or a positive number."
            )

    def table_name(self, catalog: str, key: GroupKey) -> TableName:
        """Return the whole name of a group's table in a catalog."""
        if self.name is not None and (match := _NAME.fullmatch(self.name)) is not None:
            return TableName(catalog, match[1] or NAMESPACE_DEFAULT, match[2])
        own = key.stream if key.group == "default" else f"{key.stream}__{key.group}"
        return TableName(catalog, NAMESPACE_DEFAULT, re.sub(r"[^A-Za-z0-9_-]", "_", own))


@dataclass(frozen=True)
class CatalogSettings:
    """The catalog of a deployment's tables.

    Attributes:
        name: of the catalog, as PyIceberg's settings name it.
        properties: PyIceberg's, without secrets; none for the lease database itself.
    """

    name: str = CATALOG_DEFAULT
    properties: Mapping[str, str] = field(default_factory=dict[str, str], hash=False)


THE_LEASE_DATABASE = CatalogSettings()


def _check_partitioning(partitioning: Sequence[str]) -> None:
    """Check that every file's partition can be told from what the ledger knows of the file.

    Raises:
        InvalidSetting: it cannot.
    """
    for text in partitioning:
        if not PARTITION_FORM.fullmatch(text):
            raise InvalidSetting(
                f"The partitioning {shown(text)} cannot be told of a whole file: use shard_id, and "
                "year, month, day or hour of event_time, for example day(event_time)."
            )
    if len(set(partitioning)) < len(partitioning):
        raise InvalidSetting("The partitioning names a field twice: name it once.")


def _check_sort_order(order: Sequence[str]) -> None:
    """Check the form of a sort order: names of columns, each with `asc` or `desc` if need be.

    Raises:
        InvalidSetting: it has another form.
    """
    for text in order:
        if not _SORT.fullmatch(text):
            raise InvalidSetting(
                f"The sort order {shown(text)} is none: name a column, and asc or desc behind it."
            )
