"""A steady flow of records, to a log or to files, and the ages of what was committed of it."""

from __future__ import annotations

import json
import statistics
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks.local_log import values
from dagster_leasehold.shard_sources.local_log import LocalLog

SHARDS = 8
APPEND_S = 0.25
FILE_S = 1.0
DISTINCT = 20_000


class Flow:
    """So many records a second, spread over the shards, until the block ends.

    Args:
        rate: records a second, of all shards together.
        every_s: seconds between two writes.
        write: takes the shard and the records of each shard of one write.
        skew: the part of the records that the first shard gets; the others share the rest evenly.
    """

    def __init__(
        self,
        rate: int,
        every_s: float,
        write: Callable[[dict[str, list[bytes]]], None],
        skew: float = 1 / SHARDS,
    ) -> None:
        rest = (1 - skew) / (SHARDS - 1)
        self._rates = {str(shard): rate * (rest if shard else skew) for shard in range(SHARDS)}
        self._every_s = every_s
        self._write = write
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="flow", daemon=True)
        self._records = values(DISTINCT)
        self.written = dict.fromkeys(self._rates, 0)

    def __enter__(self) -> Flow:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._thread.join()

    def _run(self) -> None:
        began = time.monotonic()
        while not self._stopping.wait(self._every_s):
            # A write that was late is a larger one: the rate stays.
            elapsed_s = time.monotonic() - began
            whole = {shard: round(rate * elapsed_s) for shard, rate in self._rates.items()}
            portions = {
                shard: [self._records[number % DISTINCT] for number in range(before, whole[shard])]
                for shard, before in self.written.items()
            }
            self._write({shard: portion for shard, portion in portions.items() if portion})
            self.written = whole


def log_flow(log: LocalLog, rate: int, skew: float = 1 / SHARDS) -> Flow:
    """Return a flow into a log, of which the first shard gets a part of its own."""

    def write(portions: dict[str, list[bytes]]) -> None:
        for shard, records in portions.items():
            log.append(shard, records)

    return Flow(rate, APPEND_S, write, skew)


def file_flow(folder: Path, rate: int) -> Flow:
    """Return a flow into files of JSON lines, one a second, as Spark's file source wants them.

    A line has the record as text, its shard, and the time at which it was written.
    """
    folder.mkdir()
    hidden = folder.with_name(f"{folder.name}-unfinished")
    hidden.mkdir()
    numbers = iter(range(10**9))

    def write(portions: dict[str, list[bytes]]) -> None:
        name = f"{next(numbers):09}.json"
        now = time.time()
        with (hidden / name).open("w", encoding="utf-8") as file:
            file.writelines(
                json.dumps({"shard_id": shard, "at": now, "value": record.decode()}) + "\n"
                for shard, records in portions.items()
                for record in records
            )
        (hidden / name).rename(folder / name)

    return Flow(rate, FILE_S, write)


def age_figures(ages: Sequence[float]) -> dict[str, float | str]:
    """Return median, 95 % and highest of ages in seconds, as cells of a row."""
    if not ages:
        return {"age s": "", "95 % s": "", "highest s": ""}
    if len(ages) == 1:
        points = [ages[0]] * 19
    else:
        points = statistics.quantiles(ages, n=20, method="inclusive")
    return {
        "age s": round(points[9], 2),
        "95 % s": round(points[18], 2),
        "highest s": round(max(ages), 2),
    }
