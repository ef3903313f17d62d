"""`leasehold dev`: a whole deployment on this machine, which ends with the command."""

from __future__ import annotations

import multiprocessing
import os
import string
import sys
import threading
import traceback
from collections.abc import Callable, Generator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Self, TypeVar

import typer

from dagster_leasehold.lease_store.rules.liveness import steady_clock
from dagster_leasehold.orchestration.commands.nodes import LEAVE_TIMEOUT_S
from dagster_leasehold.orchestration.commands.options import Home, Module, WebPort
from dagster_leasehold.orchestration.commands.target import Target
from dagster_leasehold.orchestration.instance import create_instance, embedded_text, nodes_text
from dagster_leasehold.orchestration.presentation import say
from dagster_leasehold.orchestration.settings import Settings, load_settings
from dagster_leasehold.orchestration.supervision import dagster_processes, preflight
from dagster_leasehold.orchestration.supervision.child_processes import (
    ChildProcess,
    SupervisedChild,
)
from dagster_leasehold.orchestration.supervision.interrupts import stop_event
from dagster_leasehold.orchestration.supervision.leftovers import end_leftovers, running_alone

T = TypeVar("T")
POLL_S = 0.5
RUNS_PER_NODE = 2
MISTAKE = 2
"""The exit code of a command that one sentence explains."""


@dataclass(frozen=True, slots=True)
class Look:
    """The outcome of a look at the declared streams.

    Attributes:
        module: of the definitions that Dagster's processes load.
        missing: the streams on local logs that do not exist yet.
    """

    module: str
    missing: tuple[str, ...] = ()

    @classmethod
    def at(cls, target: Target) -> Self:
        """Look at all streams.

        Raises:
            LeaseholdError: the module or a source cannot be used, or no stream is declared.
        """
        from dagster_leasehold.shard_sources.local_log import LocalLog

        missing = (
            stream.name
            for stream in target.streams.all()
            if isinstance(stream.source, LocalLog) and not stream.source.exists
        )
        return cls(target.streams.definitions_module, tuple(missing))

    def say_what_is_missing(self, home: Path) -> None:
        """Name the streams without a log: their sensors would wait without a visible reason.

        The logs of services are not made by us, and their sensors report the service's answers.
        """
        for name in self.missing:
            say(
                f"Stream {name} has no log yet. To make it: leasehold load {name} FILE "
                f"--home {home}"
            )


def apart(work: Callable[[], T]) -> T:
    """Return what some work returns, done in a process of its own.

    It loads Dagster and the user's module, a hundred megabytes that this process would keep.

    Raises:
        Exception: that the work raises.
    """
    received, sent = multiprocessing.Pipe(duplex=False)
    if (child := os.fork()) == 0:
        try:
            try:
                sent.send((work(), None))
            except Exception as error:
                error.add_note(traceback.format_exc())
                sent.send((None, error))
            sys.stdout.flush()
        finally:
            os._exit(0)
    sent.close()
    value, error = received.recv()
    os.waitpid(child, 0)
    if error is not None:
        raise error
    return value


@contextmanager
def agents_of_nodes(
    settings: Settings, environment: Mapping[str, str], count: int, module: str | None
) -> Generator[list[SupervisedChild]]:
    """Start the agents of some nodes within the block; they leave together at its end.

    Args:
        settings: of the deployment.
        environment: of the agents.
        count: how many nodes.
        module: of the definitions, or None for the one of the settings.
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
        # A killed agent has left its code server and its runs.
        end_leftovers(settings.home)


def described(settings: Settings, *, dagster_elsewhere: bool) -> str:
    """Return one sentence that says where leases and Dagster's storage are."""
    here = "in SQLite"
    leases = "where LEASEHOLD_DATABASE_URL says" if settings.database_url else here
    dagster = "where DAGSTER_MYSQL_HOSTNAME says" if dagster_elsewhere else here
    if leases == dagster:
        return f"Leases and Dagster's storage are {here}."
    return f"Leases are {leases}, and Dagster's storage is {dagster}."


def dev(
    home: Home = None,
    *,
    module: Module = None,
    port: WebPort = None,
    nodes: Annotated[
        int | None,
        typer.Option(
            "--nodes",
            min=1,
            max=26,
            help="Number of nodes, each with an agent (default: one node without an agent).",
        ),
    ] = None,
) -> None:
    """Run Dagster, a node and Spark on this host until Ctrl-C.

    A process that dies is restarted, and all of them stop with this command. Restart it after a
    change of the code.

    With `--nodes`, each node is a process `leasehold node`.
    """
    target = Target(load_settings(home=home, agents=nodes is not None or None), module)
    settings = target.settings
    if nodes is None and settings.agents:
        nodes = 1
    preflight.check_folder()
    # Before anything is started: a module or a source that cannot be used is one sentence.
    look = apart(partial(Look.at, target))
    preflight.require_room(settings.home)
    target.make_home()
    with stop_event() as stop, preflight.held_port(port) as web_port, running_alone(settings.home):
        preflight.check_spark(settings)
        _run(target, look, nodes or 0, web_port, stop)


def _run(target: Target, look: Look, nodes: int, port: int, stop: threading.Event) -> None:
    from dagster_leasehold.orchestration.supervision.spark_warm_up import SparkKeeper

    settings = target.settings
    environment = dagster_processes.child_environment(settings, os.environ)
    if nodes:
        shared = {"LEASEHOLD_AGENTS": "true", "LEASEHOLD_SPARK_STATE": str(settings.spark_folder)}
        environment |= shared
    with ExitStack() as stack:
        say(f"Starting Dagster on {settings.home} …")
        sys.stdout.flush()
        keeper = SparkKeeper(settings, environment, steady_clock)
        stack.callback(keeper.stop)
        keeper.look()
        say(described(settings, dagster_elsewhere=_dagster_elsewhere()))
        served_in = Path(stack.enter_context(TemporaryDirectory(prefix="leasehold-")))
        background = dagster_processes.daemon(
            settings, environment, module=look.module, served_in=served_in
        )
        pages = dagster_processes.webserver(settings, environment, port, served_in)
        stack.callback(pages.stop)
        # The code server opens the instance at once, and two processes cannot both make its tables.
        apart(partial(_make_instance, settings, nodes, mysql=_dagster_elsewhere()))
        stack.enter_context(background)
        agents = stack.enter_context(agents_of_nodes(settings, environment, nodes, target.module))
        # Ended first: while the nodes leave, nothing new shall be launched.
        stack.callback(background.stop)
        look.say_what_is_missing(settings.home)
        dagster_processes.wait_for_code(served_in, background, stop)
        if not stop.is_set():
            pages.__enter__()
        dagster_processes.wait_for_port(port, pages, stop)
        if not stop.is_set():
            say(f"Open http://127.0.0.1:{port} in a browser; Ctrl-C ends it.")
            _say_how_to_add_a_node(settings, nodes)
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
            stop.wait(POLL_S)
        say("Stopping: this takes a few seconds.")
        sys.stdout.flush()


def _say_how_to_add_a_node(settings: Settings, nodes: int) -> None:
    if nodes:
        say(
            f"To add a node: LEASEHOLD_SPARK_STATE={settings.spark_folder} leasehold node "
            f"--name node-{string.ascii_lowercase[nodes % 26]} --home {settings.home}"
        )


def _dagster_elsewhere() -> bool:
    """Return True if Dagster's storage follows its own variables, as in production."""
    return bool(os.environ.get("DAGSTER_MYSQL_HOSTNAME"))


def _make_instance(settings: Settings, nodes: int, *, mysql: bool) -> None:
    from dagster_leasehold.assets.deployment import ensure_instance_address

    text = nodes_text(runs_max=nodes * RUNS_PER_NODE + 2, mysql=mysql)
    create_instance(settings, text if nodes else embedded_text(mysql=mysql))
    if nodes:
        with dagster_processes.opened_instance(settings) as instance:
            # Made here, where no other process can make one at the same moment.
            ensure_instance_address(instance)
