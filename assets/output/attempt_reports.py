"""Reports of Spark's workers to the process that started the job: small files beside the output.

A Python data source runs in processes of Spark's own, where neither a variable nor an exception's
type finds its way back. So every task leaves its report in the attempt's folder, written whole
and then renamed. A task that was stopped early or lost leaves none, and a repeated one repeats
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
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from dagster_leasehold.lease_store.durable_files import replace_file
from dagster_leasehold.lease_store.errors import LeaseholdError, SourceError
from dagster_leasehold.lease_store.identifiers import ShardId
from dagster_leasehold.lease_store.ledger_rows import DataFile
from dagster_leasehold.lease_store.times import stored_time, time_text

# Spark and Arrow take a folder with this first letter for none of the data's.
REPORTS_FOLDER = "_reports"
_READ, _ERROR, _WRITTEN, _MOVING = "read", "error", "written", "moving"
MOVING_EVERY_S = 1.0
_TIMES = ("first_event_time", "last_event_time")


@dataclass(frozen=True, slots=True)
class RangeStatistics:
    """Statistics of one range that was read to its end.

    Attributes:
        records: the number of records.
        bytes: the bytes of their keys and values.
        first_event_time: the smallest event time, or None.
        last_event_time: the largest event time, or None.
    """

    records: int = 0
    bytes: int = 0
    first_event_time: datetime | None = None
    last_event_time: datetime | None = None


@dataclass(frozen=True, slots=True)
class WrittenFile:
    """A file that a task of a successful job wrote, and the shard it belongs to.

    The event times bound those of its records; None if nobody knows them.
    """

    shard: str
    path: str
    records: int
    bytes: int
    quarantine: bool
    first_event_time: datetime | None = None
    last_event_time: datetime | None = None

    def data_file(self, attempt: str) -> DataFile:
        """Return the file as the ledger keeps it, relative to the stream's output folder."""
        return DataFile(
            f"{attempt}/{self.path}",
            self.records,
            self.bytes,
            self.quarantine,
            first_event_time=self.first_event_time,
            last_event_time=self.last_event_time,
        )


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


def report_read(folder: Path, shard: str, statistics: RangeStatistics) -> None:
    """Report that the range of a shard was read to its end."""
    first, last = statistics.first_event_time, statistics.last_event_time
    _write(
        folder,
        f"{_READ}-{uuid.uuid4().hex}",
        {
            "shard": shard,
            "records": statistics.records,
            "bytes": statistics.bytes,
            "first": time_text(first) if first else None,
            "last": time_text(last) if last else None,
        },
    )


def report_error(folder: Path, shard: str | None, error: BaseException) -> None:
    """Report why a task failed."""
    content = {"shard": shard, "kind": type(error).__name__, "message": str(error)}
    _write(folder, f"{_ERROR}-{uuid.uuid4().hex}", content)


def report_written(folder: Path, files: Iterable[WrittenFile]) -> None:
    """Report the files of the tasks that counted; the job has succeeded."""
    _write(folder, _WRITTEN, [_plain(file) for file in files])


def read_statistics(folder: Path) -> dict[str, RangeStatistics]:
    """Return the statistics of every shard whose range was read to its end."""
    return {
        content["shard"]: RangeStatistics(
            content["records"],
            content["bytes"],
            stored_time(content["first"]) if content["first"] else None,
            stored_time(content["last"]) if content["last"] else None,
        )
        for content in _contents(folder, _READ)
    }


def failures(folder: Path) -> list[ShardFailure]:
    """Return the errors that workers reported, in their own types if they are this project's."""
    reported: list[ShardFailure] = []
    for content in _contents(folder, _ERROR):
        shard = ShardId(content["shard"]) if content["shard"] is not None else None
        reported.append(ShardFailure(shard, _error(content["kind"], content["message"])))
    return reported


def written_files(folder: Path) -> list[WrittenFile] | None:
    """Return the files of the job; None if it did not succeed."""
    for content in _contents(folder, _WRITTEN):
        return [_written_file(file) for file in content]
    return None


def remove_reports(folder: Path) -> None:
    """Delete the reports, once they are read."""
    shutil.rmtree(folder / REPORTS_FOLDER, ignore_errors=True)


def earliest(one: datetime | None, other: datetime | None) -> datetime | None:
    """Return the smaller of two times, either of which may be unknown."""
    times = [time for time in (one, other) if time is not None]
    return min(times, default=None)


def latest(one: datetime | None, other: datetime | None) -> datetime | None:
    """Return the larger of two times, either of which may be unknown."""
    times = [time for time in (one, other) if time is not None]
    return max(times, default=None)


def _plain(file: WrittenFile) -> dict[str, Any]:
    values = asdict(file)
    return values | {name: time_text(time) for name in _TIMES if (time := values[name])}


def _written_file(values: dict[str, Any]) -> WrittenFile:
    read = dict(values)
    for name in _TIMES:
        read[name] = stored_time(read[name]) if read[name] else None
    return WrittenFile(**read)


def _error(kind: str, message: str) -> LeaseholdError:
    for candidate in _kinds(LeaseholdError):
        if candidate.__name__ == kind:
            error = candidate.__new__(candidate)
            # Some errors take other arguments than their message; the sentence is what counts.
            Exception.__init__(error, message)
            return error
    return SourceError(f"Reading failed with {kind}: {message}")


def _kinds(root: type[LeaseholdError]) -> Iterator[type[LeaseholdError]]:
    """Yield a class of errors and all below it, in whichever room they are declared."""
    yield root
    for kind in root.__subclasses__():
        yield from _kinds(kind)


def _write(folder: Path, name: str, content: Any) -> None:
    reports = folder / REPORTS_FOLDER
    reports.mkdir(parents=True, exist_ok=True)
    replace_file(reports / f"{name}.json", json.dumps(content))


def _contents(folder: Path, kind: str) -> Iterator[Any]:
    for path in sorted((folder / REPORTS_FOLDER).glob(f"{kind}*.json")):
        yield json.loads(path.read_text())
