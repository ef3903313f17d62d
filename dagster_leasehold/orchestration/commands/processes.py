"""`leasehold demo` and `leasehold ui`: Dagster's processes on this machine, and their end."""

from __future__ import annotations

import os
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import typer

from dagster_leasehold.lease_store.errors import LeaseholdError
from dagster_leasehold.orchestration.commands.options import Home, Module, WebPort
from dagster_leasehold.orchestration.commands.target import Target
from dagster_leasehold.orchestration.presentation import say
from dagster_leasehold.orchestration.settings import load_settings
from dagster_leasehold.orchestration.supervision import preflight
from dagster_leasehold.orchestration.supervision.interrupts import ended_by_signals

POLL_S = 0.5


def demo(
    *,
    home: Home = None,
    files: Annotated[
        list[Path] | None,
        typer.Option("--input", help="A file whose lines are records; may be repeated."),
    ] = None,
    more_files: Annotated[
        list[Path] | None, typer.Argument(metavar="[FILE]...", help="More input files.")
    ] = None,
    records: Annotated[
        int,
        typer.Option("--records", min=0, help="Number of records to generate if no file is given."),
    ] = 200_000,
    seed: Annotated[int, typer.Option("--seed", help="Seed of the generated records.")] = 1,
    timeout_s: Annotated[
        float, typer.Option("--timeout", min=1, help="The longest that it may take, in seconds.")
    ] = 300.0,
) -> None:
    """Consume a log of 8 shards, from the first record to the proof, in a folder of its own.

    A shard is split and two are merged while real Dagster sensors and runs consume. The home of an
    earlier demo is emptied and used again; any other home must be empty or new.
    """
    from dagster_leasehold.orchestration.demo.course import run_demo
    from dagster_leasehold.orchestration.demo.input import DemoInput
    from dagster_leasehold.orchestration.demo.watch import DemoFailed

    settings = load_settings(home=home)
    preflight.check_folder()
    preflight.require_room(settings.home, preflight.HOME_BYTES)
    source = DemoInput((*(files or ()), *(more_files or ())), records, seed)
    try:
        with ended_by_signals():
            proven = run_demo(settings.home, settings.spark, source, timeout_s)
    except DemoFailed as error:
        sys.stderr.write(f"{error}\n")
        raise typer.Exit(1) from None
    if not proven:
        raise typer.Exit(1)


def ui(home: Home = None, port: WebPort = None, module: Module = None) -> None:
    """Run the Dagster webserver and daemon on the home until Ctrl-C; for this machine only."""
    from dagster_leasehold.orchestration.demo.home import running_alone
    from dagster_leasehold.orchestration.instance import create_instance, embedded_text
    from dagster_leasehold.orchestration.supervision import dagster_processes
    from dagster_leasehold.orchestration.supervision.spark_warm_up import SparkWarmUp

    target = Target.at(home, module)
    settings = target.settings
    preflight.check_folder()
    # Before anything is started: a module or a source that cannot be used is one sentence.
    target.streams.all()
    module = target.streams.definitions_module
    preflight.require_room(settings.home, preflight.HOME_BYTES)
    # Ctrl-C is how it is meant to end.
    with (
        suppress(KeyboardInterrupt),
        ended_by_signals(),
        preflight.held_port(port) as chosen,
        running_alone(settings.home),
    ):
        preflight.check_spark(settings)
        target.wake_mariadb()
        with dagster_processes.storage_environment(settings):
            create_instance(settings, embedded_text(mysql=settings.private_mariadb is not None))
        environment = dagster_processes.child_environment(settings, os.environ)
        with (
            SparkWarmUp(settings, environment),
            dagster_processes.daemon(settings, environment, module=module) as background,
            dagster_processes.webserver(settings, environment, chosen, module=module) as pages,
        ):
            say(f"Starting Dagster on {settings.home} …")
            say_what_is_missing(target)
            dagster_processes.wait_for_port(chosen, pages)
            say(f"Open http://127.0.0.1:{chosen} in a browser; Ctrl-C ends it.")
            sys.stdout.flush()
            while background.exit_code() is None and pages.exit_code() is None:
                time.sleep(POLL_S)
            ended = background if background.exit_code() is not None else pages
            raise LeaseholdError(ended.ending)


def say_what_is_missing(target: Target) -> None:
    """Name the streams that have no log yet: their sensors would wait without a visible reason.

    The logs of services are not made by us, and their sensors say what the service says.
    """
    from dagster_leasehold.shard_sources.local_log import LocalLog

    for stream in target.streams.all():
        if isinstance(stream.source, LocalLog) and not stream.source.exists:
            say(
                f"Stream {stream.name} has no log yet. To make it: leasehold load {stream.name} "
                f"FILE --home {target.settings.home}"
            )
