"""Reads command lines of the files in `deploy/` by the parsers of the programs that they start."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path, PurePosixPath
from typing import Any

from typer.main import get_command

from dagster_leasehold.orchestration.command_line import app
from dagster_leasehold.orchestration.supervision import steady_daemon

HOME = Path(__file__).parents[3] / "deploy/home"
HOME_THERE = "/var/lib/leasehold/"
"""Where the files of `deploy/home` are once they are installed."""


class LineRefused(Exception):
    """That a program would not take its command line."""


@dataclass(frozen=True)
class Program:
    """One program as a file in `deploy/` starts it.

    Args:
        where: the file, and the unit, service or container in it.
        arguments: program and arguments, as the system passes them on.
        stop_s: the time between SIGTERM and SIGKILL, in seconds; None if the file has none.
    """

    where: str
    arguments: tuple[str, ...]
    stop_s: float | None = None

    @cached_property
    def parsed(self) -> tuple[str, dict[str, Any]]:
        """The command's name and its options."""
        return parsed(self.arguments)


def parsed(arguments: Sequence[str]) -> tuple[str, dict[str, Any]]:
    """Return the name of the command and its options.

    Raises:
        LineRefused: the program would refuse the line, or it is no program of ours or Dagster's.
    """
    program, *rest = [argument.replace(HOME_THERE, f"{HOME}/") for argument in arguments]
    name = PurePosixPath(program).name
    if name == "python":
        return _module(rest)
    try:
        return _options(_command(name), name, rest)
    except Exception as error:
        # Typer has its own copy of Click's errors, without a public class.
        if not hasattr(error, "exit_code"):
            raise
        raise LineRefused(str(error)) from error


def _command(name: str) -> Any:
    if name == "leasehold":
        return get_command(app)
    if name == "dagster-webserver":
        from dagster_webserver.cli import dagster_webserver

        return dagster_webserver
    if name == "dagster-daemon":
        from dagster._daemon.cli import create_dagster_daemon_cli

        return create_dagster_daemon_cli()
    if name == "dagster":
        from dagster._cli import create_dagster_cli

        return create_dagster_cli()
    raise LineRefused(f"{name} is no program of Leasehold or Dagster.")


def _options(command: Any, name: str, rest: list[str]) -> tuple[str, dict[str, Any]]:
    """Read a line; `command` is Click's or that of Typer's own copy of Click."""
    parent: Any = None
    while hasattr(command, "resolve_command"):
        parent = command.make_context(name, rest, parent=parent)
        words = [*parent._protected_args, *parent.args]
        named, command, rest = command.resolve_command(parent, words)
        name = f"{name} {named}"
    context = command.make_context(name, rest, parent=parent)
    return name, context.params


def _module(rest: list[str]) -> tuple[str, dict[str, Any]]:
    _, module, *words = rest
    if rest[:1] != ["-m"] or module != steady_daemon.__name__:
        raise LineRefused(f"python {' '.join(rest)} is no program of Leasehold.")
    try:
        given = vars(steady_daemon.arguments().parse_args(words))
    except SystemExit as error:
        raise LineRefused(f"{module} takes no {' '.join(words)}.") from error
    if find_spec(given["module"]) is None:
        raise LineRefused(f"There is no module {given['module']}.")
    return "steady_daemon", given
