"""Reports of Spark's workers to the process that started the job: small files beside the output.

What a Python data source says on its own account does not find its way back through Spark. So
every task of the DataFrame way leaves its report in the attempt's folder, written whole and then
renamed. A task that was stopped early or lost leaves none, and a repeated one repeats
the same figures, since a range always holds the same records.
"""

from __future__ import annotations

import json
import os
import shutil
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dagster_leasehold.assets.output import worker_results
from dagster_leasehold.lease_store.durable_files import replace_file
from dagster_leasehold.lease_store.errors import LeaseholdError
from dagster_leasehold.lease_store.identifiers import ShardId

# Spark and Arrow take a folder with this first letter for none of the data's.
REPORTS_FOLDER = "_reports"
_READ, _ERROR, _WRITTEN, _MOVING = "read", "error", "written", "moving"
MOVING_EVERY_S = 1.0


@dataclass(frozen=True, slots=True)
class ShardFailure:
    """An error that a worker raised, and the shard that it belongs to, or None."""

    shard: ShardId | None
    error: LeaseholdError


class MovingRecords:
    """Sign of a task that records move through it: a file that grows once a second while they do.

    A task that ends sooner leaves none. `clock` gives monotonic seconds.
    """

    def __init__(self, folder: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self._path = folder / REPORTS_FOLDER / f"{_MOVING}-{uuid.uuid4().hex}"
        self._clock = clock
        self._noted_at = clock()

    def moved(self) -> None:
        """Take note of some records; a disk that does not take the sign keeps nobody from work."""
        now = self._clock()
        if now - self._noted_at < MOVING_EVERY_S:
            return
        self._noted_at = now
        with suppress(OSError):
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with self._path.open("ab") as file:
                file.write(b".")


def signs_of_work(folder: Path) -> frozenset[tuple[str, int]]:
    """Return what changes while the tasks of an attempt make progress: its files' sizes."""
    signs: set[tuple[str, int]] = set()
    for place in (folder, folder / REPORTS_FOLDER):
        with suppress(OSError), os.scandir(place) as entries:
            for entry in entries:
                with suppress(OSError):
                    signs.add((entry.name, entry.stat().st_size))
    return frozenset(signs)


def report_read(folder: Path, shard: str, statistics: worker_results.RangeStatistics) -> None:
    """Report that the range of a shard was read to its end."""
    _write(folder, f"{_READ}-{uuid.uuid4().hex}", {"shard": shard, "read": statistics.plain()})


def report_error(folder: Path, shard: str | None, error: BaseException) -> None:
    """Report why a task failed."""
    content = {"shard": shard, "error": worker_results.plain_error(error)}
    _write(folder, f"{_ERROR}-{uuid.uuid4().hex}", content)


def report_written(folder: Path, files: Iterable[worker_results.WrittenFile]) -> None:
    """Report the files of the tasks that counted; the job has succeeded."""
    _write(folder, _WRITTEN, [file.plain() for file in files])


def read_statistics(folder: Path) -> dict[str, worker_results.RangeStatistics]:
    """Return the statistics of every shard whose range was read to its end."""
    return {
        content["shard"]: worker_results.RangeStatistics.of(content["read"])
        for content in _contents(folder, _READ)
    }


def failures(folder: Path) -> list[ShardFailure]:
    """Return the errors that workers reported, in their own types if they are this project's."""
    reported: list[ShardFailure] = []
    for content in _contents(folder, _ERROR):
        shard = ShardId(content["shard"]) if content["shard"] is not None else None
        reported.append(ShardFailure(shard, worker_results.error_of(content["error"])))
    return reported


def written_files(folder: Path) -> list[worker_results.WrittenFile] | None:
    """Return the files of the job; None if it did not succeed."""
    for content in _contents(folder, _WRITTEN):
        return [worker_results.WrittenFile.of(file) for file in content]
    return None


def remove_reports(folder: Path) -> None:
    """Delete the reports, once they are read."""
    shutil.rmtree(folder / REPORTS_FOLDER, ignore_errors=True)


def _write(folder: Path, name: str, content: Any) -> None:
    reports = folder / REPORTS_FOLDER
    reports.mkdir(parents=True, exist_ok=True)
    replace_file(reports / f"{name}.json", json.dumps(content))


def _contents(folder: Path, kind: str) -> Iterator[Any]:
    for path in sorted((folder / REPORTS_FOLDER).glob(f"{kind}*.json")):
        yield json.loads(path.read_text())
