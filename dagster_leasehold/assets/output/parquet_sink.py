"""The Spark data sink that writes one Parquet file per shard and task into an attempt's folder.

Spark's own Parquet writer mixes shards in a file, or pays for a shuffle or a sort to keep them
apart. Like `assets.consuming.shard_data_source`, this module is imported by Spark's workers by its
name.
"""
# ruff: noqa: TID253

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark import TaskContext
from pyspark.sql.datasource import DataSource, DataSourceArrowWriter, WriterCommitMessage

from dagster_leasehold.assets.output.attempt_reports import (
    MovingRecords,
    report_error,
    report_written,
)
from dagster_leasehold.assets.output.shard_files import ShardFiles
from dagster_leasehold.assets.output.worker_results import WrittenFile
from dagster_leasehold.assets.places.address import output_place
from dagster_leasehold.assets.places.place import OutputPlace
from dagster_leasehold.lease_store.errors import LeaseholdError
from dagster_leasehold.lease_store.identifiers import ShardId

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

FORMAT = "leasehold_files"
BATCHES, FOLDER, TRANSFORM = "batches", "folder", "transform"


def write_options(
    numbers: Mapping[ShardId, range], folder: OutputPlace, transform: str
) -> dict[str, str]:
    """Return the options of a sweep's output: batches, attempt's folder, transform's name."""
    batches = {shard: [own.start, own.stop] for shard, own in numbers.items()}
    return {BATCHES: json.dumps(batches), FOLDER: str(folder), TRANSFORM: transform}


@dataclass
class WrittenByTask(WriterCommitMessage):
    """The files that one task wrote."""

    files: list[WrittenFile]


class ShardFilesSink(DataSource):
    """Writes rows to the files of their shards."""

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return FORMAT

    def writer(self, schema: StructType, overwrite: bool) -> ShardFilesWriter:
        """Return the writer of these options; there is nothing that it could overwrite."""
        del schema, overwrite
        return ShardFilesWriter(dict(self.options))


class ShardFilesWriter(DataSourceArrowWriter):
    """Writes a task's rows, and reports the files of the tasks that counted."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self._folder = output_place(options[FOLDER])
        batches: dict[str, list[int]] = json.loads(options[BATCHES])
        self._numbers = {ShardId(shard): range(*bounds) for shard, bounds in batches.items()}
        self._transform = options[TRANSFORM]

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WrittenByTask:
        """Write all rows of a task; a failed task leaves no file behind."""
        context = TaskContext.get()
        assert context is not None
        files = ShardFiles(
            self._folder,
            context.partitionId(),
            context.taskAttemptId(),
            self._numbers,
            self._transform,
        )
        try:
            moving = MovingRecords(self._folder)
            for batch in iterator:
                files.add(batch)
                moving.moved()
            return WrittenByTask(files.close())
        except BaseException as error:
            files.abandon()
            if isinstance(error, LeaseholdError):
                report_error(self._folder, None, error)
            raise

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Report the files of all tasks, which succeeded."""
        tasks = [message for message in messages if isinstance(message, WrittenByTask)]
        report_written(self._folder, [file for task in tasks for file in task.files])

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Delete the files that tasks of a failed job had finished."""
        for message in messages:
            if isinstance(message, WrittenByTask):
                for file in message.files:
                    (self._folder / file.path).remove(missing_ok=True)
