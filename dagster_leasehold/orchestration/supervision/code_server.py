"""The supervision of a node's code server by its agent, and the agent's note for its successor.

A server that ends is restarted, and a server that no longer answers is killed. The successor of a
killed agent adopts the server and the runs, so that a restart of the agent interrupts no run.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import time
import uuid
from collections.abc import Generator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import psutil
from filelock import FileLock, Timeout

from dagster_leasehold.lease_store.durable_files import replace_file
from dagster_leasehold.lease_store.errors import NodeNameTaken, shown
from dagster_leasehold.lease_store.identifiers import NodeName
from dagster_leasehold.lease_store.process_identity import Existence, ProcessIdentity, current_place
from dagster_leasehold.lease_store.process_sessions import end_session, session_of
from dagster_leasehold.lease_store.rules.liveness import Clock
from dagster_leasehold.orchestration.presentation import say
from dagster_leasehold.orchestration.settings import location_of
from dagster_leasehold.orchestration.supervision import forking_server
from dagster_leasehold.orchestration.supervision.child_processes import ChildProcess, RestartWaits
from dagster_leasehold.orchestration.supervision.node_directory import Endpoint, server_id

LOG_FILE = "code-server.log"
HEARTBEAT_TIMEOUT_S = 30
"""A server without heartbeats for this time, in seconds, ends as soon as its runs have ended."""
HEARTBEAT_S = 5.0
ADOPTABLE_AGE_MAX_S = HEARTBEAT_TIMEOUT_S - HEARTBEAT_S
"""The largest age of the last heartbeat of a server to adopt, in seconds. The agent's first
heartbeat then comes before the server's timeout."""
OF_ONE_START = frozenset(
    {"INVOCATION_ID", "JOURNAL_STREAM", "LISTEN_PID", "MAINPID", "NOTIFY_SOCKET", "OLDPWD"}
    | {"PWD", "SHLVL", "SYSTEMD_EXEC_PID", "WATCHDOG_PID", "WATCHDOG_USEC", "_"}
)
"""Environment variables that shells and systemd change at each start."""
HUNG_S = 45.0
START_MAX_S = 120.0
STATE_FILE = "agent.json"
LOCK_FILE = "agent.lock"


@dataclass(frozen=True, slots=True)
class AgentState:
    """The note of an agent for its successor on the same host.

    The successor keeps the incarnation, so that a restart of the agent moves no shard. This is safe
    because the successor has the folder's file lock, so the predecessor is dead. The modification
    time of the file is the time of the code server's last heartbeat.

    Attributes:
        place: the boot and PID namespace of the agent. In another place, a successor could not end
            the predecessor's runs, which keep sending heartbeats for the incarnation.
        sessions: the leaders of its code servers' sessions.
        command: the command of the last code server.
        environment: the digest of the environment of its code servers.
    """

    place: str
    incarnation: str
    sessions: tuple[ProcessIdentity, ...] = ()
    command: tuple[str, ...] = ()
    environment: str = ""

    @classmethod
    def read(cls, folder: Path) -> AgentState | None:
        """Return a killed agent's note; None without one, or if it is from another place."""
        try:
            fields: Any = json.loads((folder / STATE_FILE).read_text())
            sessions = tuple(filter(None, map(ProcessIdentity.parse, fields["sessions"])))
            place, incarnation = str(fields["place"]), str(fields["incarnation"])
            command = tuple(map(str, fields.get("command", ())))
            environment = str(fields.get("environment", ""))
            state = cls(place, incarnation, sessions, command, environment)
        except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
            return None
        return state if state.place and state.place == current_place() else None

    def write(self, folder: Path) -> None:
        """Write the note atomically."""
        fields = {**asdict(self), "sessions": [str(session) for session in self.sessions]}
        replace_file(folder / STATE_FILE, json.dumps(fields), mode=0o600)

    @staticmethod
    def touch(folder: Path) -> None:
        """Set the time of the code server's last heartbeat to now."""
        with suppress(OSError):
            os.utime(folder / STATE_FILE)

    @staticmethod
    def remove(folder: Path) -> None:
        """Remove the note of a node that has left its groups."""
        (folder / STATE_FILE).unlink(missing_ok=True)


@dataclass(frozen=True, slots=True)
class AdoptableServer:
    """A code server that a killed agent left running."""

    process: ProcessIdentity
    listen: Endpoint
    id: str


def adoptable_server(
    folder: Path, module: str, host: str, environment: Mapping[str, str]
) -> AdoptableServer | None:
    """Return the code server of a killed agent; None if this agent cannot adopt it.

    This agent can adopt a server that has the same command and environment as its own, if the next
    heartbeat comes before the server's timeout.
    """
    state = AgentState.read(folder)
    if state is None or not state.sessions or _age_s(folder) > ADOPTABLE_AGE_MAX_S:
        return None
    leader, options = state.sessions[-1], dict(pairwise(state.command))
    if leader.existence() is not Existence.ALIVE or state.environment != digest_of(environment):
        return None
    try:
        server = AdoptableServer(
            leader, Endpoint(host, int(options["--port"])), options["--fixed-server-id"]
        )
    except (KeyError, ValueError):
        return None
    return server if [*state.command] == _command(module, server.listen, server.id) else None


def _age_s(folder: Path) -> float:
    try:
        return abs(time.time() - (folder / STATE_FILE).stat().st_mtime)
    except OSError:
        return float("inf")


def digest_of(environment: Mapping[str, str]) -> str:
    """Return a digest of an environment, without the variables that change at each start."""
    variables = {name: environment[name] for name in environment.keys() - OF_ONE_START}
    return hashlib.sha256(json.dumps(variables, sort_keys=True).encode()).hexdigest()


def _command(module: str, listen: Endpoint, id_: str) -> list[str]:
    return [
        *(sys.executable, "-m", forking_server.PROGRAM, "api", "grpc", "-m", module),
        *("--host", listen.host, "--port", str(listen.port)),
        *("--location-name", location_of(module)),
        *("--fixed-server-id", id_),
        # The server ends soon after its agent has died.
        *("--heartbeat", "--heartbeat-timeout", str(HEARTBEAT_TIMEOUT_S)),
    ]


@contextmanager
def node_lock(folder: Path, node: NodeName) -> Generator[None]:
    """Lock a node's folder; raise NodeNameTaken if another agent uses it."""
    folder.mkdir(parents=True, exist_ok=True)
    lock = FileLock(folder / LOCK_FILE)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        raise NodeNameTaken(
            f"Another `leasehold node` runs node {shown(node)} in {folder}: stop it, or use "
            "another name."
        ) from None
    try:
        yield
    finally:
        lock.release()


class CodeServer:
    """The supervision of one code server; the agent calls `check` about once a second.

    If the server is killed, its runs continue and keep their leases. `stop` ends them.

    Args:
        folder: the folder of its log and of the agent's note.
    """

    def __init__(
        self,
        module: str,
        listen: Endpoint,
        folder: Path,
        environment: Mapping[str, str],
        clock: Clock,
        *,
        adoptable: AdoptableServer | None = None,
    ) -> None:
        self._module = module
        self.listen = listen
        host = "127.0.0.1" if listen.host in ("0.0.0.0", "::", "") else listen.host
        self._reached = Endpoint(host, listen.port)
        self._folder = folder
        self.environment = dict(environment)
        self._clock = clock
        self._process: ChildProcess | None = None
        self._id = ""
        self._started_at = 0.0
        self._answered_at: float | None = None
        self._beaten_at = float("-inf")
        self._begin_at = clock()
        self._waits = RestartWaits()
        self.sessions: list[ProcessIdentity] = []
        if adoptable is not None:
            self._adopt(adoptable)

    def _adopt(self, adoptable: AdoptableServer) -> None:
        process = self._child(adoptable.id)
        with suppress(psutil.NoSuchProcess):
            process.adopt(adoptable.process)
            self._process, self._id = process, adoptable.id
            self._started_at = self._answered_at = self._clock()
            self.sessions.append(adoptable.process)

    def state(self, incarnation: str) -> AgentState:
        """Return the note for a successor of this node's agent."""
        command = _command(self._module, self.listen, self._id)
        sessions, environment = tuple(self.sessions), digest_of(self.environment)
        return AgentState(current_place(), incarnation, sessions, tuple(command), environment)

    def adopt_runs(self, predecessor: AgentState) -> None:
        """Adopt the runs of a killed agent, but end runs with another environment."""
        adopted = set(self.sessions)
        has_environment = predecessor.environment == digest_of(self.environment)
        for leader in predecessor.sessions:
            if leader in adopted:
                continue
            if has_environment and session_of(leader):
                if leader.existence() is Existence.ALIVE:
                    # A server that was not adopted must take no further runs. Its runs continue.
                    with suppress(psutil.Error):  # it has just ended by itself
                        psutil.Process(leader.pid).kill()
                self.sessions.insert(0, leader)
            elif count := end_session(leader):
                say(f"Ended {count} processes that an earlier agent left running.")

    @property
    def silent_s(self) -> float:
        """The seconds since its last answer; before the first answer, since its start was due."""
        return self._clock() - (self._begin_at if self._answered_at is None else self._answered_at)

    @property
    def log(self) -> Path:
        """The file with its output."""
        return self._folder / LOG_FILE

    def check(self) -> bool:
        """Start or kill the server if necessary; return True if it answers now."""
        now = self._clock()
        if self._process is None:
            if now >= self._begin_at:
                self._start()
            return False
        if self._process.exit_code() is not None:
            say(self._process.ending)
            self._process = None
            self._begin_at = now + self._waits.next_s()
            return False
        # The id distinguishes our server from a leftover server on the same port.
        if server_id(self._reached) == self._id:
            self._answered_at = self._clock()
            if self._answered_at - self._beaten_at >= HEARTBEAT_S:
                self._beat()
            self._waits.settle(now - self._started_at)
            return True
        patience_s = HUNG_S if self._answered_since_start else START_MAX_S
        if now - max(self._started_at, self._answered_at or 0.0) > patience_s:
            say(f"The code server has not answered for {patience_s:.0f} s: it is restarted.")
            psutil.Process(self.sessions[-1].pid).kill()
        return False

    @property
    def _answered_since_start(self) -> bool:
        return self._answered_at is not None and self._answered_at >= self._started_at

    def stop(self) -> None:
        """End the server, and all runs of this server and its predecessors."""
        if self._process is not None:
            self._process.stop()
            self._process = None
        for leader in self.sessions:
            end_session(leader)
        self.sessions.clear()

    def _start(self) -> None:
        # After the first start, this process uses gRPC, which does not survive a fork.
        is_first = not self._id
        self._id = str(uuid.uuid4())
        self._process = self._child(self._id, forked=is_first)
        self._process.__enter__()
        self._started_at, self._beaten_at = self._clock(), float("-inf")
        self.sessions.append(ProcessIdentity.of(self._process.pid))

    def _child(self, id_: str, *, forked: bool = False) -> ChildProcess:
        return ChildProcess(
            "the code server",
            _command(self._module, self.listen, id_),
            log=self.log,
            environment=self.environment,
            forked=forked,
        )

    def _beat(self) -> None:
        from dagster_leasehold.assets.dagster_internals import code_server_client

        self._beaten_at = self._clock()
        try:
            code_server_client(host=self._reached.host, port=self._reached.port).heartbeat("agent")
        except Exception as error:
            # It has just answered; the next `check` sends another heartbeat.
            say(f"The code server did not accept a heartbeat: {type(error).__name__}.")
        else:
            AgentState.touch(self._folder)
