"""A process that consumes logs through one Spark Connect server, as a node's run does.

`python -m benchmarks.figures.engine_client FOLDER ADDRESS RECORDS BEGAN` prints one JSON object:
the seconds from `BEGAN`, a reading of the monotonic clock, to the first commit, and the seconds of
each way over `RECORDS` records, or the error that it ends with.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.figures.parquet_input import PORTION
from benchmarks.figures.parquet_ways import OURS, OURS_ARROW, OURS_FRAME, ways
from dagster_leasehold.assets.spark.spark_resource import SparkResource

SMALL, LARGE = "small", "large"
WAYS = (OURS, OURS_ARROW, OURS_FRAME)
ERROR_LENGTH_MAX = 150


def measure(folder: Path, address: str, records: int, began: float) -> dict[str, Any]:
    """Return the figures; each way has its second round measured, which meets warm workers."""
    spark = SparkResource(mode=address, folder=str(folder / "client"))
    figures: dict[str, Any] = {}
    rounds = [(SMALL, OURS, PORTION), *((LARGE, way, records) for way in WAYS for _ in range(2))]
    for number, (log, way, _) in enumerate(rounds):
        if isinstance(figures.get(way), str):
            continue
        output = folder / f"output-{time.monotonic_ns()}"
        output.mkdir()
        started = began if number == 0 else time.monotonic()
        try:
            ways(folder / log, spark)[way](output)
        except Exception as error:
            figures[way] = f"{type(error).__name__}: {error}"[:ERROR_LENGTH_MAX]
            continue
        seconds = time.monotonic() - started
        figures["first commit" if number == 0 else way] = round(seconds, 2)
    return figures


def main() -> None:
    """Measure and print."""
    folder, address, records, began = sys.argv[1:]
    json.dump(measure(Path(folder), address, int(records), float(began)), sys.stdout)


if __name__ == "__main__":
    main()
