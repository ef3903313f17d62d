"""`leasehold dev`: runs a whole deployment on this host, which ends with the command."""

from __future__ import annotations

import os
import string
import sys
import threading
from collections.abc import Generator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Self

import typer

from dagster_leasehold.lease_store.rules.liveness import steady_clock
from dagster_leasehold.orchestration.commands.nodes import LEAVE_TIMEOUT_S
from dagster_leasehold.orchestration.commands.options import Home, Module, WebPort
from dagster_leasehold.orchestration.commands.target import Target
from dagster_leasehold.orchestration.instance import create_instance, embedded_text, nodes_text
from dagster_leasehold.orchestration.presentation import say
from dagster_leasehold.orchestration.settings import Settings, load_settings
from dagster_leasehold.orchestration.supervision import (
    dagster_processes,
    forked_programs,
    preflight,
)
from dagster_leasehold.orchestration.supervision.child_processes import (
    ChildProcess,
    SupervisedChild,
)
from dagster_leasehold.orchestration.supervision.interrupts import stop_event
from dagster_leasehold.orchestration.supervision.leftovers import end_leftovers, home_lock

POLL_S = 0.5
RUNS_PER_NODE = 2
MISTAKE = 2
"""The exit code of a command after a user's mistake."""


@dataclass(frozen=True, slots=True)
class StreamCheck:
    """The result of checking the declared streams.

    Attributes:
        module: the module of definitions that Dagster's processes load.
        missing: the streams whose local log does not exist yet.
    """

    module: str
    missing: tuple[str, ...] = ()

    @classmethod
    def at(cls, target: Target) -> Self:
        """Check that all streams are usable."""
        from dagster_leasehold.shard_sources.local_log import LocalLog

        missing = (
            stream.name
            for stream in target.streams.all()
            if isinstance(stream.source, LocalLog) and not stream.source.exists
        )
        return cls(target.streams.definitions_module, tuple(missing))

    def say_missing_logs(self, home: Path) -> None:
        """Print the streams without a local log; their sensors wait for it and report no error."""
        for name in self.missing:
            say(
                f"Stream {name} has no log yet. Create it with: leasehold load {name} FILE "
                f"--home {home}"
            )


@contextmanager
def agents_of_nodes(
    settings: Settings, environment: Mapping[str, str], count: int, module: str | None
) -> Generator[list[SupervisedChild]]:
    """Run agents within the block; at its end, all of them leave at the same time."""
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
            forked=True,
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
            agent.terminate()
        for agent in agents:
            agent.stop()
        # The code server and runs of a killed agent are still running.
        end_leftovers(settings.home)


def storage_sentence(settings: Settings, *, dagster_elsewhere: bool) -> str:
    """Return one sentence about the databases of the lease store and of Dagster."""
    sqlite = "in SQLite"
    leases = "in the database of LEASEHOLD_DATABASE_URL" if settings.database_url else sqlite
    dagster = "in the database of DAGSTER_MYSQL_HOSTNAME" if dagster_elsewhere else sqlite
    if leases == dagster:
        return f"Leases and Dagster's storage are {sqlite}."
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

    Processes that die are restarted, and all processes stop with this command. Restart it after you
    have changed your code.
    """
    target = Target(load_settings(home=home, agents=nodes is not None or None), module)
    settings = target.settings
    if nodes is None and settings.agents:
        nodes = 1
    preflight.check_folder()
    environment = dagster_processes.child_environment(settings, os.environ)
    forked_programs.make_forkable("dev", environment, forked_programs.DEV_MODULES)
    # An unusable module or source is reported before any process starts.
    check = forked_programs.in_child_process(partial(StreamCheck.at, target))
    preflight.require_room(settings.home)
    target.make_home()
    with stop_event() as stop, preflight.reserved_port(port) as web_port, home_lock(settings.home):
        preflight.check_spark(settings)
        _run(target, check, nodes or 0, web_port, stop)


def _run(target: Target, check: StreamCheck, nodes: int, port: int, stop: threading.Event) -> None:
    from dagster_leasehold.orchestration.supervision.spark_warm_up import SparkKeeper

    settings = target.settings
    environment = dagster_processes.child_environment(settings, os.environ)
    if nodes:
        variables = {
            "LEASEHOLD_AGENTS": "true",
            "LEASEHOLD_SPARK_STATE": str(settings.spark_folder),
        }
        environment |= variables
    with ExitStack() as stack:
        say(f"Starting Dagster on {settings.home} …")
        sys.stdout.flush()
        keeper = SparkKeeper(settings, environment, steady_clock)
        stack.callback(keeper.stop)
        keeper.check()
        say(storage_sentence(settings, dagster_elsewhere=_dagster_elsewhere()))
        served_in = Path(stack.enter_context(TemporaryDirectory(prefix="leasehold-")))
        background = dagster_processes.daemon(
            settings, environment, module=check.module, served_in=served_in
        )
        pages = dagster_processes.webserver(settings, environment, port, served_in)
        stack.callback(pages.stop)
        # Dagster's tables are created before the code server opens the instance: if two processes
        # create them at the same time, one fails.
        make_instance = partial(_make_instance, settings, nodes, mysql=_dagster_elsewhere())
        forked_programs.in_child_process(make_instance)
        forked_programs.in_child_process(partial(_create_groups, target))
        stack.enter_context(background)
        agents = stack.enter_context(agents_of_nodes(settings, environment, nodes, target.module))
        # The daemon stops first, so that it launches no run while the nodes leave.
        stack.callback(background.stop)
        check.say_missing_logs(settings.home)
        dagster_processes.wait_for_code(served_in, background, stop)
        if not stop.is_set():
            pages.__enter__()
        dagster_processes.wait_for_port(port, pages, stop)
        if not stop.is_set():
            say(f"Open http://127.0.0.1:{port} in a browser. Ctrl-C stops the deployment.")
            _say_how_to_add_a_node(settings, nodes)
        children = [*agents, *(SupervisedChild(each, steady_clock) for each in (background, pages))]
        while not stop.is_set():
            sys.stdout.flush()
            keeper.check()
            for child in children:
                if sentence := child.check():
                    say(sentence)
            stop.wait(POLL_S)
        say("Stopping; this takes a few seconds.")
        sys.stdout.flush()


def _say_how_to_add_a_node(settings: Settings, nodes: int) -> None:
    if nodes:
        say(
            f"Add a node with: LEASEHOLD_SPARK_STATE={settings.spark_folder} leasehold node "
            f"--name node-{string.ascii_lowercase[nodes % 26]} --home {settings.home}"
        )


def _dagster_elsewhere() -> bool:
    """Return True if the environment names a database for Dagster, as in production."""
    return bool(os.environ.get("DAGSTER_MYSQL_HOSTNAME"))


def _create_groups(target: Target) -> None:
    """Create the declared groups before the first sensor tick, so that all commands find them."""
    from dagster_leasehold.sensors.shard_list import create_missing_group

    for stream in target.streams.all():
        create_missing_group(target.new_store, stream, timeout_s=target.settings.lease_timeout_s)


def _make_instance(settings: Settings, nodes: int, *, mysql: bool) -> None:
    from dagster_leasehold.assets.deployment import ensure_instance_address

    text = nodes_text(runs_max=nodes * RUNS_PER_NODE + 2, mysql=mysql)
    create_instance(settings, text if nodes else embedded_text(mysql=mysql))
    if nodes:
        with dagster_processes.opened_instance(settings) as instance:
            # Created here, before another process uses the instance and creates one.
            ensure_instance_address(instance)
