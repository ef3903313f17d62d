"""A node's code server, and the note of it that an agent leaves for its successor.

A server is started again when it ends, and ended when it answers no more."""

from __future__ import annotations

import json
import sys
import uuid
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
from filelock import FileLock, Timeout

from dagster_leasehold.lease_store.durable_files import replace_file
from dagster_leasehold.lease_store.errors import NodeNameTaken, shown
from dagster_leasehold.lease_store.identifiers import NodeName
from dagster_leasehold.lease_store.process_identity import ProcessIdentity, current_place
from dagster_leasehold.lease_store.rules.liveness import Clock
from dagster_leasehold.orchestration.presentation import say
from dagster_leasehold.orchestration.settings import location_of
from dagster_leasehold.orchestration.supervision.child_processes import (
    ChildProcess,
    RestartWaits,
    end_session,
)
from dagster_leasehold.orchestration.supervision.node_directory import Endpoint, server_id

LOG_FILE = "code-server.log"
HEARTBEAT_TIMEOUT_S = 30
"""After how many seconds without its agent a server ends, once its runs have ended."""
HEARTBEAT_S = 10.0
HUNG_S = 45.0
START_MAX_S = 120.0
STATE_FILE = "agent.json"
LOCK_FILE = "agent.lock"


@dataclass(frozen=True, slots=True)
class AgentState:
    """The note of an agent for its successor in the same place.

    A successor goes on under the incarnation, so that a restart moves no shard: the file lock says
    that the predecessor is dead, and what it left running is ended first.

    Attributes:
        place: the boot and pid namespace in which it may be used: elsewhere the runs of the
            predecessor could not be ended, and would go on beating for the incarnation.
        incarnation: the one under which the node answers to its name.
        sessions: its code servers.
    """

    place: str
    incarnation: str
    sessions: tuple[ProcessIdentity, ...] = ()

    @classmethod
    def read(cls, folder: Path) -> AgentState | None:
        """Return the note of the folder's last agent, if it was in this place and did not leave."""
        try:
            noted: Any = json.loads((folder / STATE_FILE).read_text())
            sessions = tuple(filter(None, map(ProcessIdentity.parse, noted["sessions"])))
            state = cls(str(noted["place"]), str(noted["incarnation"]), sessions)
        except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
            return None
        return state if state.place and state.place == current_place() else None

    def write(self, folder: Path) -> None:
        """Write the note in one step."""
        sessions = [str(session) for session in self.sessions]
        noted = {"place": self.place, "incarnation": self.incarnation, "sessions": sessions}
        replace_file(folder / STATE_FILE, json.dumps(noted))

    @staticmethod
    def forget(folder: Path) -> None:
        """Remove the note: whoever left needs no successor."""
        (folder / STATE_FILE).unlink(missing_ok=True)


@contextmanager
def answering_alone(folder: Path, node: NodeName) -> Generator[None]:
    """Hold a node's folder for one agent at a time.

    Raises:
        NodeNameTaken: another agent is at work in it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    lock = FileLock(folder / LOCK_FILE)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        raise NodeNameTaken(
            f"Another `leasehold node` answers to node {shown(node)} in {folder}: stop it, or use "
            "another name."
        ) from None
    try:
        yield
    finally:
        lock.release()


class CodeServer:
    """The supervision of one code server; `look` has to be called every second or so.

    Runs of a server that was killed go on, and so do their leases; they are ended by `stop`.
    """

    def __init__(
        self,
        module: str,
        listen: Endpoint,
        folder: Path,
        environment: Mapping[str, str],
        clock: Clock,
    ) -> None:
        self._module = module
        self._listen = listen
        host = "127.0.0.1" if listen.host in ("0.0.0.0", "::", "") else listen.host
        self._reached = Endpoint(host, listen.port)
        self._folder = folder
        self._environment = dict(environment)
        self._clock = clock
        self._process: ChildProcess | None = None
        self._id = ""
        self._started_at = 0.0
        self._answered_at: float | None = None
        self._beaten_at = float("-inf")
        self._begin_at = clock()
        self._waits = RestartWaits()
        self.sessions: list[ProcessIdentity] = []

    @property
    def silent_s(self) -> float:
        """The seconds since its last answer, or since its first start if it never answered."""
        return self._clock() - (self._begin_at if self._answered_at is None else self._answered_at)

    @property
    def log(self) -> Path:
        """The file that its output goes to."""
        return self._folder / LOG_FILE

    def look(self) -> bool:
        """Start the server, or end it for good, if that is due; return True if it answers now."""
        now = self._clock()
        if self._process is None:
            if now >= self._begin_at:
                self._start()
            return False
        code = self._process.exit_code()
        if code is not None:
            say(f"The code server ended with code {code}: see {self.log}.")
            self._process = None
            self._begin_at = now + self._waits.next_s()
            return False
        # A leftover of another process on this port must not be taken for ours.
        if server_id(self._reached) == self._id:
            self._answered_at = self._clock()
            if self._answered_at - self._beaten_at >= HEARTBEAT_S:
                self._beat()
            self._waits.settle(now - self._started_at)
            return True
        patience_s = HUNG_S if self._answered_since_start else START_MAX_S
        if now - max(self._started_at, self._answered_at or 0.0) > patience_s:
            say(f"The code server has not answered for {patience_s:.0f} s: it is started again.")
            psutil.Process(self.sessions[-1].pid).kill()
        return False

    @property
    def _answered_since_start(self) -> bool:
        return self._answered_at is not None and self._answered_at >= self._started_at

    def stop(self) -> None:
        """End it and all runs that it or its predecessors started."""
        if self._process is not None:
            self._process.stop()
            self._process = None
        for leader in self.sessions:
            end_session(leader)
        self.sessions.clear()

    def _start(self) -> None:
        self._id = str(uuid.uuid4())
        command = [
            *(sys.executable, "-m", "dagster", "api", "grpc", "-m", self._module),
            *("--host", self._listen.host, "--port", str(self._listen.port)),
            *("--location-name", location_of(self._module)),
            *("--fixed-server-id", self._id),
            # Should the agent die, nothing of it stays for long.
            *("--heartbeat", "--heartbeat-timeout", str(HEARTBEAT_TIMEOUT_S)),
        ]
        self._process = ChildProcess(
            "the code server", command, log=self.log, environment=self._environment
        )
        self._process.__enter__()
        self._started_at, self._beaten_at = self._clock(), float("-inf")
        self.sessions.append(ProcessIdentity.of(self._process.pid))

    def _beat(self) -> None:
        from dagster._grpc.client import DagsterGrpcClient

        self._beaten_at = self._clock()
        try:
            DagsterGrpcClient(self._reached.port, host=self._reached.host).heartbeat("agent")
        except Exception as error:
            # It answered a moment ago; whether it still does, the next look tells.
            say(f"The code server took no heartbeat: {type(error).__name__}.")
