"""Hosts on which the commands of the shipped systemd units run, without systemd.

Each unit's command, environment and time to stop are those of its file. The test sets only what an
operator sets: addresses, folders, and ports, because the hosts are homes on one machine.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from pathlib import Path, PurePosixPath
from urllib.request import urlopen

from dagster_leasehold.orchestration.settings import Settings
from dagster_leasehold.orchestration.supervision.health_pages import READINESS
from tests.acceptance.leasehold_process import (
    Running,
    assert_nothing_runs,
    leasehold,
    processes_of,
    running,
)
from tests.acceptance.node_hosts import CHANGE_S, NODES, START_S
from tests.acceptance.node_scene import Watched, join_dagster, make_home
from tests.kafka_broker import KafkaBroker
from tests.mariadb import MariaDB
from tests.object_store import ENVIRONMENT, new_bucket
from tests.ports import free_port
from tests.unit.deploy import systemd_units

UPGRADE, DAEMON, NODE = (
    systemd_units.FOLDER / f"leasehold-{name}.service" for name in ("upgrade", "daemon", "node@")
)
PORTS = ("4201", "4202", "4203")
"""Those in the units: code server and pages of a node, and pages of the daemon."""
HOST = "127.0.0.1"


class UnitHosts:
    """One host with the daemon, and one for each node.

    Args:
        folder: the folder of all homes.
        broker: the broker of the topic.
        database: the database of leases and of Dagster's storage.
        stack: ends the commands.
        transform: the transform of the stream, as `module.function`.
        variables: more environment variables for the units.
    """

    def __init__(
        self,
        folder: Path,
        broker: KafkaBroker,
        database: MariaDB,
        stack: ExitStack,
        *,
        transform: str = "",
        variables: Mapping[str, str] | None = None,
    ) -> None:
        self._stack = stack
        self.homes = {node: folder / f"host-of-{node}" for node in NODES}
        self.first = folder / "host-of-daemon"
        self.bucket = new_bucket()
        output = f"s3://{self.bucket}/lake"
        for home in (self.first, *self.homes.values()):
            make_home(home, output, broker.address, transform)
            join_dagster(home)
        servers = database.of_deployment()
        self.variables = systemd_units.environment() | {
            **ENVIRONMENT,
            **servers,
            "LEASEHOLD_OUTPUT": output,
            **(variables or {}),
        }
        self.watched = Watched(self.first, self.homes, servers["LEASEHOLD_DATABASE_URL"])
        self._health: dict[Path, int] = {}

    def of_home(self, home: Path) -> dict[str, str]:
        """Return the environment of the units on the host of a home."""
        dagster_home = str(Settings(home=home).dagster_home)
        return self.variables | {"LEASEHOLD_HOME": str(home), "DAGSTER_HOME": dagster_home}

    def upgrade(self) -> None:
        """Run the unit of the upgrade to its end."""
        for words in systemd_units.commands(UPGRADE, ""):
            variables = self.of_home(self.first)
            done = leasehold(
                *words[1:],
                folder=self.first,
                timeout_s=START_S,
                program=[_program(words)],
                **variables,
            )
            assert done.code == 0, done.out + done.err

    def start_daemon(self) -> Running:
        """Start the unit of the daemon."""
        [words] = systemd_units.commands(DAEMON, "")
        return self._start(words, self.first)

    def start(self, node: str) -> Running:
        """Start the unit of a node on the node's host."""
        [words] = systemd_units.commands(NODE, node, HOST)
        return self._start(words, self.homes[node])

    def wait_until_ready(self, home: Path, command: Running) -> None:
        """Wait for the health page that an orchestrator waits for."""
        page_at = f"http://{HOST}:{self._health[home]}{READINESS}"

        def ready() -> bool:
            # A status of 503 is an OSError of urllib's.
            with suppress(OSError), urlopen(page_at, timeout=5) as page:
                return page.status == 200
            return False

        command.until(ready, START_S)

    def stop(self, node: str, command: Running) -> None:
        """Stop a node's agent as its unit does, and let it end the processes that it started."""
        stop_s = systemd_units.stop_s(NODE)
        assert stop_s is not None
        assert command.end(signal.SIGTERM, stop_s) == 0, command.text
        assert processes_of(self.homes[node]) == [], "nothing is left to be killed"

    def stop_daemon(self, command: Running) -> None:
        """Stop Dagster's daemon as its unit does; its code server ends with it."""
        stop_s = systemd_units.stop_s(DAEMON)
        assert stop_s is not None
        command.end(signal.SIGTERM, stop_s)
        assert_nothing_runs(self.first)

    def end(self, daemon: Running, nodes: Mapping[str, Running]) -> None:
        """End all units; no process is left, and `verify` finds no violation."""
        for node, command in nodes.items():
            self.stop(node, command)
        self.stop_daemon(daemon)
        for home in (self.first, *self.homes.values()):
            assert_nothing_runs(home)
        verified = leasehold("verify", folder=self.first, **self.of_home(self.first))
        assert verified.code == 0, verified.out

    def wait_until_shared(self, command: Running) -> None:
        """Wait until all nodes are members, and have the same number of shards."""
        command.until(lambda: self.watched.shared_by(*NODES), CHANGE_S)

    def _start(self, words: tuple[str, ...], home: Path) -> Running:
        for port in PORTS:
            own = str(free_port())
            words = tuple(word.replace(port, own) for word in words)
        self._health[home] = int(words[words.index("--health") + 1].rpartition(":")[2])
        program, variables = [_program(words)], self.of_home(home)
        return self._stack.enter_context(
            running(*words[1:], folder=home, program=program, **variables)
        )


def _program(words: tuple[str, ...]) -> Path:
    """Return the program of this environment that a unit has in its own."""
    return Path(sys.executable).with_name(PurePosixPath(words[0]).name)
