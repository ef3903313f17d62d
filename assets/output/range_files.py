"""The files of one range: its rows in order in one file, and one for its quarantine.

Where rows never leave the process that read them, they all belong to one shard and come in order,
so that nothing has to be sorted out.
"""

from __future__ import annotations

from concurrent.futures import Executor, Future, wait
from pathlib import Path
from typing import TYPE_CHECKING

from dagster_leasehold.assets.errors import TransformError
from dagster_leasehold.assets.output.output_file import OutputFile, quarantined_and_good
from dagster_leasehold.assets.output.worker_results import WrittenFile
from dagster_leasehold.lease_store.durable_files import make_folder
from dagster_leasehold.lease_store.identifiers import ShardId

if TYPE_CHECKING:
    import pyarrow as pa


class RangeFiles:
    """The files of one range, begun with their first rows.

    Args:
        folder: the attempt's folder.
        name: tells this try of this range from all others.
        shard: the shard that every row belongs to.
        transform: the name of the transform that made the rows; empty where there is none.
    """

    def __init__(self, folder: Path, name: str, shard: ShardId, transform: str) -> None:
        self._folder = folder
        self._name = name
        self._shard = shard
        self._transform = transform
        self._open: dict[bool, OutputFile] = {}
        self._schemas: dict[bool, pa.Schema] = {}
        self._syncs: list[Future[None]] = []

    def add(self, rows: pa.RecordBatch) -> None:
        """Take rows in their order; rows with an error go to quarantine.

        Raises:
            TransformError: they have other columns than the rows before.
            OSError: they cannot be written.
        """
        bad, good = quarantined_and_good(rows)
        if bad is not None:
            self._take(bad, quarantine=True)
        self._take(good, quarantine=False)

    def finish(self, syncs: Executor) -> list[WrittenFile]:
        """Write all that is left, and begin to put it on the disk.

        Raises:
            OSError: it cannot be written.
        """
        files = [self._open[kind] for kind in sorted(self._open)]
        written = [file.finish() for file in files]
        self._syncs = [syncs.submit(file.sync) for file in files]
        return written

    def settle(self) -> None:
        """Wait until the content of finished files is durable; their names are not yet.

        Raises:
            OSError: it cannot be put on the disk.
        """
        wait(self._syncs)
        for sync in self._syncs:
            sync.result()

    def abandon(self) -> None:
        """Close and delete what was begun."""
        for file in self._open.values():
            file.abandon()
        self._open = {}

    def _take(self, rows: pa.RecordBatch, *, quarantine: bool) -> None:
        if rows.num_rows == 0:
            return
        if quarantine not in self._open:
            make_folder(self._folder, exist_ok=True)
            kind = ".quarantine" if quarantine else ""
            self._schemas[quarantine] = rows.schema
            self._open[quarantine] = OutputFile(
                self._shard,
                self._folder / f"{self._shard}.{self._name}{kind}.parquet",
                rows.schema,
                quarantine=quarantine,
                transform=self._transform,
            )
        elif not rows.schema.equals(self._schemas[quarantine]):
            raise TransformError(
                f"The transform {self._transform} returned the columns "
                f"{_columns(rows.schema)} for some records of shard {self._shard}, and "
                f"{_columns(self._schemas[quarantine])} for records before them: return the same "
                "columns of the same types for every table."
            )
        self._open[quarantine].add(rows)


def _columns(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name} {field.type}" for field in schema)
