"""An Arrow dataset of a table with renamed columns, whose files have them under earlier names.

Arrow finds the columns of a file by name. This dataset reads each file under its own names. Filters
apply to the rows that were read, so only whole files are skipped.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds

from dagster_leasehold.assets.places.place import OutputPlace

Batches = Callable[[], Iterator[pa.RecordBatch]]


def file_batches(
    path: OutputPlace, schema: pa.Schema, names: Mapping[str, str], **options: Any
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a file with the columns of a schema.

    Args:
        names: the column of the schema for each earlier name.
    """
    system, at = path.arrow()
    format_: Any = ds.ParquetFileFormat()
    fragment = format_.make_fragment(at, system)
    own = {names[name]: name for name in fragment.physical_schema.names if name in names}
    fields = [field.with_name(own.get(field.name, field.name)) for field in schema]
    dataset = ds.FileSystemDataset([fragment], pa.schema(fields), format_, system)
    for batch in dataset.to_batches(**options):
        yield batch.rename_columns(schema.names)


class RenamedDataset(ds.InMemoryDataset):  # pyright: ignore[reportUntypedBaseClass]
    """A dataset whose rows come from a function, which each scan calls."""

    _each: Batches

    @classmethod
    def of(cls, schema: pa.Schema, batches: Batches) -> RenamedDataset:
        """Return the dataset of these rows."""
        dataset = cls(pa.RecordBatchReader.from_batches(schema, batches()), schema)
        dataset._each = batches
        return dataset

    def filter(self, expression: ds.Expression) -> RenamedDataset:
        """Return the dataset of the rows that satisfy a condition."""
        filtered: Any = super().filter(expression)
        filtered._each = self._each
        return filtered

    def scanner(self, *arguments: Any, **options: Any) -> ds.Scanner:
        """Return a scan, as `Dataset.scanner` does."""
        if arguments:
            options = {**options, **dict(zip(("columns", "filter"), arguments, strict=False))}
        own: Any = self
        for name in ("batch_readahead", "fragment_readahead", "fragment_scan_options"):
            options.pop(name, None)
        return ds.Scanner.from_batches(
            self._each(), schema=self.schema, **own._scanner_options(options)
        )
