"""Files of versions that knew of no table: their footers tell what today's writers note."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from dagster_leasehold.assets.output.output_file import TIME_COLUMN
from dagster_leasehold.assets.output.table.columns import Columns, columns_of, stored_schema
from dagster_leasehold.assets.places.place import OutputPlace
from dagster_leasehold.lease_store.errors import LogCorrupt, one_line
from dagster_leasehold.lease_store.ledger_rows import DataFile


def described(place: OutputPlace, file: DataFile) -> tuple[DataFile, Columns]:
    """Return a file with the number of its records without an event time, and its columns.

    Raises:
        LogCorrupt: it is missing or damaged.
        TransformError: no table has columns of its types.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    system, path = (place / file.path).arrow()
    try:
        footer = pq.read_metadata(path, filesystem=system)
        schema = footer.schema.to_arrow_schema()
    except (OSError, pa.ArrowException) as error:
        raise LogCorrupt(
            f"The committed file {place / file.path} cannot be read ({one_line(str(error))}): "
            "restore it from a backup, or replay its batch."
        ) from error
    return replace(file, untimed=_untimed(footer)), columns_of(stored_schema(schema))


def _untimed(footer: Any) -> int | None:
    """Return the number of records without an event time; None where the file does not tell."""
    names = [footer.schema.column(at).path for at in range(footer.num_columns)]
    if TIME_COLUMN not in names:
        return footer.num_rows
    at, nulls = names.index(TIME_COLUMN), 0
    for group in range(footer.num_row_groups):
        statistics = footer.row_group(group).column(at).statistics
        if statistics is None or not statistics.has_null_count:
            return None
        nulls += statistics.null_count
    return nulls
