"""The process that watches over the embedded Spark Connect server.

`assets.spark.connect_server` starts it, as
`python -m dagster_leasehold.assets.spark.connect_watch FOLDER`.

It starts the server, keeps its log free of known noise, and ends it on a signal or when the folder
that it serves is gone, so that a deleted home leaves nothing running.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import FrameType

LOG_FILE = "server.log"
PROPERTIES_FILE = "server.properties"
LOG_BYTES_MAX = 16 * 1024 * 1024
CHECK_S = 2.0
STOP_TIMEOUT_S = 10.0
TRACE_BEGIN = "Traceback (most recent call last):"
NOISE = "BrokenPipeError"
"""The error that Spark's Python daemon prints of a worker that it ended; no row is lost by it."""


def without_noise(lines: Iterable[str]) -> Iterator[str]:
    """Yield the lines of a log without the stack traces that end in a broken pipe."""
    trace: list[str] = []
    for line in lines:
        if line.startswith(TRACE_BEGIN):
            yield from trace
            trace = [line]
        elif trace and line[:1].isspace():
            trace.append(line)
        elif trace:
            if not line.startswith(NOISE):
                yield from (*trace, line)
            trace = []
        else:
            yield line
    yield from trace


def watch(folder: Path) -> int:
    """Run the server of `folder` until it ends, a signal comes, or the folder is gone."""
    server = subprocess.Popen(
        _command(folder),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        bufsize=1,
    )
    ending = threading.Event()

    def end(number: int, frame: FrameType | None) -> None:
        del number, frame
        ending.set()

    signal.signal(signal.SIGTERM, end)
    signal.signal(signal.SIGINT, end)
    copier = threading.Thread(target=_copy_log, args=(server, folder), daemon=True)
    copier.start()
    while server.poll() is None and not ending.wait(CHECK_S):
        if not (folder / PROPERTIES_FILE).exists():
            break
    if server.poll() is None:
        server.terminate()
        try:
            server.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            server.kill()
    copier.join(STOP_TIMEOUT_S)
    return server.wait()


def _command(folder: Path) -> list[str]:
    import pyspark

    return [
        str(Path(pyspark.__file__).parent / "bin" / "spark-submit"),
        "--class",
        "org.apache.spark.sql.connect.service.SparkConnectServer",
        "--properties-file",
        str(folder / PROPERTIES_FILE),
        "spark-internal",
    ]


def _copy_log(server: subprocess.Popen[str], folder: Path) -> None:
    path = folder / LOG_FILE
    if path.exists() and path.stat().st_size > LOG_BYTES_MAX:
        os.replace(path, path.with_name(f"{LOG_FILE}.1"))
    assert server.stdout is not None
    with path.open("a", encoding="utf-8") as log:
        for line in without_noise(server.stdout):
            log.write(line)
            log.flush()


if __name__ == "__main__":
    sys.exit(watch(Path(sys.argv[1])))
