"""The fields of a table's partitions. Spark's workers import them, so they need no library."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Self

from dagster_leasehold.assets.routes import Routing
from dagster_leasehold.lease_store.errors import InvalidSetting, shown

TIME_COLUMN, SHARD_COLUMN = "event_time", "shard_id"
PARTITION = r"(?:(\w+)|(year|month|day|hour)\((\w+)\)|(bucket|truncate)\((\d+), ?(\w+)\))"
_PARTITION_FORM = re.compile(PARTITION)
WIDTH_MAX = 2**31 - 1


@dataclass(frozen=True, slots=True)
class PartitionField:
    """One field of a table's partitions.

    Attributes:
        column: its column.
        transform: `identity`, `bucket`, `truncate`, `year`, `month`, `day` or `hour`.
        width: the number of buckets, or the length or width of `truncate`; otherwise 0.
    """

    column: str
    transform: str = "identity"
    width: int = 0

    @classmethod
    def parse(cls, text: str) -> Self:
        """Return the field that a text describes, such as `day(event_time)` or `bucket(16, user)`.

        Raises:
            InvalidSetting: the text does not describe a field.
        """
        match = _PARTITION_FORM.fullmatch(text)
        column, time, of_time, form, width, of_form = match.groups() if match else [None] * 6
        field = cls(column or of_time or of_form or "", time or form or "identity", int(width or 0))
        if match is None or (form and not 0 < field.width <= WIDTH_MAX):
            raise InvalidSetting(
                f"The partitioning {shown(text)} is not valid: name a column, or use "
                "day(column), also with year, month or hour, bucket(16, column) or "
                "truncate(4, column)."
            )
        return field

    def __str__(self) -> str:
        """Return the text that `parse` reads."""
        if self.width:
            return f"{self.transform}({self.width}, {self.column})"
        return self.column if self.transform == "identity" else f"{self.transform}({self.column})"

    @property
    def name(self) -> str:
        """The name of the field in the table, as Spark names it."""
        suffix = {"identity": "", "truncate": "_trunc"}.get(self.transform, f"_{self.transform}")
        return f"{self.column}{suffix}"

    @property
    def of_source(self) -> bool:
        """True for the shard and for times of the event time, which the ledger has per file."""
        is_time = self.transform not in ("identity", "bucket", "truncate")
        return str(self) == SHARD_COLUMN or (self.column == TIME_COLUMN and is_time)


@dataclass(frozen=True, slots=True)
class Partitioning:
    """The fields by which the rows of a batch are divided into files.

    Attributes:
        fields: all fields of the table; empty if files are not divided.
        open_max: the most partitions into which a task divides the rows of a shard.
        names: the current name of each earlier name of the table's columns.
        routing: the rule that divides the rows by route first; None if the stream has no routes.
    """

    fields: tuple[PartitionField, ...] = ()
    open_max: int = 0
    names: Mapping[str, str] = field(default_factory=dict[str, str], hash=False)
    routing: Routing | None = None

    @property
    def divides(self) -> bool:
        """True if a batch can write the rows of one shard to several files."""
        return bool(self.fields) or self.routing is not None


UNDIVIDED = Partitioning()
