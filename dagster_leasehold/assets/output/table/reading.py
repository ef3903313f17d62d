"""Reads the published table: the plan of a scan, and its files in order.

PyIceberg selects files by the bounds in the manifests, so only needed files are read. The name of a
file has its batch numbers, which give the order within a shard.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any, cast

from dagster_leasehold.assets.errors import OutputUnreadable
from dagster_leasehold.assets.output.attempts import reading, shard_and_batches
from dagster_leasehold.assets.output.table.columns import stored_schema, stream_routes
from dagster_leasehold.assets.output.table.marks import files_root
from dagster_leasehold.assets.output.table.schemas import (
    SHARD_COLUMN,
    TIME_COLUMN,
    names_in_files,
    shard_field,
    time_field,
)
from dagster_leasehold.assets.places.place import OutputPlace
from dagster_leasehold.assets.table_settings import THE_LEASE_DATABASE, CatalogSettings
from dagster_leasehold.lease_store.errors import InvalidSetting, shown
from dagster_leasehold.lease_store.identifiers import GroupKey, ShardId
from dagster_leasehold.lease_store.store import LedgerAndRewrites
from dagster_leasehold.lease_store.times import time_text
from dagster_leasehold.shard_sources.event_times import in_utc
from dagster_leasehold.shard_sources.source import record_schema

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.dataset as ds


@dataclass(frozen=True, slots=True)
class EventSpan:
    """Event times `[since, until)`, each with a time zone; None means no bound.

    Raises:
        InvalidSetting: a time has no zone.

    Examples:
        >>> noon = datetime(2026, 3, 1, 12, tzinfo=timezone.utc)
        >>> EventSpan(since=noon).until is None
        True
    """

    since: datetime | None = None
    until: datetime | None = None

    def __post_init__(self) -> None:
        for time in (self.since, self.until):
            if time is not None and time.tzinfo is None:
                raise InvalidSetting(
                    f"The event time {time_text(time)} has no time zone: give one, such as UTC."
                )

    @property
    def everything(self) -> bool:
        """True if the span has no bound."""
        return self.since is None and self.until is None

    def expression(self, column: str = TIME_COLUMN) -> ds.Expression | None:
        """Return the span as Arrow's filter on a column; None without a bound."""
        import pyarrow.dataset as ds

        field: Any = ds.field(column)
        since = None if self.since is None else field >= self.since
        until = None if self.until is None else field < self.until
        if since is None or until is None:
            return until if since is None else since
        return since & until


ALWAYS = EventSpan()


@dataclass(frozen=True, slots=True)
class PlannedFile:
    """A data file to read.

    Attributes:
        numbers: the numbers of its batches; None for a file of another program.
    """

    shard: ShardId
    numbers: range | None
    path: OutputPlace
    records: int


@dataclass(frozen=True, slots=True)
class TablePlan:
    """The files of one snapshot that can contain the selected records, by shard and batch.

    Attributes:
        schema: the columns of the table as an Arrow schema; older files lack newer columns.
        names: the column of the schema for each other name that it has in files.
    """

    files: tuple[PlannedFile, ...]
    schema: pa.Schema
    names: Mapping[str, str] = field(default_factory=dict[str, str])

    def dataset(self, files: Iterable[PlannedFile] | None = None) -> ds.Dataset:
        """Return the dataset of these files, or of all, in order."""
        import pyarrow.dataset as ds

        selected = self.files if files is None else tuple(files)
        if not selected:
            return ds.dataset(self.schema.empty_table())
        if self.names:
            from dagster_leasehold.assets.output.table.renamed_dataset import RenamedDataset

            return RenamedDataset.of(self.schema, lambda: self._batches(selected))
        format_, system = ds.ParquetFileFormat(), selected[0].path.arrow()[0]
        shard: Any = ds.field(SHARD_COLUMN)
        has_shard = SHARD_COLUMN in self.schema.names
        fragments: list[Any] = [
            format_.make_fragment(
                file.path.arrow()[1],
                system,
                partition_expression=shard == str(file.shard) if has_shard else None,
            )
            for file in selected
        ]
        return ds.FileSystemDataset(fragments, self.schema, format_, system)

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield all rows of the files in order, with a few batches in memory.

        Raises:
            LogCorrupt: a file is missing or damaged.
        """
        return self._batches(self.files)

    def _batches(self, files: Iterable[PlannedFile]) -> Iterator[pa.RecordBatch]:
        from dagster_leasehold.assets.output.table.renamed_dataset import file_batches

        for file in files:
            # Rows before a damaged part are correct, and are yielded.
            with reading(file.path):
                if self.names:
                    yield from file_batches(file.path, self.schema, self.names, batch_readahead=2)
                else:
                    yield from self.dataset([file]).to_batches(batch_readahead=2)


def plan_table(
    store: LedgerAndRewrites,
    key: GroupKey,
    place: OutputPlace,
    *,
    shards: Collection[ShardId] | None = None,
    span: EventSpan = ALWAYS,
    snapshot_id: int | None = None,
    route: str = "",
    catalog: CatalogSettings = THE_LEASE_DATABASE,
) -> TablePlan:
    """Plan a scan of the table of a group; before its first publication, the plan is empty.

    Args:
        route: read the table of this route instead.
        shards: only these shards; None for all.
        span: only files that can contain records of this span.
        snapshot_id: the id of an earlier snapshot.

    Raises:
        OutputUnreadable: the table has no such snapshot, or another writer has written to it; or
            the stream has no such route.
    """
    # It loads PyIceberg.
    from pyiceberg.io.pyarrow import schema_to_pyarrow
    from pyiceberg.table import DataScan

    from dagster_leasehold.assets.output.table.group_table import find_table

    published = find_table(store, key, catalog, place, route)
    if published is None:
        if route:
            raise no_route(route, key, stream_routes(store, key))
        return TablePlan((), record_schema())
    (table, io), scan = published, cast(Any, DataScan)
    metadata = table.metadata
    if snapshot_id is None and metadata.current_snapshot() is None:
        return TablePlan((), record_schema())
    if snapshot_id is not None and metadata.snapshot_by_id(snapshot_id) is None:
        raise OutputUnreadable(
            f"The table of {key} has no snapshot {snapshot_id}: it keeps the "
            f"{len(metadata.snapshots)} newest, from {metadata.snapshots[0].snapshot_id} on."
        )
    schema = scan(metadata, io, snapshot_id=snapshot_id).projection()
    row_filter = _row_filter(schema, shards, span)
    tasks = scan(metadata, io, row_filter, snapshot_id=snapshot_id).plan_files()
    root, own = f"{files_root(metadata)}/", shard_field(metadata.schema())
    files: list[PlannedFile] = []
    for task in tasks:
        path: str = task.file.file_path.removeprefix(root)
        named = shard_and_batches(path.rpartition("/")[2])
        bound = (task.file.lower_bounds or {}).get(own.field_id) if own is not None else None
        if task.delete_files or (named is None and bound is None):
            raise OutputUnreadable(
                f"Another program has changed {path} in the table of {key}: read the table with "
                "an engine."
            )
        # The name of a shard can look like batch numbers, so the bound in the table decides.
        shard = ShardId(bound.decode()) if bound is not None else named[0] if named else None
        assert shard is not None
        if shards is None or shard in shards:
            numbers = named[1] if named and named[0] == shard else None
            files.append(PlannedFile(shard, numbers, place / path, task.file.record_count))
    arrow = stored_schema(schema_to_pyarrow(schema, include_field_ids=False))
    return TablePlan(tuple(sorted(files, key=_position)), arrow, names_in_files(metadata, schema))


def no_route(route: str, key: GroupKey, routes: Collection[str]) -> OutputUnreadable:
    """Return the error for a route without a table."""
    names = ", ".join(sorted(routes)) or "none yet"
    return OutputUnreadable(
        f"The output of {key} has no table of route {shown(route)}; its routes are: {names}."
    )


def _row_filter(schema: Any, shards: Collection[ShardId] | None, span: EventSpan) -> Any:
    """Return PyIceberg's filter on the existing columns of the table."""
    from pyiceberg import expressions

    # A type checker misreads their constructors.
    of: Any = expressions
    row_filter = of.AlwaysTrue()
    if shards is not None and shard_field(schema) is not None:
        row_filter = of.In(SHARD_COLUMN, [str(shard) for shard in shards])
    if time_field(schema) is not None:
        for compared, time in ((of.GreaterThanOrEqual, span.since), (of.LessThan, span.until)):
            if time is not None:
                row_filter = of.And(row_filter, compared(TIME_COLUMN, in_utc(time).isoformat()))
    return row_filter


def _position(file: PlannedFile) -> tuple[ShardId, int, str]:
    """Return the sort key of a file by shard and batch; files of other programs come first."""
    if file.numbers is None:
        return file.shard, -1, ""
    return file.shard, file.numbers.start, file.path.name
