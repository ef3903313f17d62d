"""Changes of a table's columns that an operator requests: new names, removals, and their undoing.

Files are not rewritten. A renamed column keeps its field id, and the name mapping of the table has
its earlier names, so it is the same column in all files, also in those that runs with the earlier
name still write. A removed column is hidden: files can have it, but the table does not show it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from dagster_leasehold.assets.errors import ColumnsUnchangeable, TableUnavailable
from dagster_leasehold.assets.output.table.columns import (
    Column,
    ColumnAgreement,
    Columns,
    check_names,
)
from dagster_leasehold.assets.output.table.publisher import Publisher
from dagster_leasehold.assets.output.table.schemas import evolved
from dagster_leasehold.assets.partition_fields import SHARD_COLUMN, TIME_COLUMN, PartitionField
from dagster_leasehold.assets.table_settings import TableSettings
from dagster_leasehold.lease_store.errors import shown
from dagster_leasehold.lease_store.publication_rows import PublishLock, TableColumns

if TYPE_CHECKING:
    from pyiceberg.table.metadata import TableMetadata

_OWN = (SHARD_COLUMN, "cursor", TIME_COLUMN)
"""The columns that Leasehold reads itself."""


@dataclass(frozen=True, slots=True)
class Evolution:
    """The requested changes.

    Attributes:
        renamed: the new name of each column to rename.
        removed: the columns to remove.
        restored: the removed columns to show again.
    """

    renamed: Mapping[str, str] = field(default_factory=dict[str, str])
    removed: Sequence[str] = ()
    restored: Sequence[str] = ()

    def changed(self, columns: Columns, settings: TableSettings, table: TableMetadata) -> Columns:
        """Return the columns after the changes; a change that was made before has no effect.

        Args:
            columns: the agreed columns.
            settings: the declared settings of the table.
            table: the published table, which has all changes of earlier publications.

        Raises:
            ColumnsUnchangeable: a change cannot be applied.
        """
        self._check_names([*self.renamed, *self.removed, *self.restored])
        laid_out = {*_columns_of_settings(settings), *_columns_of_layouts(table)}
        after = [dict(column) for column in columns]
        for name, new in self.renamed.items():
            column = _named(after, name, (new,))
            if column["name"] == new:
                continue
            _refuse_own(name, new)
            if column.get("removed"):
                raise ColumnsUnchangeable(f"Column {shown(name)} was removed: restore it first.")
            if laid_out & {name, new}:
                raise _laid_out(name if name in laid_out else new, "renamed")
            if new in {each["name"] for each in after}:
                raise ColumnsUnchangeable(
                    f"The table has or had a column {shown(new)}: choose another name."
                )
            earlier = [each for each in (*column.get("earlier", ()), name) if each != new]
            column |= {"name": new, "earlier": earlier}
        for name in self.removed:
            _refuse_own(name)
            if name in laid_out:
                raise _laid_out(name, "removed")
            _named(after, name)["removed"] = True
        for name in self.restored:
            _named(after, name).pop("removed", None)
        if not any(not column.get("removed") for column in after):
            raise ColumnsUnchangeable("A table needs a column: keep one.")
        check_names(after)
        return after

    def _check_names(self, names: Sequence[str]) -> None:
        if not names:
            raise ColumnsUnchangeable("Nothing was requested: rename, remove or restore a column.")
        for name in names:
            if names.count(name) > 1:
                raise ColumnsUnchangeable(
                    f"Column {shown(name)} is to change twice: request one change at a time."
                )


def differences(before: Columns, after: Columns, table: TableMetadata) -> list[str]:
    """Return a sentence about each column that a change affects."""
    ids = {field.name: field.field_id for schema in table.schemas for field in schema.fields}
    sentences: list[str] = []
    for old, new in zip(before, after, strict=True):
        name, current = old["name"], new["name"]
        label = f"Column {shown(name)} (field id {ids.get(name, 'not assigned yet')})"
        if name != current:
            sentences.append(
                f"{label} is renamed to {shown(current)}. Runs may still return the earlier name."
            )
        if bool(old.get("removed")) < bool(new.get("removed")):
            sentences.append(f"{label} is removed. Files keep its values.")
        if bool(old.get("removed")) > bool(new.get("removed")):
            sentences.append(
                f"Column {shown(current)} is shown again, with the values in the files."
            )
    return sentences


@dataclass(frozen=True, slots=True)
class EvolutionPlan:
    """The requested changes of one table.

    Attributes:
        seen: the columns before the changes.
        columns: the columns after the changes.
        sentences: one about each column that changes.
        published: True if the table already has the columns.
    """

    seen: TableColumns
    columns: Columns
    sentences: Sequence[str]
    published: bool


def plan_evolution(publisher: Publisher, evolution: Evolution) -> EvolutionPlan:
    """Return what the changes would do to the published table.

    Raises:
        ColumnsUnchangeable: a change cannot be applied.
        TableUnavailable: the table does not exist, or cannot be reached.
    """
    key = publisher.key
    table = publisher.group.catalog.find()
    if table is None:
        raise TableUnavailable(
            f"{key} has no table yet: create it with `leasehold table create {key.stream}`."
        )
    seen = ColumnAgreement(publisher.group.store, key).read()
    before, metadata = [dict(each) for each in seen.columns], table.metadata
    after = evolution.changed(before, publisher.settings, metadata)
    schema = evolved(metadata.schema(), after, metadata.last_column_id)
    sentences = differences(before, after, metadata)
    return EvolutionPlan(seen, after, sentences, schema is metadata.schema())


def apply_evolution(
    publisher: Publisher, lock: PublishLock, evolution: Evolution, observer: str
) -> EvolutionPlan:
    """Publish what waits, apply the changes, and publish them; return what was done.

    If it ends in between, the next publication has the changes.

    Raises:
        ColumnsUnchangeable: a change cannot be applied, and nothing was changed.
        TableUnavailable: the table cannot be reached.
    """
    while publisher.publish(lock).more:
        pass
    while True:
        plan = plan_evolution(publisher, evolution)
        reason = " ".join(plan.sentences)
        agreement = ColumnAgreement(publisher.group.store, publisher.key)
        if not reason or agreement.change(
            plan.seen, plan.columns, observer=observer, reason=reason
        ):
            break
    if not plan.published:
        publisher.publish(lock, columns=True)
    return plan


def _named(columns: Columns, name: str, later: Iterable[str] = ()) -> Column:
    """Return the column with a name, or one that already has a later name."""
    for column in columns:
        was_renamed = column["name"] in later and name in column.get("earlier", ())
        if column["name"] == name or was_renamed:
            return column
    names = ", ".join(shown(column["name"]) for column in columns)
    raise ColumnsUnchangeable(
        f"The table has no column {shown(name)}: it has {names or 'none'}. Nested fields cannot be "
        "renamed or removed."
    )


def _refuse_own(*names: str) -> None:
    for name in names:
        if name.lower() in _OWN:
            raise ColumnsUnchangeable(
                f"The name {shown(name)} is reserved for the column of all records: choose another "
                "column or name."
            )


def _laid_out(name: str, change: str) -> ColumnsUnchangeable:
    return ColumnsUnchangeable(
        f"Column {shown(name)} cannot be {change}, because the table is or was partitioned or "
        "sorted by it."
    )


def _columns_of_settings(settings: TableSettings) -> Iterable[str]:
    yield from (PartitionField.parse(text).column for text in settings.partitioning)
    yield from (text.partition(" ")[0] for text in settings.sort_order)


def _columns_of_layouts(table: TableMetadata) -> Iterable[str]:
    specs, orders = table.partition_specs, table.sort_orders
    ids = {part.source_id for spec in specs for part in spec.fields}
    ids |= {part.source_id for order in orders for part in order.fields}
    yield from (each.name for each in table.schema().fields if each.field_id in ids)
