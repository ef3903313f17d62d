"""Two real Dagster deployments that share one group and a real database, kept running.

The sensor and the runs of deployment `a` send the beats of its node, and its code server starts
runs. The node of deployment `b` has an agent. A process that dies is restarted, as by a service
manager; nothing else is repaired.
"""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import time
from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import psutil

from dagster_leasehold.assets.spark.connect_server import ConnectServer
from dagster_leasehold.lease_store import open_store
from dagster_leasehold.lease_store.errors import LeaseholdError
from dagster_leasehold.lease_store.failpoints import ENVIRONMENT_VARIABLE, FOLDER_MARK
from dagster_leasehold.lease_store.identifiers import ShardId
from dagster_leasehold.lease_store.store import LeaseStore
from dagster_leasehold.orchestration.instance import create_instance, embedded_text, nodes_text
from dagster_leasehold.orchestration.settings import Settings
from dagster_leasehold.orchestration.supervision.child_processes import ChildProcess
from dagster_leasehold.orchestration.supervision.code_server import AgentState
from dagster_leasehold.orchestration.supervision.forking_server import PROGRAM
from tests import mariadb as mariadb_server
from tests.chaos.proof import Proof
from tests.chaos.stream import KEY, NODES, STREAM, TIMEOUT_S
from tests.chaos.writer import SteadyWriter
from tests.dagster_deployment import ROOT, port_open
from tests.integration.lease_store.commit_proxy import CommitProxy
from tests.mariadb import MariaDB
from tests.ports import free_port

T = TypeVar("T")

POLL_S = 0.2
START_S = 30 * TIMEOUT_S
CODE, DAEMON, AGENT = "code", "daemon", "agent"
WITH_AGENT = "b"
MODULE = "tests.chaos.definitions"


class Service(ChildProcess):
    """A process that is started again when it has died."""

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def restart_if_dead(self) -> bool:
        """Restart a dead service without touching processes that it left; return True if it was
        dead.
        """
        if self.exit_code() is None:
            return False
        self.__enter__()
        return True


@dataclass
class World:
    """All processes, and ways to check them.

    Attributes:
        services: `code-a`, `daemon-a`, `agent-b` and so on.
        restarts: the number of restarts of each.
    """

    home: Path
    mariadb: MariaDB
    proxy: CommitProxy | None
    store: LeaseStore
    writer: SteadyWriter
    proof: Proof
    services: dict[str, Service] = field(default_factory=dict)
    restarts: dict[str, int] = field(default_factory=dict)

    @property
    def failpoints(self) -> Path:
        return self.home / "failpoints"

    @property
    def settings(self) -> Settings:
        return Settings(home=self.home)

    def supervise(self) -> None:
        for name, service in self.services.items():
            if service.restart_if_dead():
                self.restarts[name] = self.restarts.get(name, 0) + 1
        if self.mariadb.ended():
            self.mariadb.start()
            self.restarts["database"] = self.restarts.get("database", 0) + 1

    def wait(self, what: str, probe: Callable[[], T | None], timeout_s: float) -> T:
        """Return the first true value of a probe, and restart dead services until then."""
        deadline = time.monotonic() + timeout_s
        while not (outcome := probe()):
            if time.monotonic() > deadline:
                raise AssertionError(f"waited {timeout_s:.0f} s in vain for {what}")
            self.supervise()
            time.sleep(POLL_S)
        return outcome

    def runs(self, node: str) -> list[int]:
        """Return the processes of a node's runs, orphans of a dead code server included."""
        name, value = _sign_of(node)
        pids: list[int] = []
        for process in self.processes():
            with suppress(psutil.Error, OSError):  # it has just died
                if process.environ().get(name) == value and _is_run(process):
                    pids.append(process.pid)
        return pids

    def servers(self, node: str) -> list[int]:
        """Return the code server that takes a node's runs, where it has one now."""
        if node != WITH_AGENT:
            return [self.services[f"{CODE}-{node}"].pid]
        state = AgentState.read(self.settings.node_folder(node))
        pids = [session.pid for session in state.sessions[-1:]] if state is not None else []
        return [pid for pid in pids if psutil.pid_exists(pid)]

    def processes(self) -> list[psutil.Process]:
        """Return all processes that belong to this home."""
        own: list[psutil.Process] = []
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                if process.environ().get("LEASEHOLD_HOME") == str(self.home):
                    own.append(process)
        return own

    def sparks(self, node: str) -> list[int]:
        """Return the processes of a node's Spark server, if it answers, its workers included."""
        folder = self.settings.node_folder(node) if node == WITH_AGENT else self.home
        server = ConnectServer.read(folder / "spark")
        pids: list[int] = []
        if server is not None and server.answers():
            for process in self.processes():
                with suppress(ProcessLookupError):
                    if os.getpgid(process.pid) == server.pid:
                        pids.append(process.pid)
        return pids

    def unread(self, goal: dict[ShardId, int]) -> dict[str, str]:
        """Return shards whose checkpoint is behind a goal; all while the store is silent."""
        try:
            rows = {row.shard: row.check_point for row in self.store.snapshot(KEY).shards}
        except LeaseholdError:
            return dict.fromkeys(goal, "?")
        return {
            shard: f"{rows.get(shard)} of {count}"
            for shard, count in goal.items()
            if int(rows.get(shard) or 0) < count
        }


@contextmanager
def chaos_world(home: Path) -> Generator[World]:
    """Start everything, and end everything: frozen and orphaned processes, too."""
    (home / "failpoints").mkdir(parents=True)
    with ExitStack() as stack:
        mariadb = stack.enter_context(mariadb_server.running())
        url = mariadb.create_database("leases")
        proxy = CommitProxy(mariadb.port)
        stack.callback(proxy.close)
        store = open_store(url, upgrade=True)
        stack.callback(store.close)
        writer = SteadyWriter(home)
        stack.callback(writer.stop)
        proof = Proof(store, home / "output" / STREAM / KEY.group)
        world = World(home, mariadb, proxy, store, writer, proof)
        stack.callback(_end_all, world)
        for node in NODES:
            _start_deployment(world, node, mariadb.url("leases", port=proxy.port))
        stack.enter_context(writer)
        world.wait("both nodes to join", lambda: joined(world, len(NODES)), START_S)
        yield world


def with_short_waits(text: str) -> str:
    """Return a `dagster.yaml` with short waits for runs whose process died at once."""
    for setting, seconds in (("poll_interval", 5), ("start_timeout", 45)):
        text, replaced = re.subn(rf"({setting}_seconds): \d+", rf"\1: {seconds}", text)
        assert replaced == 1
    return text


def _is_run(process: psutil.Process) -> bool:
    """Return True for a process that Dagster's code server, or ours, has started for a run."""
    words = process.cmdline()
    if PROGRAM not in words:
        return any("spawn_main" in word for word in words)
    # Our server leads its session, and its child forks the runs, which outlive it.
    family = [process, *process.parents()[:1]]
    return os.getsid(process.pid) not in [each.pid for each in family]


def _sign_of(node: str) -> tuple[str, str]:
    """Return the variable, and its value, that all processes have which work for a node."""
    if node == WITH_AGENT:
        return "LEASEHOLD_AGENT_NODE", node
    return "LEASEHOLD_NODES", json.dumps([node])


def _start_deployment(world: World, node: str, url: str) -> None:
    # The agent expects Dagster in the home.
    folder = world.home if node == WITH_AGENT else world.home / f"deployment-{node}"
    text = nodes_text() if node == WITH_AGENT else embedded_text()
    create_instance(Settings(home=folder), with_short_waits(text))
    port = free_port()
    workspace = folder / "workspace.yaml"
    workspace.write_text(
        "load_from:\n  - grpc_server:\n"
        f"      host: 127.0.0.1\n      port: {port}\n      location_name: chaos\n"
    )
    commands: dict[str, tuple[str, ...]] = {
        CODE: ("-m", "dagster", "api", "grpc", "-m", MODULE, "--port", str(port),
               "--host", "127.0.0.1", "--location-name", "chaos"),
        DAEMON: ("-m", "dagster._daemon", "run", "-w", str(workspace)),
    }  # fmt: skip
    if node == WITH_AGENT:
        commands[AGENT] = (
            *("-m", "dagster_leasehold.orchestration.command_line", "node", "--name", node),
            *("--home", str(world.home), "--module", MODULE),
        )
    for kind, command in commands.items():
        service = Service(
            f"{kind}-{node}",
            [sys.executable, *command],
            log=folder / f"{kind}.log",
            environment=_environment(world, node, url, folder),
            folder=folder,
        )
        world.services[service.name] = service
        service.__enter__()
        if kind == CODE:
            world.wait(f"code server {node}", lambda: port_open(port), START_S)


def _environment(world: World, node: str, url: str, folder: Path) -> dict[str, str]:
    inherited = {
        name: text for name, text in os.environ.items() if not name.startswith("LEASEHOLD_")
    }
    nodes = {"LEASEHOLD_AGENTS": "true"} if node == WITH_AGENT else dict([_sign_of(node)])
    return inherited | nodes | {
        "LEASEHOLD_HOME": str(world.home),
        "LEASEHOLD_LEASE_TIMEOUT_S": str(TIMEOUT_S),
        "LEASEHOLD_DATABASE_URL": url,
        ENVIRONMENT_VARIABLE: f"{FOLDER_MARK}{world.failpoints}",
        "DAGSTER_HOME": str(folder / "dagster"),
        "PYTHONPATH": str(ROOT),
        "PYTHONUNBUFFERED": "1",
    }  # fmt: skip


def joined(world: World, count: int) -> bool:
    """Return True if so many nodes are members of the group."""
    if KEY not in {group.key for group in world.store.groups()}:
        return False
    members = [node.name for node in world.store.snapshot(KEY).nodes if node.member]
    return len(members) == count


def _end_all(world: World) -> None:
    for process in world.processes():
        with suppress(psutil.Error):
            process.send_signal(signal.SIGCONT)
    for service in world.services.values():
        service.stop()
    for process in world.processes():
        with suppress(psutil.Error):
            process.kill()


def print_logs(world: World) -> None:
    """Print the end of every log, so that a failure shows it."""
    patterns = ("deployment-*/*.log", "*.log", "nodes/*/*.log")
    for path in sorted(path for pattern in patterns for path in world.home.glob(pattern)):
        text = path.read_text(errors="replace")
        name = path.relative_to(world.home)
        print(f"---- {name} ----\n{text[-4_000:]}")  # noqa: T201
