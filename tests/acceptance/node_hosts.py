"""Hosts of a deployment as the commands that run on them, and waits for their state.

The first host has Dagster's daemon and a node. Each other host has a node.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from unittest.mock import patch

from dagster_leasehold.lease_store import open_store
from tests.acceptance.leasehold_process import Running, leasehold, running
from tests.acceptance.node_scene import Watched, Writer, join_dagster, make_home
from tests.kafka_broker import KafkaBroker
from tests.mariadb import MariaDB
from tests.object_store import ENVIRONMENT, new_bucket
from tests.ports import free_port

START_S, CHANGE_S, END_S = 400.0, 400.0, 300.0
NODES = ("node-a", "node-b", "node-c")
"""The first one beside Dagster's daemon."""


class Hosts:
    """The hosts and the commands that run on them.

    Args:
        folder: the folder of all homes.
        broker: the broker of the topic.
        database: the database of leases and of Dagster's storage.
        stack: ends the commands.
        variables: more environment variables for the processes of the nodes.
    """

    def __init__(
        self,
        folder: Path,
        broker: KafkaBroker,
        database: MariaDB,
        stack: ExitStack,
        *,
        variables: Mapping[str, Mapping[str, str]] | None = None,
    ) -> None:
        self._stack = stack
        self.homes = {node: folder / f"host-of-{node}" for node in NODES}
        output = f"s3://{new_bucket()}/lake"
        for home in self.homes.values():
            make_home(home, output, broker.address)
        self.first, *self._others = self.homes.values()
        servers = database.of_deployment()
        open_store(servers["LEASEHOLD_DATABASE_URL"], upgrade=True).close()
        self.watched = Watched(self.first, self.homes, servers["LEASEHOLD_DATABASE_URL"])
        # The test opens Dagster's instance, too, and that reads these variables.
        stack.enter_context(patch.dict(os.environ, servers))
        self.shared = dict(ENVIRONMENT) | servers
        self._own = variables or {}

    def start_first(self) -> Running:
        """Start Dagster and the first node; return when the pages answer."""
        words = ("dev", "--nodes", 1, "--home", self.first, "--port", free_port())
        variables = self._variables(NODES[0])
        up = self._stack.enter_context(running(*words, folder=self.first, **variables))
        up.until(lambda: "Open http://" in up.text, START_S)
        for home in self._others:
            join_dagster(home)
        return up

    def start(self, node: str) -> Running:
        """Start a node on its own host."""
        home = self.homes[node]
        words = ("node", "--name", node, "--home", home, "--port", free_port())
        variables = self._variables(node)
        return self._stack.enter_context(running(*words, folder=home, **variables))

    def refusal_of_twin(self, node: str) -> str:
        """Start another agent of a node on its host; return how it is refused."""
        home = self.homes[node]
        variables = self._variables(node)
        twin = leasehold("node", "--name", node, "--home", home, folder=home, **variables)
        assert twin.code == 2
        return twin.err

    def _variables(self, node: str) -> dict[str, str]:
        return {**self.shared, **self._own.get(node, {})}


def wait_until_shared(watched: Watched, command: Running, *names: str) -> None:
    command.until(lambda: watched.shared_by(*names), CHANGE_S)


def wait_for_progress(watched: Watched, command: Running) -> None:
    """Every shard commits something more than it has now."""
    before = watched.check_points()
    command.until(
        lambda: all(now > before[shard] for shard, now in watched.check_points().items()), CHANGE_S
    )


def wait_for_all_records(watched: Watched, command: Running, writer: Writer) -> None:
    """Each record that was written is committed, and in the table once."""
    written = {writer.written}
    command.until(lambda: set(watched.check_points().values()) == written, CHANGE_S)
    command.until(lambda: len(watched.published()) >= len(writer.expected()), CHANGE_S)
    assert watched.published() == writer.expected()
