"""Spark Structured Streaming over a folder of JSON lines, in a process of its own, and its figures.

`python -m benchmarks.figures.live_streaming FOLDER SECONDS` runs one query on `FOLDER/input`, with
a trigger of so many seconds (0: as soon as the last one is over), until it gets SIGTERM.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any, Self

import psutil

from benchmarks.figures.live_deployment import Stretch
from benchmarks.figures.process_tree import MEBIBYTE, CpuClock, memory_bytes, wait_for_orphans

START_S = 120.0
SCHEMA = "shard_id string, at double, value string"


class LiveStreaming:
    """The query's process, ended with the block."""

    def __init__(self, folder: Path, interval_s: float) -> None:
        self._folder = folder
        self._interval_s = interval_s
        self._cpu = CpuClock()
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        command = [sys.executable, "-m", "benchmarks.figures.live_streaming"]
        with (self._folder / "streaming.log").open("wb") as output:
            self._process = subprocess.Popen(
                [*command, str(self._folder), str(self._interval_s)],
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        deadline = time.monotonic() + START_S
        while not (self._folder / "ready").exists():
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError((self._folder / "streaming.log").read_text()[-2000:])
            time.sleep(0.5)
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process is not None
        for process in psutil.Process(self._process.pid).children(recursive=True):
            process.terminate()
        self._process.terminate()
        try:
            self._process.wait(30.0)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def measure(self, seconds: float) -> Stretch:
        """Return the work of the next so many seconds."""
        assert self._process is not None
        began = time.time()
        self._cpu.restart()
        time.sleep(seconds)
        wait_for_orphans([self._process.pid])
        cores, ended = self._cpu.cores(), time.time()
        memory = memory_bytes(psutil.Process().children(recursive=True)) / MEBIBYTE
        stretch = Stretch(ended - began, cores, memory)
        for path in (self._folder / "rows").rglob("*.parquet"):
            stretch.files += began <= path.stat().st_mtime < ended
        for batch in (self._folder / "checkpoint" / "commits").iterdir():
            if batch.name.isdecimal() and began <= (at := batch.stat().st_mtime) < ended:
                files = batch_files(self._folder / "checkpoint", batch.name)
                # Written at once, and named by the time at which that was done.
                times = [path.stat().st_mtime for path in files]
                stretch.ages += [at - min(times)] if times else []
                stretch.records += sum(path.read_bytes().count(b"\n") for path in files)
        return stretch


def batch_files(checkpoint: Path, number: str) -> list[Path]:
    """Return the input files of a batch, as its log in the checkpoint names them."""
    lines: list[str] = []
    for name in (number, f"{number}.compact"):
        path = checkpoint / "sources" / "0" / name
        if path.exists():
            lines = path.read_text("utf-8").splitlines()[1:]
    entries: list[dict[str, Any]] = [json.loads(line) for line in lines]
    return [
        Path(entry["path"].removeprefix("file://"))
        for entry in entries
        if entry["batchId"] == int(number)
    ]


def main() -> None:
    """Run the query until SIGTERM."""
    from pyspark.sql import SparkSession

    from dagster_leasehold.assets.spark.spark_session import server_conf, spark_environment

    folder, interval_s = Path(sys.argv[1]), float(sys.argv[2])

    os.environ.update(spark_environment(folder, os.environ))
    builder: Any = SparkSession.builder
    for name, value in server_conf(folder).items():
        builder = builder.config(name, value)
    # Its log is what is measured: of 100 batches it would keep no more than two minutes.
    builder = builder.config("spark.sql.streaming.minBatchesToRetain", 100_000)
    session = builder.getOrCreate()
    rows = session.readStream.schema(SCHEMA).json(str(folder / "input"))
    query = (
        rows.writeStream.format("parquet")
        .partitionBy("shard_id")
        .option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(processingTime=f"{interval_s} seconds")
        .start(str(folder / "rows"))
    )
    ended = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: ended.set())
    (folder / "ready").touch()
    while query.isActive and not ended.wait(1.0):
        pass


if __name__ == "__main__":
    main()
