"""Committed output as an Arrow dataset: what the ledger names at one moment, with filters.

Files are left out by the ledger, row groups by the statistics that Parquet keeps of them, and rows
one by one. A reader that cannot follow the ledger gets the dataset as one Parquet file.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dagster_leasehold.assets.arrow_transform import SHARD_COLUMN
from dagster_leasehold.assets.errors import OutputUnreadable
from dagster_leasehold.assets.output.attempts import unreadable
from dagster_leasehold.assets.output.committed_parts import (
    ALWAYS,
    BatchNumbers,
    CommittedPart,
    EventSpan,
    committed_parts,
)
from dagster_leasehold.assets.output.output_file import COMPRESSION, TIME_COLUMN
from dagster_leasehold.assets.places.address import Output
from dagster_leasehold.lease_store.durable_files import replacing
from dagster_leasehold.lease_store.errors import shown
from dagster_leasehold.lease_store.identifiers import GroupKey, ShardId
from dagster_leasehold.lease_store.roles.ledger import Ledger
from dagster_leasehold.shard_sources.source import record_schema

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.dataset as ds


def committed_dataset(
    store: Ledger,
    key: GroupKey,
    output_root: Output,
    *,
    shards: Collection[ShardId] | None = None,
    numbers: BatchNumbers | None = None,
    span: EventSpan = ALWAYS,
    time_column: str = TIME_COLUMN,
) -> ds.Dataset:
    """Return committed output at this instant as an Arrow dataset, in order of shard and batch.

    It begins, in each shard, where output has not expired. Its columns are those of all files; one
    that a transform added later is null before. DuckDB reads it as a table.

    Args:
        store: the lease store.
        key: the consumer group.
        output_root: the folder of the group's output, or its URI.
        shards: only these shards.
        numbers: only these batches, by shard; shards that it does not name are left out.
        span: only records whose event time lies in it.
        time_column: the column that `span` means, if the transform calls it otherwise.

    Raises:
        LogCorrupt: a file that the ledger names is missing or damaged.
        OutputUnreadable: columns of one name have types that do not fit together, there is no
            such time column, or batches cannot be told apart.
    """
    own_column = time_column == TIME_COLUMN
    parts = committed_parts(
        store, key, output_root, shards=shards, numbers=numbers, span=span if own_column else ALWAYS
    )
    dataset = dataset_of(parts)
    expression = span.expression(time_column)
    if expression is None:
        return dataset
    if time_column not in dataset.schema.names:
        raise no_time_column(key, time_column, dataset.schema.names)
    return dataset.filter(expression)


def no_time_column(key: GroupKey, column: str, columns: Sequence[str]) -> OutputUnreadable:
    """Return the error for output that has no column to choose times by."""
    return OutputUnreadable(
        f"The output of {key} has no column {shown(column)} to choose times by: it has "
        f"{', '.join(columns)}."
    )


def dataset_of(parts: Sequence[CommittedPart]) -> ds.Dataset:
    """Return the dataset of these files, in their order; see `committed_dataset`."""
    import pyarrow as pa
    import pyarrow.dataset as ds

    if not parts:
        return ds.dataset(record_schema().empty_table())
    format_, (files, _) = ds.ParquetFileFormat(), parts[0].path.arrow()
    fragments: list[Any] = []
    schemas: list[pa.Schema] = []
    for part in parts:
        where: Any = ds.field(SHARD_COLUMN) == part.shard
        fragment = format_.make_fragment(part.path.arrow()[1], files, partition_expression=where)
        try:
            # Pandas' notes in a schema differ from file to file and say nothing of its columns.
            schemas.append(fragment.physical_schema.remove_metadata())
        except (OSError, pa.ArrowInvalid) as error:
            raise unreadable(part.path, error) from error
        fragments.append(fragment)
    try:
        schema = pa.unify_schemas(schemas, promote_options="permissive")
    except pa.ArrowException as error:
        raise OutputUnreadable(
            f"Files of committed output do not fit together ({str(error).splitlines()[0]}): "
            "replay the batches that an earlier transform wrote."
        ) from error
    if all(part.rows is None for part in parts):
        return ds.FileSystemDataset(fragments, schema, format_, files)
    children: list[Any] = []
    for part, fragment in zip(parts, fragments, strict=True):
        whole = ds.FileSystemDataset([fragment], schema, format_, files)
        children.append(whole if part.rows is None else _rows_of(whole, part.rows))
    return ds.UnionDataset(schema, children)


def _rows_of(dataset: ds.Dataset, rows: tuple[int, int]) -> ds.Dataset:
    """Return some rows of a merged file, read now: a dataset of files knows whole files only."""
    import pyarrow.dataset as ds

    first, end = rows
    return ds.dataset(dataset.to_table().slice(first, end - first))


def write_parquet(
    dataset: ds.Dataset, file: Path, progress: Callable[[int], None] = lambda _: None
) -> int:
    """Write all rows of a dataset, in its order, into a new file; return their number.

    The file appears under its name when it is whole and on the disk; memory holds a few batches.

    Args:
        dataset: the rows.
        file: the new file, in a folder that exists.
        progress: called with the number of rows written so far.

    Raises:
        OSError: the file cannot be written.
    """
    import pyarrow.parquet as pq

    # The scan is in order; ahead of the writer it keeps one file only.
    batches = dataset.scanner(fragment_readahead=1, batch_readahead=2).to_reader()
    rows = 0
    with (
        replacing(file, durable=True) as sink,
        pq.ParquetWriter(sink, dataset.schema, compression=COMPRESSION) as out,
    ):
        for batch in batches:
            out.write_batch(batch)
            rows += batch.num_rows
            progress(rows)
    return rows
