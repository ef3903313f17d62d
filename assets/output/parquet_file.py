"""A dataset as one Parquet file, for a reader that cannot follow the ledger."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from dagster_leasehold.assets.output.shard_files import COMPRESSION
from dagster_leasehold.lease_store.durable_files import replacing

if TYPE_CHECKING:
    import pyarrow.dataset as ds


def write_parquet(
    dataset: ds.Dataset, file: Path, progress: Callable[[int], None] = lambda _: None
) -> int:
    """Write all rows of a dataset, in its order, into a new file; their number.

    The file appears under its name when it is whole and on the disk; memory holds a few batches.

    Args:
        dataset: what to write.
        file: the new file, in a folder that exists.
        progress: told the number of rows written so far.

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
