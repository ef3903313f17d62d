"""`leasehold demo`: one whole path, from a log in a folder to proven output."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from dagster_leasehold.orchestration.commands.options import Home
from dagster_leasehold.orchestration.settings import load_settings
from dagster_leasehold.orchestration.supervision import preflight
from dagster_leasehold.orchestration.supervision.interrupts import ended_by_signals


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
    preflight.require_room(settings.home)
    source = DemoInput((*(files or ()), *(more_files or ())), records, seed)
    try:
        with ended_by_signals():
            proven = run_demo(settings.home, settings.spark, source, timeout_s)
    except DemoFailed as error:
        sys.stderr.write(f"{error}\n")
        raise typer.Exit(1) from None
    if not proven:
        raise typer.Exit(1)
