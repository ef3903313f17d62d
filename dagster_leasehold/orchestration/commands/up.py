"""`leasehold up`: a whole deployment with several nodes on this machine."""

from __future__ import annotations

import os
import string
import sys
import threading
import time
from collections.abc import Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Annotated

import typer

from dagster_leasehold.lease_store.errors import InvalidSetting, LeaseholdError, NodeNameTaken
from dagster_leasehold.lease_store.identifiers import NodeName
from dagster_leasehold.lease_store.rules.liveness import steady_clock
from dagster_leasehold.orchestration.commands.nodes import LEAVE_TIMEOUT_S
from dagster_leasehold.orchestration.commands.options import Home, Module, WebPort
from dagster_leasehold.orchestration.commands.processes import say_what_is_missing
from dagster_leasehold.orchestration.commands.target import Target
from dagster_leasehold.orchestration.demo.home import running_alone
from dagster_leasehold.orchestration.instance import create_instance, nodes_text
from dagster_leasehold.orchestration.presentation import say
from dagster_leasehold.orchestration.settings import Settings, load_settings
from dagster_leasehold.orchestration.supervision import dagster_processes, preflight
from dagster_leasehold.orchestration.supervision.child_processes import (
    ChildProcess,
    SupervisedChild,
)
from dagster_leasehold.orchestration.supervision.code_server import (
    AgentState,
    answering_alone,
    end_session,
)
from dagster_leasehold.orchestration.supervision.interrupts import stop_event
from dagster_leasehold.orchestration.supervision.private_mariadb import (
    PrivateMariaDB,
    installed,
    room_needed,
)

POLL_S = 0.5
NODES_DEFAULT = 3
RUNS_PER_NODE = 2
MISTAKE = 2
"""The exit code of a command that one sentence explains."""


@contextmanager
def agents_of_nodes(
    settings: Settings, environment: Mapping[str, str], count: int, module: str | None
) -> Generator[list[SupervisedChild]]:
    """Start the agents of some nodes within the block; they leave together at its end.

    Args:
        settings: of the deployment.
        environment: of the agents.
        count: how many nodes.
        module: of the definitions, or None for those of the settings.
    """
    command = [sys.executable, "-m", "dagster_leasehold.orchestration.command_line", "node"]
    command += ["--home", str(settings.home.absolute())]
    command += ["--module", module] if module else []
    agents = [
        ChildProcess(
            f"the agent of {name}",
            [*command, "--name", name],
            log=settings.node_folder(name) / "agent.log",
            environment=environment,
            stop_timeout_s=LEAVE_TIMEOUT_S,
        )
        for name in (f"node-{letter}" for letter in string.ascii_lowercase[:count])
    ]
    try:
        yield [
            SupervisedChild(agent.__enter__(), steady_clock, explained=[MISTAKE])
            for agent in agents
        ]
    finally:
        for agent in agents:
            agent.tell_to_end()
        for agent in agents:
            agent.stop()
            _end_leftovers(agent.log.parent)


def _end_leftovers(folder: Path) -> None:
    """End the processes that a killed agent left, unless another agent is at work."""
    try:
        with answering_alone(folder, NodeName(folder.name)):
            state = AgentState.read(folder)
            for session in state.sessions if state else ():
                end_session(session)
    except NodeNameTaken:
        return


def uses_private_mariadb(settings: Settings, *, sqlite: bool) -> bool:
    """Return True if the home's own MariaDB holds the leases and Dagster's storage.

    A home keeps what it has. A fresh one gets MariaDB where the machine has the program, unless an
    address is given or SQLite is asked for.

    Raises:
        InvalidSetting: SQLite is asked for, and the leases are somewhere else.
    """
    if settings.database_url is not None:
        if sqlite:
            raise InvalidSetting(
                "LEASEHOLD_DATABASE_URL names the lease store: leave out --sqlite, or unset it."
            )
        return False
    if settings.private_mariadb is not None:
        if sqlite:
            raise InvalidSetting(
                f"The leases of {settings.home} are in its own MariaDB: leave out --sqlite, or "
                "name another folder with --home."
            )
        return True
    return not sqlite and not (settings.home / "leases.db").exists() and installed()


def described(settings: Settings, *, dagster_elsewhere: bool) -> str:
    """Return one sentence that says where leases and Dagster's storage are."""
    here = "in SQLite"
    if (access := settings.private_mariadb) is not None:
        here = f"in this home's own MariaDB on port {access.port}"
    leases = "where LEASEHOLD_DATABASE_URL says" if settings.database_url else here
    dagster = "where DAGSTER_MYSQL_HOSTNAME says" if dagster_elsewhere else here
    if leases == dagster:
        return f"Leases and Dagster's storage are {here}."
    return f"Leases are {leases}, and Dagster's storage is {dagster}."


def up(
    home: Home = None,
    *,
    nodes: Annotated[
        int, typer.Option("--nodes", min=1, max=26, help="Number of nodes to start.")
    ] = NODES_DEFAULT,
    port: WebPort = None,
    module: Module = None,
    sqlite: Annotated[
        bool, typer.Option("--sqlite", help="Keep leases and Dagster's storage in SQLite.")
    ] = False,
) -> None:
    """Run a whole deployment on this machine until Ctrl-C: webserver, daemon, and several nodes.

    Each node is a `leasehold node` process, as it would be on a host of its own; all share one
    Spark server. To add a node, start one more on the same home.

    If this machine has MariaDB's server, a new home gets one of its own. A process that dies is
    started again.
    """
    target = Target(load_settings(home=home, agents=True), module)
    preflight.check_folder()
    # Before anything is started: a module or a source that cannot be used is one sentence.
    target.streams.all()
    private = uses_private_mariadb(target.settings, sqlite=sqlite)
    home_path = target.settings.home
    preflight.require_room(home_path, room_needed(home_path) if private else preflight.HOME_BYTES)
    target.make_home()
    with stop_event() as stop, preflight.held_port(port) as chosen:
        preflight.check_spark(target.settings)
        _run(target, nodes, chosen, stop, sqlite=sqlite)


def _run(target: Target, nodes: int, port: int, stop: threading.Event, *, sqlite: bool) -> None:
    from dagster_leasehold.assets.deployment import ensure_instance_address
    from dagster_leasehold.orchestration.supervision.spark_warm_up import SparkKeeper

    settings = target.settings
    with running_alone(settings.home), ExitStack() as stack:
        say(f"Starting Dagster and {nodes} nodes on {settings.home} …")
        sys.stdout.flush()
        watched = _storage(settings, stack, runs_max=nodes * RUNS_PER_NODE + 2, sqlite=sqlite)
        environment = dagster_processes.child_environment(settings, os.environ) | {
            "LEASEHOLD_AGENTS": "true",
            "LEASEHOLD_SPARK_STATE": str(settings.spark_folder),
        }
        with dagster_processes.opened_instance(settings) as instance:
            # Made here, where nobody else can make another one at the same moment.
            ensure_instance_address(instance)
        keeper = SparkKeeper(settings, environment, steady_clock)
        stack.callback(keeper.stop)
        keeper.look()
        loaded = target.streams.definitions_module
        pages = stack.enter_context(
            dagster_processes.webserver(settings, environment, port, module=loaded)
        )
        agents = stack.enter_context(agents_of_nodes(settings, environment, nodes, target.module))
        # Ended first: while the nodes leave, nothing new shall be launched.
        background = stack.enter_context(
            dagster_processes.daemon(settings, environment, module=loaded)
        )
        say_what_is_missing(target)
        dagster_processes.wait_for_port(port, pages, stop)
        if not stop.is_set():
            _raise_if_ended(watched)
            say(f"Open http://127.0.0.1:{port} in a browser; Ctrl-C ends it.")
            say(
                f"To add a node: LEASEHOLD_SPARK_STATE={settings.spark_folder} leasehold node "
                f"--name node-{string.ascii_lowercase[nodes % 26]} --home {settings.home}"
            )
        supervised = [
            *agents,
            *(SupervisedChild(each, steady_clock) for each in (background, pages)),
        ]
        while not stop.is_set():
            sys.stdout.flush()
            keeper.look()
            for child in supervised:
                if sentence := child.look():
                    say(sentence)
            _raise_if_ended(watched)
            time.sleep(POLL_S)
        say("Stopping: the nodes leave at their runs' next checkpoints.")
        sys.stdout.flush()


def _storage(
    settings: Settings, stack: ExitStack, *, runs_max: int, sqlite: bool
) -> list[ChildProcess]:
    """Make lease store and Dagster's storage ready; return the processes that serve them."""
    from dagster_leasehold.lease_store import open_store

    processes: list[ChildProcess] = []
    if uses_private_mariadb(settings, sqlite=sqlite):
        # Entered first, so that it ends last.
        processes.append(stack.enter_context(PrivateMariaDB(settings.home)).process)
        open_store(settings.store_url, upgrade=True).close()
    # Dagster's own storage follows its own variables, as in production.
    elsewhere = bool(os.environ.get("DAGSTER_MYSQL_HOSTNAME"))
    say(described(settings, dagster_elsewhere=elsewhere))
    with dagster_processes.storage_environment(settings):
        create_instance(settings, nodes_text(runs_max=runs_max, mysql=elsewhere or bool(processes)))
    return processes


def _raise_if_ended(processes: Sequence[ChildProcess]) -> None:
    for child in processes:
        if child.exit_code() is not None:
            raise LeaseholdError(child.ending)
