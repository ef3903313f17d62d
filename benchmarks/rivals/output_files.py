"""Files of Parquet: as rivals write them, and as a reader of any contestant's output sees them."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from statistics import median

import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.rivals.log_feed import SHARDS, record_of

Record = tuple[int, int]
"""Shard and number."""


def write_durably(folder: Path, worker: str, values: Sequence[bytes]) -> None:
    """Write a file that appears under its name when it is whole and on the disk."""
    name = f"{worker}-{time.time_ns()}.parquet"
    draft = folder / f".{name}"
    pq.write_table(pa.table({"value": pa.array(values, pa.binary())}), draft)
    with draft.open("rb") as file:
        os.fsync(file.fileno())
    draft.rename(folder / name)
    directory = os.open(folder, os.O_RDONLY)
    os.fsync(directory)
    os.close(directory)


def finished_files(folder: Path) -> list[str]:
    """Return the files that readers of a folder take: none is hidden, or in a hidden folder."""
    return [
        path
        for path in all_files(str(folder))
        if path.endswith(".parquet")
        and not any(part[0] in "._" for part in Path(path).relative_to(folder).parts)
    ]


def all_files(folder: str) -> Iterator[str]:
    """Yield every file below a folder, drafts and hidden ones included."""
    with suppress(FileNotFoundError), os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_dir():
                yield from all_files(entry.path)
            else:
                yield entry.path


def records_of(path: str) -> Iterator[Record]:
    """Yield the records of a file; none if it has just been replaced."""
    with suppress(FileNotFoundError):
        for value in pq.read_table(path, columns=["value"], partitioning=None)["value"].to_pylist():
            yield record_of(value if isinstance(value, bytes) else value.encode())


class Sightings:
    """The moments at which the records of a contestant's output became readable."""

    def __init__(self) -> None:
        self._files: set[str] = set()
        self.seen: dict[Record, float] = {}

    def look(self, files: Iterable[str], now_s: float) -> None:
        """Note the records of files that were not there before."""
        for path in set(files) - self._files:
            self._files.add(path)
            for record in records_of(path):
                self.seen.setdefault(record, now_s)

    def readable(self, end: int) -> bool:
        """Return True if the first `end` records of each shard are readable."""
        return all((shard, n) in self.seen for shard in range(SHARDS) for n in range(end))

    def recovery_s(self, struck_s: float, appends: Sequence[tuple[float, int]]) -> float | None:
        """Return the seconds from a strike until all up to the next append is readable.

        None if some of it never was.
        """
        goal = next(end for at_s, end in appends if at_s > struck_s)
        moments = [self.seen.get((shard, n)) for shard in range(SHARDS) for n in range(goal)]
        if None in moments:
            return None
        return max(moment for moment in moments if moment is not None) - struck_s

    def age_s(self, appends: Iterable[tuple[float, int]]) -> float:
        """Return the median age at which the last records of appends became readable."""
        ages = [
            self.seen[shard, end - 1] - at_s
            for at_s, end in appends
            for shard in range(SHARDS)
            if (shard, end - 1) in self.seen
        ]
        return median(ages) if ages else float("nan")


def lost_and_doubled(files: Iterable[str], end: int) -> tuple[int, int]:
    """Return how many of the first `end` records of each shard are missing, and copies too many."""
    copies = Counter(record for path in files for record in records_of(path))
    expected = {(shard, n) for shard in range(SHARDS) for n in range(end)}
    assert set(copies) <= expected, "output holds what was never written"
    return len(expected - set(copies)), sum(copies.values()) - len(copies)
