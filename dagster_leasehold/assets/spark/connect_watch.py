"""The process that watches over the embedded Spark Connect server.

`assets.spark.connect_server` starts it, as
`python -m dagster_leasehold.assets.spark.connect_watch FOLDER`.

It starts the server and keeps its log free of known noise. It ends the server on a signal, when the
folder is deleted, and when no process uses the server any longer. Processes note themselves in the
folder: runs as its clients, the code server that launches them and the commands that start Spark
as its keepers. So the JVM ends soon after its deployment, however that ended, and ten minutes after
the last run of a deployment that is at rest.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from types import FrameType

from dagster_leasehold.lease_store.process_identity import Existence, ProcessIdentity

LOG_FILE = "server.log"
PROPERTIES_FILE = "server.properties"
CLIENTS, KEEPERS = "clients", "keepers"
"""The folders where processes note themselves."""
UNUSED_MAX_S = 20.0
"""The time after which a server ends that no process uses or keeps, in seconds: enough for one to
be restarted."""
IDLE_MAX_S = 600.0
"""The time without a client after which a server ends, in seconds."""
LOG_BYTES_MAX = 16 * 1024 * 1024
CHECK_S = 2.0
STOP_TIMEOUT_S = 10.0
TRACE_BEGIN = "Traceback (most recent call last):"
NOISE = "BrokenPipeError"
"""The error that Spark's Python daemon prints of a worker that it ended; no row is lost by it."""


_SET_PARENT_DEATH_SIGNAL = 1
_PRCTL = getattr(ctypes.CDLL(None), "prctl", None)
"""Linux alone has it: elsewhere, `stop` ends a server whose watcher was killed."""


def note_client(folder: Path) -> None:
    """Note this process as a client of the server of `folder`, which runs at least as long."""
    _note(folder, CLIENTS)


def note_keeper(folder: Path) -> None:
    """Note this process as one that keeps the server of `folder` for the next run."""
    _note(folder, KEEPERS)


def _note(folder: Path, kind: str) -> None:
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    notes = folder / kind
    notes.mkdir(exist_ok=True)
    (notes / str(ProcessIdentity.of(os.getpid()))).touch()


def in_use(folder: Path, kind: str) -> bool:
    """Return True if a process of a kind still runs that noted itself; forget all others."""
    used = False
    for note in (folder / kind).glob("*"):
        process = ProcessIdentity.parse(note.name)
        if process is not None and process.same_place and process.existence() is not Existence.GONE:
            used = True
        else:
            # Only processes of this boot and this container reach a server on the loopback.
            note.unlink(missing_ok=True)
    return used


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
    """Run the server of `folder` until it exits, is signalled, or has no users left."""
    end_with_parent = _PRCTL and partial(_PRCTL, _SET_PARENT_DEATH_SIGNAL, signal.SIGKILL)
    server = subprocess.Popen(
        _command(folder),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        bufsize=1,
        # The system kills the server when this process, which has one thread so far, is killed.
        preexec_fn=end_with_parent,  # noqa: PLW1509
    )
    ending = threading.Event()

    def end(number: int, frame: FrameType | None) -> None:
        del number, frame
        ending.set()

    signal.signal(signal.SIGTERM, end)
    signal.signal(signal.SIGINT, end)
    copier = threading.Thread(target=_copy_log, args=(server, folder), daemon=True)
    copier.start()
    kept_s = used_s = time.monotonic()
    while server.poll() is None and not ending.wait(CHECK_S):
        if not (folder / PROPERTIES_FILE).exists():
            break
        now = time.monotonic()
        if in_use(folder, CLIENTS):
            kept_s = used_s = now
        elif in_use(folder, KEEPERS):
            kept_s = now
        if now - kept_s > UNUSED_MAX_S or now - used_s > IDLE_MAX_S:
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
