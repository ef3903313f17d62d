"""`leasehold node`: runs the agent of this host's node."""

from __future__ import annotations

import os
import platform
import sys
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from dagster_leasehold.lease_store.errors import InvalidSetting
from dagster_leasehold.lease_store.identifiers import GroupKey, NodeName
from dagster_leasehold.orchestration.commands.options import Home, Module
from dagster_leasehold.orchestration.presentation import say
from dagster_leasehold.orchestration.settings import Settings, load_settings
from dagster_leasehold.orchestration.supervision.forked_programs import (
    NODE_MODULES,
    in_child_process,
    make_forkable,
)
from dagster_leasehold.orchestration.supervision.interrupts import stop_event
from dagster_leasehold.orchestration.supervision.node_directory import Endpoint
from dagster_leasehold.orchestration.supervision.preflight import check_folder, reserved_port

if TYPE_CHECKING:
    from collections.abc import Generator, Mapping

    from dagster import DagsterInstance

    from dagster_leasehold.lease_store.group_rows import Node
    from dagster_leasehold.orchestration.supervision.code_server import CodeServer
    from dagster_leasehold.orchestration.supervision.node_agent import NodeAgent

NODE_PORT_DEFAULT = 4201
LEAVE_TIMEOUT_S = 150.0

CodeServerPort = Annotated[
    int | None,
    typer.Option(
        "--port",
        min=1,
        max=65535,
        help="Port of its code server (default: the first free port from 4201).",
    ),
]

HealthAddress = Annotated[
    str | None,
    typer.Option(
        "--health", metavar="HOST:PORT", help="Address of /healthz and /readyz (default: none)."
    ),
]


def node(
    *,
    name: Annotated[
        str, typer.Option("--name", help="Name of the node, unique within its groups.")
    ],
    home: Home = None,
    port: CodeServerPort = None,
    host: Annotated[
        str, typer.Option("--host", help="Address that its code server listens on.")
    ] = "127.0.0.1",
    address: Annotated[
        str | None,
        typer.Option(
            "--address",
            metavar="HOST:PORT",
            help="Address of the code server for Dagster's daemon, if it differs from --host.",
        ),
    ] = None,
    health: HealthAddress = None,
    module: Module = None,
    leave_timeout_s: Annotated[
        float,
        typer.Option(
            "--leave-timeout",
            min=0,
            help="The longest time to transfer its shards and to stop its runs, in seconds.",
        ),
    ] = LEAVE_TIMEOUT_S,
) -> None:
    """Run this host's node, with its code server, Spark and heartbeats.

    SIGTERM or Ctrl-C transfers its shards, waits until its runs reach a checkpoint, and stops it.
    """
    node_name = NodeName(name)
    settings = load_settings(home=home, agents=True, agent_node=str(node_name))
    check_folder()
    environment = _prepared_environment(settings, node_name)
    from dagster_leasehold.orchestration.supervision.code_server import node_lock
    from dagster_leasehold.orchestration.supervision.dagster_processes import opened_instance

    # An unusable module or source is reported before any process starts.
    rows, module = in_child_process(partial(_memberships, settings, module, node_name))
    with (
        stop_event() as stop,
        node_lock(settings.node_folder(node_name), node_name),
        ExitStack() as stack,
    ):
        _check_instance(settings)
        server = stack.enter_context(
            _server(settings, node_name, module, environment, host=host, port=port)
        )
        listen = server.listen
        advertised = Endpoint.parse(address) if address else _advertised(listen)
        with opened_instance(settings) as instance:
            _check_launcher(settings, instance.run_launcher)
            agent = _agent(
                settings,
                node_name,
                instance,
                rows=rows,
                server=server,
                advertised=advertised,
                leave_timeout_s=leave_timeout_s,
            )
            pages = _health_pages(agent, node_name, Endpoint.parse(health)) if health else None
            say(f"Starting node {node_name} on {listen} …")
            sys.stdout.flush()
            agent.run(stop, pages)


def _prepared_environment(settings: Settings, node: NodeName) -> dict[str, str]:
    """Prepare this process to fork the code server; return the environment of the server."""
    from dagster_leasehold.orchestration.supervision.dagster_processes import child_environment

    own = {"LEASEHOLD_AGENTS": "true", "LEASEHOLD_AGENT_NODE": str(node)}
    environment = child_environment(settings, os.environ) | own
    make_forkable("node", environment, NODE_MODULES)
    return environment


def _memberships(
    settings: Settings, module: str | None, node: NodeName
) -> tuple[dict[GroupKey, Node], str]:
    """Return the node's row for each group, and the module of definitions."""
    from dagster_leasehold.orchestration.declared_streams import DeclaredStreams

    streams = DeclaredStreams(settings, module)
    streams.all()
    return streams.memberships_of(node), streams.definitions_module


def _agent(
    settings: Settings,
    node: NodeName,
    instance: DagsterInstance,
    *,
    rows: Mapping[GroupKey, Node],
    server: CodeServer,
    advertised: Endpoint,
    leave_timeout_s: float,
) -> NodeAgent:
    from dagster_leasehold.lease_store import open_store
    from dagster_leasehold.lease_store.rules.liveness import steady_clock
    from dagster_leasehold.orchestration.supervision.node_agent import NodeAgent
    from dagster_leasehold.orchestration.supervision.spark_warm_up import SparkKeeper

    # The process that started a shared Spark server keeps it running.
    shared = settings.spark_state is not None
    return NodeAgent(
        node,
        rows,
        store=open_store(settings.store_url),
        instance=instance,
        server=server,
        spark=None if shared else SparkKeeper(settings, server.environment, steady_clock),
        folder=settings.node_folder(node),
        advertised=advertised,
        leave_timeout_s=leave_timeout_s,
    )


@contextmanager
def _server(
    settings: Settings,
    node: NodeName,
    module: str,
    environment: Mapping[str, str],
    *,
    host: str,
    port: int | None,
) -> Generator[CodeServer]:
    """Reserve a port for the code server, or adopt the server that a killed agent left running."""
    from dagster_leasehold.lease_store.rules.liveness import steady_clock
    from dagster_leasehold.orchestration.supervision.code_server import CodeServer, adoptable_server

    folder = settings.node_folder(node)
    leftover = adoptable_server(folder, module, host, environment)
    if leftover is not None and port not in (None, leftover.listen.port):
        leftover = None
    first_port = port if leftover is None else leftover.listen.port
    is_served = leftover is not None
    with reserved_port(first_port, NODE_PORT_DEFAULT, host, served=is_served) as listen_port:
        listen = Endpoint(host, listen_port)
        yield CodeServer(module, listen, folder, environment, steady_clock, adoptable=leftover)


@contextmanager
def _health_pages(agent: NodeAgent, node: NodeName, listen: Endpoint) -> Generator[None]:
    from dagster_leasehold.orchestration.supervision.health_pages import (
        HEALTH,
        READINESS,
        health_pages,
    )
    from dagster_leasehold.orchestration.supervision.systemd_watchdog import watchdog_notifier

    checks = {HEALTH: agent.unhealthy, READINESS: agent.not_ready}
    with health_pages(listen, checks) as pages, watchdog_notifier(agent.unhealthy):
        say(f"Health of node {node} at http://{pages}{HEALTH} and {READINESS}.")
        yield


def _check_instance(settings: Settings) -> None:
    from dagster_leasehold.orchestration.instance import INSTANCE_FILE

    if not (settings.dagster_home / INSTANCE_FILE).exists():
        raise InvalidSetting(
            f"There is no Dagster instance in {settings.dagster_home}: first run `leasehold dev "
            f"--nodes 1` with this home, or put the {INSTANCE_FILE} of your deployment there."
        )


def _check_launcher(settings: Settings, launcher: object) -> None:
    from dagster_leasehold.orchestration.supervision.node_launcher import NodeRunLauncher

    if not isinstance(launcher, NodeRunLauncher):
        raise InvalidSetting(
            f"The run launcher of Dagster in {settings.dagster_home} does not start runs on nodes. "
            f"Set run_launcher in its dagster.yaml to {NodeRunLauncher.__module__}."
            "NodeRunLauncher, as `leasehold dev --nodes` does."
        )


def _advertised(listen: Endpoint) -> Endpoint:
    """Return the endpoint for other hosts, with this host's name if it listens everywhere."""
    everywhere = listen.host in ("0.0.0.0", "::")
    return Endpoint(platform.node(), listen.port) if everywhere else listen
