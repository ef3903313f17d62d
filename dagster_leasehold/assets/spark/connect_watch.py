"""The process that watches the embedded Spark Connect server.

`assets.spark.connect_server` starts it, as
`python -m dagster_leasehold.assets.spark.connect_watch FOLDER`.

It starts the server, and removes known noise from its log. It ends the server on a signal, when the
folder is deleted, and when no process uses the server. Processes register in the folder: a run as a
client; a code server, or a command that starts Spark, as a keeper. So the JVM ends soon after its
deployment, even after a crash, and ten minutes after the last run of an idle deployment.
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
"""The folders where processes register."""
UNUSED_MAX_S = 20.0
"""A server without clients and keepers ends after this time, in seconds. A code server can restart
within it."""
IDLE_MAX_S = 600.0
"""A server with keepers but without clients ends after this time, in seconds."""
LOG_BYTES_MAX = 16 * 1024 * 1024
CHECK_S = 2.0
STOP_TIMEOUT_S = 10.0
TRACE_BEGIN = "Traceback (most recent call last):"
NOISE = "BrokenPipeError"
"""Spark's Python daemon logs this error after it ends a worker; it is harmless."""


_SET_PARENT_DEATH_SIGNAL = 1
_PRCTL = getattr(ctypes.CDLL(None), "prctl", None)
"""Only Linux has it. Elsewhere `stop` ends a server whose watcher was killed."""


def register_client(folder: Path) -> None:
    """Register this process as a client, for which the server of `folder` keeps running."""
    _register(folder, CLIENTS)


def register_keeper(folder: Path) -> None:
    """Register this process as a keeper, which keeps the server of `folder` for the next run."""
    _register(folder, KEEPERS)


def _register(folder: Path, kind: str) -> None:
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    processes = folder / kind
    processes.mkdir(exist_ok=True)
    (processes / str(ProcessIdentity.of(os.getpid()))).touch()


def in_use(folder: Path, kind: str) -> bool:
    """Return True if a registered process of this kind still runs; unregister all others."""
    used = False
    for file in (folder / kind).glob("*"):
        process = ProcessIdentity.parse(file.name)
        if process is not None and process.same_place and process.existence() is not Existence.GONE:
            used = True
        else:
            # A process of another boot or container cannot reach a server on the loopback.
            file.unlink(missing_ok=True)
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
        # If this process is killed, the system kills the server. `preexec_fn` is safe here: this
        # process has no other threads yet.
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
    keeper_s = client_s = time.monotonic()
    while server.poll() is None and not ending.wait(CHECK_S):
        if not (folder / PROPERTIES_FILE).exists():
            break
        now = time.monotonic()
        if in_use(folder, CLIENTS):
            keeper_s = client_s = now
        elif in_use(folder, KEEPERS):
            keeper_s = now
        if now - keeper_s > UNUSED_MAX_S or now - client_s > IDLE_MAX_S:
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
    return [
        str(Path(os.environ["SPARK_HOME"]) / "bin" / "spark-submit"),
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
