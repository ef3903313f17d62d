"""Reports of Spark's workers to the process that started the job: small files beside the output.

What a Python data source says on its own account does not find its way back through Spark. So
the tasks of the DataFrame way leave reports in the attempt's folder, each written whole under a
name that the reader works out: one for each shard that was read to its end, one for each that
failed, one for a failure that no shard explains, and one for the files of a job that succeeded. A
task that was stopped early or lost leaves none, and a repeated one writes the same figures again,
since a range always holds the same records.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from dagster_leasehold.assets.errors import OutputUnreadable
from dagster_leasehold.assets.output import worker_results
from dagster_leasehold.assets.places.place import REPORTS_FOLDER, OutputPlace
from dagster_leasehold.lease_store.errors import LeaseholdError, one_line
from dagster_leasehold.lease_store.identifiers import ShardId

_READ, _ERROR, _WRITTEN = "read", "error", "written"
REPORTS_AT_ONCE = 16


@dataclass(frozen=True, slots=True)
class ShardFailure:
    """An error that a worker raised, and the shard that it belongs to, or None."""

    shard: ShardId | None
    error: LeaseholdError


class MovingRecords:
    """Signs of a task that records move through it, left now and then while they do.

    A task that ends sooner leaves none. `clock` gives monotonic seconds.
    """

    def __init__(self, folder: OutputPlace, clock: Callable[[], float] = time.monotonic) -> None:
        self._folder = folder
        self._task = uuid.uuid4().hex
        self._clock = clock
        self._noted_at = clock()

    def moved(self) -> None:
        """Take note of some records; a disk that does not take the sign keeps nobody from work."""
        now = self._clock()
        if now - self._noted_at < self._folder.signs_every_s:
            return
        self._noted_at = now
        with suppress(OSError):
            self._folder.note_work(self._task)


def report_read(
    folder: OutputPlace, shard: ShardId, statistics: worker_results.RangeStatistics
) -> None:
    """Report that the range of a shard was read to its end."""
    _write(folder, _READ, shard, statistics.plain())


def report_error(folder: OutputPlace, shard: ShardId | None, error: BaseException) -> None:
    """Report why a task failed."""
    _write(folder, _ERROR, shard, worker_results.plain_error(error))


def report_written(folder: OutputPlace, files: Iterable[worker_results.WrittenFile]) -> None:
    """Report the files of the tasks that counted; the job has succeeded."""
    _write(folder, _WRITTEN, None, [file.plain() for file in files])


def read_statistics(
    folder: OutputPlace, shards: Sequence[ShardId]
) -> dict[ShardId, worker_results.RangeStatistics]:
    """Return the statistics of those of these shards whose range was read to its end."""
    reports = _contents(folder, _READ, shards)
    return {
        shard: worker_results.RangeStatistics.of(report)
        for shard, report in zip(shards, reports, strict=True)
        if report is not None
    }


def failures(folder: OutputPlace, shards: Sequence[ShardId]) -> list[ShardFailure]:
    """Return the errors that workers reported, in their own types if they are this project's."""
    places = [*shards, None]
    reports = _contents(folder, _ERROR, places)
    return [
        ShardFailure(shard, worker_results.error_of(report))
        for shard, report in zip(places, reports, strict=True)
        if report is not None
    ]


def written_files(folder: OutputPlace) -> list[worker_results.WrittenFile] | None:
    """Return the files of the job; None if it did not succeed."""
    (report,) = _contents(folder, _WRITTEN, [None])
    return None if report is None else [worker_results.WrittenFile.of(file) for file in report]


def remove_reports(folder: OutputPlace) -> None:
    """Delete the reports, once they are read."""
    (folder / REPORTS_FOLDER).remove_folder()


def _place(folder: OutputPlace, kind: str, shard: ShardId | None) -> OutputPlace:
    # In hexadecimal digits, for file systems that do not tell a from A.
    name = kind if shard is None else f"{kind}-{shard.encode().hex()}"
    return folder / f"{REPORTS_FOLDER}/{name}.json"


def _write(folder: OutputPlace, kind: str, shard: ShardId | None, content: Any) -> None:
    _place(folder, kind, shard).put(json.dumps(content).encode())


def _contents(folder: OutputPlace, kind: str, shards: Sequence[ShardId | None]) -> list[Any]:
    """Return the reports of a kind, None for each that was not written.

    Raises:
        OutputUnreadable: the folder does not answer.
    """
    with ThreadPoolExecutor(REPORTS_AT_ONCE) as reading:
        texts = reading.map(lambda shard: _place(folder, kind, shard).content(), shards)
        try:
            return [None if text is None else json.loads(text) for text in texts]
        except OSError as error:
            raise OutputUnreadable(
                f"The reports of Spark's workers in {folder} cannot be read "
                f"({one_line(str(error))}): their batches are made again by the next run."
            ) from error
