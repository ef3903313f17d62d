"""`leasehold demo` and `leasehold ui`: Dagster's processes on this machine, and their end."""

from __future__ import annotations

import os
import socket
import sys
import time
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, Annotated

import typer

import dagster_leasehold
from dagster_leasehold.lease_store.errors import InvalidSetting, LeaseholdError
from dagster_leasehold.orchestration.commands.options import Home
from dagster_leasehold.orchestration.commands.target import Target
from dagster_leasehold.orchestration.presentation import say
from dagster_leasehold.orchestration.settings import Settings, load_settings
from dagster_leasehold.orchestration.supervision.disk_space import HOME_BYTES, require_room
from dagster_leasehold.orchestration.supervision.interrupts import ended_by_signals

if TYPE_CHECKING:
    from dagster_leasehold.orchestration.supervision.child_processes import ChildProcess

PORT_DEFAULT = 3000
PORTS_TRIED = 50
POLL_S = 0.5
WEBSERVER_START_S = 120.0


def demo(
    *,
    home: Home = None,
    files: Annotated[
        list[Path] | None,
        typer.Option("--input", help="A file whose lines are records; may be repeated."),
    ] = None,
    more_files: Annotated[
        list[Path] | None, typer.Argument(metavar="[FILE]...", help="More files of input.")
    ] = None,
    records: Annotated[
        int, typer.Option("--records", min=0, help="Generated records, where no file is given.")
    ] = 200_000,
    seed: Annotated[int, typer.Option("--seed", help="Of the generated records.")] = 1,
    timeout_s: Annotated[
        float, typer.Option("--timeout", min=1, help="The longest it may take, in seconds.")
    ] = 300.0,
) -> None:
    """Consume a log of 8 shards from start to proof in a folder of its own, and end.

    A shard is split and two are merged while real Dagster sensors and runs consume. A home that an
    earlier demo made is started over; any other that is not empty is refused.
    """
    from dagster_leasehold.orchestration.demo.course import DemoInput, run_demo
    from dagster_leasehold.orchestration.demo.watch import DemoFailed

    settings = load_settings(home=home)
    check_folder()
    require_room(settings.home, HOME_BYTES)
    given = DemoInput((*(files or ()), *(more_files or ())), records, seed)
    try:
        with ended_by_signals():
            proven = run_demo(settings.home, settings.spark, given, time.monotonic, timeout_s)
    except DemoFailed as error:
        sys.stderr.write(f"{error}\n")
        raise typer.Exit(1) from None
    if not proven:
        raise typer.Exit(1)


def ui(
    home: Home = None,
    port: Annotated[
        int | None,
        typer.Option("--port", min=1, max=65535, help="Of the web page (default: from 3000 on)."),
    ] = None,
) -> None:
    """Run the Dagster webserver and daemon on the home until Ctrl-C; for this machine only."""
    from dagster_leasehold.orchestration.demo.home import running_alone
    from dagster_leasehold.orchestration.instance import create_instance, embedded_text
    from dagster_leasehold.orchestration.resources import declared_streams
    from dagster_leasehold.orchestration.supervision.dagster_processes import (
        child_environment,
        daemon,
        storage_environment,
        webserver,
    )
    from dagster_leasehold.orchestration.supervision.spark_warm_up import SparkWarmUp

    target = Target.at(home)
    settings = target.settings
    check_folder()
    # Before anything is started: a source that cannot be used is one sentence.
    declared_streams(settings)
    require_room(settings.home, HOME_BYTES)
    # Ctrl-C is how it is meant to end.
    with (
        suppress(KeyboardInterrupt),
        ended_by_signals(),
        held_port(port) as chosen,
        running_alone(settings.home),
    ):
        check_java(settings)
        target.wake_mariadb()
        with storage_environment(settings):
            create_instance(settings, embedded_text(mysql=settings.private_mariadb is not None))
        environment = child_environment(settings, os.environ)
        with (
            SparkWarmUp(settings, environment),
            daemon(settings, environment) as background,
            webserver(settings, environment, chosen) as pages,
        ):
            say(f"Starting Dagster on {settings.home} …")
            say_what_is_missing(target)
            wait_for_port(chosen, pages)
            say(f"Open http://127.0.0.1:{chosen} in a browser; Ctrl-C ends it.")
            sys.stdout.flush()
            while background.exit_code() is None and pages.exit_code() is None:
                time.sleep(POLL_S)
            ended = background if background.exit_code() is not None else pages
            raise LeaseholdError(
                f"{ended.name[0].upper()}{ended.name[1:]} ended with code {ended.exit_code()}: "
                f"see {ended.log}."
            )


@contextmanager
def held_port(
    wanted: int | None, first: int = PORT_DEFAULT, host: str = "127.0.0.1"
) -> Generator[int]:
    """The wanted port of this host, or the next free one, which no other holder is given meanwhile.

    A server binds its port seconds after it was chosen, and then another one may have chosen it as
    well. What marks it as chosen is the port of UDP of the same number, which nothing here uses,
    and which the system takes back however its holder ends.

    Raises:
        InvalidSetting: the wanted one is taken, or all that were tried are.
    """
    for port in range(first, first + PORTS_TRIED) if wanted is None else (wanted,):
        with (
            socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as mark,
            socket.socket(socket.AF_INET, socket.SOCK_STREAM) as listener,
        ):
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                mark.bind((host, port))
                listener.bind((host, port))
            except OSError:
                continue
            listener.close()
            yield port
            return
    raise InvalidSetting(
        f"Port {wanted or first} of {host} is in use: name another one with --port."
    )


def wait_for_port(port: int, pages: ChildProcess, told: Event | None = None) -> None:
    """Return when the webserver takes connections, or once told.

    Raises:
        LeaseholdError: it has ended, or takes too long.
    """
    deadline = time.monotonic() + WEBSERVER_START_S
    while pages.exit_code() is None:
        if told is not None and told.is_set():
            return
        try:
            with socket.create_connection(("127.0.0.1", port), timeout=1.0):
                return
        except OSError:
            time.sleep(POLL_S)
        if time.monotonic() > deadline:
            raise LeaseholdError(
                f"The Dagster webserver has not answered for {WEBSERVER_START_S:.0f} s: see "
                f"{pages.log}."
            )
    raise LeaseholdError(
        f"The Dagster webserver ended with code {pages.exit_code()} before it answered: see "
        f"{pages.log}."
    )


def check_folder(folder: Path | None = None) -> None:
    """Refuse a folder that hides our package from the processes to be started.

    Python looks for a module where it is started before it looks among what is installed.

    Raises:
        InvalidSetting: it holds a package of our name that is not ours.
    """
    here = folder or Path.cwd()
    name = dagster_leasehold.__name__
    ours = Path(dagster_leasehold.__file__).resolve().parent
    for path in (here / name / "__init__.py", here / f"{name}.py"):
        if path.exists() and not path.resolve().is_relative_to(ours):
            raise InvalidSetting(
                f"The folder {here} has a Python package {name!r} of its own, which hides "
                "Leasehold's: start the command in another folder, with --home for the home."
            )


def check_java(settings: Settings) -> None:
    """Find out whether Spark can be started on this machine, where it is to be.

    Raises:
        JavaNotFound: there is no Java to run it.
    """
    from dagster_leasehold.assets.spark.spark_runtime import java_home
    from dagster_leasehold.orchestration.supervision.spark_warm_up import EMBEDDED

    if settings.spark in (EMBEDDED, "classic"):
        java_home(settings.spark_folder / "java")


def say_what_is_missing(target: Target) -> None:
    """Name the streams that have no log yet: their sensors would wait without a visible reason.

    The logs of services are not made by us, and their sensors say what the service says.
    """
    from dagster_leasehold.shard_sources.local_log import LocalLog

    for stream in target.settings.streams:
        source = target.stream(stream.name).source
        if isinstance(source, LocalLog) and not source.exists:
            say(
                f"Stream {stream.name} has no log yet: leasehold load FILE --stream {stream.name} "
                f"--home {target.settings.home}"
            )
