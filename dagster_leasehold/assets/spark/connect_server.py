"""The embedded Spark Connect server: one warm server per folder, started when first needed.

A JVM takes seconds to start, as long as a short run. So runs share one server, which ends soon
after its last user. It listens only on the loopback, and requires a token that only this account
can read. `spark_session` and `spark_resource` call this module.

A file lock prevents a second server:

1. Runs A and B both find no server.
2. A takes the lock and starts a server; B waits for the lock.
3. A writes the state file and releases the lock.
4. B takes the lock, reads the state file again, and uses A's server.
"""

from __future__ import annotations

import json
import secrets
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

from filelock import FileLock, Timeout

from dagster_leasehold.assets.errors import SparkUnavailable
from dagster_leasehold.assets.spark.connect_watch import LOG_FILE, PROPERTIES_FILE, register_client
from dagster_leasehold.assets.spark.spark_settings import TOKEN_VARIABLE
from dagster_leasehold.lease_store.durable_files import replace_file
from dagster_leasehold.lease_store.process_identity import Existence, ProcessIdentity
from dagster_leasehold.lease_store.process_sessions import end_session

STATE_FILE = "server.json"
TOKEN_FILE = "token"
LOCK_FILE = "server.lock"
START_TIMEOUT_S = 120.0
STOP_TIMEOUT_S = 15.0
POLL_S = 0.05
PORT_ATTEMPTS = 3


@dataclass(frozen=True, slots=True)
class ConnectServer:
    """A server, as described by its state file.

    Attributes:
        process: the process that watches the server, and leads its process group.
        session_id: the Spark session that all runs share, since each new session costs 200 MB.
        version: the versions of Spark and Python, and the user's configuration. If it differs, a
            new server is needed.
    """

    process: ProcessIdentity
    port: int
    session_id: str
    version: str

    @classmethod
    def read(cls, folder: Path) -> Self | None:
        """Return the content of the state file; None if it is missing or not readable."""
        try:
            state = json.loads((folder / STATE_FILE).read_text())
            process = ProcessIdentity.parse(state["process"])
            port = state["port"]
            if process is None or type(port) is not int:
                return None
            return cls(process, port, str(state["session_id"]), str(state["version"]))
        except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
            return None

    def write(self, folder: Path) -> None:
        """Replace the state file atomically."""
        state = {
            "process": str(self.process),
            "port": self.port,
            "session_id": self.session_id,
            "version": self.version,
        }
        replace_file(folder / STATE_FILE, json.dumps(state), mode=0o600)

    @property
    def pid(self) -> int:
        """The id of the watcher, and of its process group."""
        return self.process.pid

    @property
    def address(self) -> str:
        """The address for Spark's client; the token is not part of it."""
        # The client sends a token over plain text only to the name `localhost`.
        return f"sc://localhost:{self.port}/;session_id={self.session_id};user_id=leasehold"

    @staticmethod
    def read_token(folder: Path) -> str:
        """Return the access token of the server of this folder."""
        return (folder / TOKEN_FILE).read_text().strip()

    def alive(self) -> bool:
        """Return True if the watcher is known to run."""
        return self.process.existence() is Existence.ALIVE

    def answers(self) -> bool:
        """Return True if the watcher runs and the port accepts connections."""
        return self.alive() and _port_open(self.port)


def running(folder: Path) -> ConnectServer | None:
    """Return the server of this folder, if one runs and answers."""
    server = ConnectServer.read(folder)
    return server if server is not None and server.answers() else None


def connect_server(
    folder: Path,
    conf: Mapping[str, str],
    environment: Callable[[], Mapping[str, str]],
    *,
    user_conf: Mapping[str, str],
    start_timeout_s: float = START_TIMEOUT_S,
) -> ConnectServer:
    """Return the server of this folder; start one if none runs with this configuration.

    Args:
        environment: returns the environment of a new server, with JAVA_HOME and the Python of its
            workers; called only if a server starts, because the search for Java runs Java.
        user_conf: the user's configuration, which overrides `conf`.

    Raises:
        SparkUnavailable: the server ended before it answered, or did not answer in time.
    """
    register_client(folder)
    version = _version(user_conf)
    server = running(folder)
    if server is not None and server.version == version:
        return server
    try:
        with FileLock(folder / LOCK_FILE, timeout=start_timeout_s):
            server = running(folder)
            if server is not None and server.version == version:
                return server
            _end(folder)
            return _start(folder, {**conf, **user_conf}, environment(), start_timeout_s, version)
    except Timeout:
        raise SparkUnavailable(
            f"Another process has been starting the Spark server of {folder} for more than "
            f"{start_timeout_s:.0f} s: see {folder / LOG_FILE}."
        ) from None


def stop(folder: Path, *, only: ConnectServer | None = None) -> bool:
    """Stop the server of this folder; return False if none was running.

    With `only`, any other server keeps running: another process may have just started it.
    """
    if not folder.is_dir():
        return False
    with FileLock(folder / LOCK_FILE, timeout=START_TIMEOUT_S):
        server = ConnectServer.read(folder)
        if only is not None and (server is None or server.process != only.process):
            return False
        return _end(folder)


def replace_session(folder: Path, lost: ConnectServer) -> bool:
    """Replace the session that all runs of a server share, after it was closed.

    1. Runs A and B find that the session is closed.
    2. A takes the lock, and writes a new session id into the state file.
    3. B takes the lock, finds a session other than the closed one, and uses it.

    Returns:
        False if no server runs in this folder.
    """
    if not folder.is_dir():
        return False
    with FileLock(folder / LOCK_FILE, timeout=START_TIMEOUT_S):
        server = running(folder)
        if server is not None and server.session_id == lost.session_id:
            replace(server, session_id=str(uuid.uuid4())).write(folder)
        return server is not None


def _start(
    folder: Path,
    conf: Mapping[str, str],
    environment: Mapping[str, str],
    timeout_s: float,
    version: str,
) -> ConnectServer:
    deadline = time.monotonic() + timeout_s
    code: int | None = None
    for _ in range(PORT_ATTEMPTS):
        port = _free_port()
        process = _launch(folder, port, conf, environment)
        watcher = ProcessIdentity.of(process.pid)
        server = ConnectServer(watcher, port, str(uuid.uuid4()), version)
        # Written before the server answers, so that it can be ended after an interrupted start.
        server.write(folder)
        while time.monotonic() < deadline and process.poll() is None:
            if _port_open(port):
                return server
            time.sleep(POLL_S)
        code = process.poll()
        end_session(watcher, STOP_TIMEOUT_S)
        process.wait()
        # Another process may have taken the port after it was chosen: choose another port.
        if "BindException" not in _log_tail(folder):
            break
    reason = f"did not start within {timeout_s:.0f} s"
    if code is not None:
        reason = f"ended with code {code} before it answered"
    raise SparkUnavailable(
        f"The Spark server {reason}: the end of {folder / LOG_FILE} says "
        f"{_log_tail(folder).strip()[-200:]!r}."
    )


def _launch(
    folder: Path, port: int, conf: Mapping[str, str], environment: Mapping[str, str]
) -> subprocess.Popen[bytes]:
    token = secrets.token_urlsafe(32)
    replace_file(folder / TOKEN_FILE, token, mode=0o600)
    fixed_conf = {
        # Sessions never expire: the id of an expired session can never be used again.
        "spark.connect.session.manager.defaultSessionTimeout": "-1",
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": str(port),
    }
    lines = [f"{key} {_escaped(value)}\n" for key, value in {**conf, **fixed_conf}.items()]
    replace_file(folder / PROPERTIES_FILE, "".join(lines), mode=0o600)
    return subprocess.Popen(
        [
            sys.executable,
            "-m",
            "dagster_leasehold.assets.spark.connect_watch",
            str(folder.absolute()),
        ],
        # The token is passed in the environment: every user can read a command line.
        env={**environment, TOKEN_VARIABLE: token},
        cwd=folder,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        # The server outlives this run, so a signal to this run's group must not reach it.
        start_new_session=True,
    )


def _end(folder: Path) -> bool:
    server = ConnectServer.read(folder)
    ended = server is not None and end_session(server.process, STOP_TIMEOUT_S) > 0
    for name in (STATE_FILE, TOKEN_FILE):
        (folder / name).unlink(missing_ok=True)
    return ended


def _version(user_conf: Mapping[str, str]) -> str:
    from pyspark.version import __version__

    version = f"{__version__} {sys.executable}"
    return f"{version} {json.dumps(user_conf, sort_keys=True)}" if user_conf else version


def _free_port() -> int:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def _port_open(port: int) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=1.0):
            return True
    except OSError:
        return False


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace("\n", "\\n")


def _log_tail(folder: Path) -> str:
    try:
        return (folder / LOG_FILE).read_bytes()[-4000:].decode(errors="replace")
    except OSError:
        return ""
