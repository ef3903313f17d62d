"""A deployment of nodes on this machine: its instance and daemon, and how its nodes start."""

from __future__ import annotations

import os
import sys
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path

from dagster_leasehold.assets.deployment import ensure_instance_address
from dagster_leasehold.orchestration.instance import create_instance, nodes_text
from dagster_leasehold.orchestration.settings import Settings
from dagster_leasehold.orchestration.supervision import dagster_processes

COMMAND = (sys.executable, "-m", "dagster_leasehold.orchestration.command_line")
RESTART_S = 1.0
"""The time from a node's death to its next start, as of a service manager, in seconds."""


def node_command(home: Path, name: str) -> list[str]:
    """Return the command of a node."""
    return [*COMMAND, "node", "--name", name, "--home", str(home)]


def node_environment(settings: Settings) -> dict[str, str]:
    """Return the environment of a node, and of the daemon."""
    given = dagster_processes.child_environment(settings, os.environ)
    return {**given, "LEASEHOLD_AGENTS": "true"}


@contextmanager
def node_daemon(
    settings: Settings, variables: Mapping[str, str], *, mysql: bool = False
) -> Generator[None, None, None]:
    """Create the instance and run its daemon for the block.

    Args:
        settings: of the deployment.
        variables: further ones of the daemon's environment.
        mysql: the instance is in the database of the environment, not in files.
    """
    create_instance(settings, nodes_text(mysql=mysql))
    with dagster_processes.opened_instance(settings) as instance:
        ensure_instance_address(instance)
    with dagster_processes.daemon(settings, {**node_environment(settings), **variables}):
        yield
