"""A node's code server, and the note of it that an agent leaves for its successor.

A server is started again when it ends, and ended when it no longer answers. One that a killed agent
left running is adopted, and so are runs: a restart of the agent alone interrupts nothing."""

from __future__ import annotations

import json
import os
import sys
import time
import uuid
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
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
"""After how many seconds without its agent a server ends, once its runs have ended."""
HEARTBEAT_S = 5.0
LEFT_MAX_S = HEARTBEAT_TIMEOUT_S - HEARTBEAT_S
"""An agent adopts a server whose last heartbeat is at most this old, in seconds: the next one then
comes before the server gives up."""
OF_ONE_START = frozenset(
    {"INVOCATION_ID", "JOURNAL_STREAM", "LISTEN_PID", "MAINPID", "NOTIFY_SOCKET", "OLDPWD"}
    | {"PWD", "SHLVL", "SYSTEMD_EXEC_PID", "WATCHDOG_PID", "WATCHDOG_USEC", "_"}
)
"""Environment variables whose values shells and systemd change at each start."""
HUNG_S = 45.0
START_MAX_S = 120.0
STATE_FILE = "agent.json"
LOCK_FILE = "agent.lock"


@dataclass(frozen=True, slots=True)
class AgentState:
    """The note of an agent for its successor in the same place.

    A successor continues under the incarnation, so that a restart moves no shard: the file lock
    says that the predecessor is dead. The note is as old as the last heartbeat of its code server.

    Attributes:
        place: the boot and pid namespace where it can be used: elsewhere the runs of the
            predecessor could not be ended, and would keep beating for the incarnation.
        incarnation: the node's own.
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
    def touch(folder: Path) -> None:
        """Note that the code server got a heartbeat now."""
        with suppress(OSError):
            os.utime(folder / STATE_FILE)

    @staticmethod
    def forget(folder: Path) -> None:
        """Remove the note: a node that has left needs no successor."""
        (folder / STATE_FILE).unlink(missing_ok=True)


@dataclass(frozen=True, slots=True)
class LeftServer:
    """A code server that a killed agent left running.

    Attributes:
        process: the server.
        listen: where it listens.
        id: its identity.
    """

    process: ProcessIdentity
    listen: Endpoint
    id: str


def left_server(
    folder: Path, module: str, host: str, environment: Mapping[str, str]
) -> LeftServer | None:
    """Return the server that a killed agent left, if this one would start it just like that.

    None as well if it was left for so long that it can no longer take runs.
    """
    state = AgentState.read(folder)
    if state is None or not state.sessions or _age_s(folder) > LEFT_MAX_S:
        return None
    leader = state.sessions[-1]
    if leader.existence() is not Existence.ALIVE:
        return None
    try:
        process = psutil.Process(leader.pid)
        command = process.cmdline()
        named = dict(pairwise(command))
        left = LeftServer(leader, Endpoint(host, int(named["--port"])), named["--fixed-server-id"])
        same = command == _command(module, left.listen, left.id)
        return left if same and _started_in(process, environment) else None
    except (psutil.Error, OSError, KeyError, ValueError):
        return None


def _age_s(folder: Path) -> float:
    try:
        return abs(time.time() - (folder / STATE_FILE).stat().st_mtime)
    except OSError:
        return float("inf")


def _started_in(process: psutil.Process, environment: Mapping[str, str]) -> bool:
    """Return True if a process has this environment, apart from what differs at each start.

    False as well where the system does not show its environment.
    """
    try:
        own = process.environ()
    except (psutil.Error, OSError):
        return False
    return all(
        own.get(name) == value for name, value in environment.items() if name not in OF_ONE_START
    )


def _command(module: str, listen: Endpoint, id_: str) -> list[str]:
    return [
        *(sys.executable, "-m", forking_server.PROGRAM, "api", "grpc", "-m", module),
        *("--host", listen.host, "--port", str(listen.port)),
        *("--location-name", location_of(module)),
        *("--fixed-server-id", id_),
        # Should the agent die, nothing of it stays for long.
        *("--heartbeat", "--heartbeat-timeout", str(HEARTBEAT_TIMEOUT_S)),
    ]


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

    Runs of a server that was killed continue, and so do their leases; they are ended by `stop`.

    Args:
        module: of the definitions that it serves.
        listen: where it listens.
        folder: of its log and of the agent's note.
        environment: of its process.
        clock: monotonic seconds.
        left: the server of a killed agent, to continue with.
    """

    def __init__(
        self,
        module: str,
        listen: Endpoint,
        folder: Path,
        environment: Mapping[str, str],
        clock: Clock,
        *,
        left: LeftServer | None = None,
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
        if left is not None:
            self._adopt(left)

    def _adopt(self, left: LeftServer) -> None:
        process = self._child(left.id)
        with suppress(psutil.NoSuchProcess):
            process.adopt(left.process)
            self._process, self._id = process, left.id
            self._started_at = self._answered_at = self._clock()
            self.sessions.append(left.process)

    def succeed(self, sessions: Sequence[ProcessIdentity]) -> None:
        """Let a killed agent's runs continue, but end those with another environment.

        Args:
            sessions: of its code servers, as it noted them.
        """
        adopted = set(self.sessions)
        for leader in sessions:
            if leader in adopted:
                continue
            processes = session_of(leader)
            if processes and all(_started_in(each, self.environment) for each in processes):
                if leader.existence() is Existence.ALIVE:
                    # It can no longer take runs; the runs it has started continue.
                    with suppress(psutil.Error):  # it has just ended by itself
                        psutil.Process(leader.pid).kill()
                self.sessions.insert(0, leader)
            elif ended := end_session(leader):
                say(f"Ended {ended} processes that an agent before this one left running.")

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
        if self._process.exit_code() is not None:
            say(self._process.ending)
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
        self._process = self._child(self._id)
        self._process.__enter__()
        self._started_at, self._beaten_at = self._clock(), float("-inf")
        self.sessions.append(ProcessIdentity.of(self._process.pid))

    def _child(self, id_: str) -> ChildProcess:
        command = _command(self._module, self.listen, id_)
        return ChildProcess("the code server", command, log=self.log, environment=self.environment)

    def _beat(self) -> None:
        from dagster_leasehold.assets.dagster_internals import code_server_client

        self._beaten_at = self._clock()
        try:
            code_server_client(host=self._reached.host, port=self._reached.port).heartbeat("agent")
        except Exception as error:
            # It answered a moment ago; whether it still does, the next look tells.
            say(f"The code server took no heartbeat: {type(error).__name__}.")
        else:
            AgentState.touch(self._folder)
