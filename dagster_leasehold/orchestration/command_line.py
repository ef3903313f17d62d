"""The command `leasehold`.

Exit codes: 0 success; 1 a check failed; 2 a user's mistake, explained in one sentence on standard
error; 3 an unexpected error, with its stack trace in the file that the sentence names.
"""

from __future__ import annotations

import ast
import importlib
import io
import os
import sys
import tempfile
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from importlib.util import find_spec
from inspect import Parameter, Signature, signature
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup
from typer.models import ArgumentInfo

PROGRAM = "leasehold"
DISTRIBUTION = "dagster-leasehold"
COMMANDS_PACKAGE = "dagster_leasehold.orchestration.commands"
EXIT_MISTAKE = 2
EXIT_UNEXPECTED = 3
EXIT_INTERRUPTED = 130


COMMANDS = {
    "init": "init",
    "dev": "dev",
    "stop": "stop",
    "node": "nodes",
    "status": "status",
    "top": "top",
    "report": "report",
    "plan": "inspection",
    "journal": "inspection",
    "verify": "inspection",
    "cat": "records",
    "load": "records",
    "where": "where",
    "replay": "rewriting",
    "compact": "rewriting",
    "vacuum": "vacuum",
    "publish": "publish",
    "table": "table",
    "metrics": "metrics",
    "doctor": "doctor",
    "simulate": "simulate",
    "group": "group_pausing",
    "checkpoint": "service_checkpoints",
    "gap": "gaps",
    "shard": "shards",
    "quarantine": "quarantine",
    "db": "database",
}
"""The module of each command, in the package `commands`.

The module has a function with the command's name, or a Typer application `app`. If several modules
add commands to one application, it is the module that imports the others.
"""

SECTIONS: dict[str, tuple[str, ...]] = {
    "First steps": ("init", "dev", "stop", "status", "top", "report", "doctor"),
    "Streams": (
        "cat",
        "load",
        "where",
        "replay",
        "compact",
        "vacuum",
        "publish",
        "table",
        "gap",
        "quarantine",
    ),
    "Groups": ("group", "checkpoint", "plan", "journal", "verify"),
    "Operations": ("node", "metrics", "db", "shard", "simulate", "version"),
}
"""The headings of the help, each with its commands."""


class Sentences(TyperGroup):
    """A group of commands, whose help shows the first paragraph of each command's help."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the commands under their headings."""
        for heading, names in self.sections().items():
            commands = [(name, self.get_command(ctx, name)) for name in names]
            rows = [
                (name, " ".join((command.help or "").split("\n\n")[0].split()))
                for name, command in commands
                if command is not None and not command.hidden
            ]
            with formatter.section(heading):
                formatter.write_dl(rows)

    def sections(self) -> Mapping[str, Sequence[str]]:
        """Return the names of the commands under each heading."""
        return {"Commands": [*self.commands]}


def load_command(name: str) -> Any:
    """Import a command's module, and return its Typer command."""
    module = importlib.import_module(f"{COMMANDS_PACKAGE}.{COMMANDS[name]}")
    target = getattr(module, name, None) or module.app
    single = typer.Typer(
        add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False
    )
    if isinstance(target, typer.Typer):
        for each in target.registered_commands:
            each.callback = expanded(each.callback)
        single.add_typer(target, name=name, cls=Sentences)
    else:
        single.command(name)(expanded(target))
    return typer.main.get_group(single).commands[name]


def expanded(command: Any) -> Any:
    """Return a command that takes the fields of each parameter whose type is a dataclass.

    Typer has no options that several commands share. Here, they are fields of a dataclass such as
    `GroupChoice`: its arguments become the command's first ones, and its options the last ones.
    """
    parameters = signature(command, eval_str=True).parameters.values()
    parts: dict[str, Any] = {
        each.name: each.annotation for each in parameters if is_dataclass(each.annotation)
    }
    if not parts:
        return command

    def run(**values: Any) -> None:
        for name, part in parts.items():
            values[name] = part(**{each.name: values.pop(each.name) for each in fields(part)})
        command(**values)

    of_parts = [
        each
        for part in parts.values()
        for each in signature(part, eval_str=True).parameters.values()
    ]
    arguments = [each for each in of_parts if _is_argument(each)]
    own = [each for each in parameters if each.name not in parts]
    options = [each for each in of_parts if not _is_argument(each)]
    run.__signature__ = Signature(  # pyright: ignore[reportFunctionMemberAccess]
        [each.replace(kind=Parameter.KEYWORD_ONLY) for each in (*arguments, *own, *options)]
    )
    run.__name__, run.__doc__ = command.__name__, command.__doc__
    return run


def _is_argument(parameter: Parameter) -> bool:
    return isinstance(parameter.annotation.__metadata__[0], ArgumentInfo)


def first_sentences(name: str) -> str:
    """Return the first paragraph of a command's help, parsed from its module's source.

    Importing all these modules, with the lease store and Spark's client, would take seconds.
    """
    return _help_in(f"{COMMANDS_PACKAGE}.{COMMANDS[name]}", name).partition("\n\n")[0]


def _help_in(module: str, name: str) -> str:
    """Return the docstring of the function `name`, or the help of the application `app`."""
    loader: Any = getattr(find_spec(module), "loader", None)
    for node in ast.parse(loader.get_source(module)).body:
        match node:
            case ast.FunctionDef(name=function) if function == name:
                return ast.get_docstring(node) or ""
            case ast.Assign(targets=[ast.Name(id="app")], value=ast.Call(keywords=options)):
                return next(ast.literal_eval(each.value) for each in options if each.arg == "help")
            case ast.ImportFrom(module=str(other), names=names):
                if any(each.name == "app" for each in names):
                    return _help_in(other, name)
            case _:
                pass
    return ""


class CommandList(Sentences):
    """The group of all commands; a command's module is imported only to run the command."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        placeholders = {name: TyperCommand(name) for name in COMMANDS}
        self.commands = {**placeholders, **self.commands}

    def sections(self) -> Mapping[str, Sequence[str]]:
        """Return the names of the commands under each heading."""
        return SECTIONS

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return a command with its name and help, without importing its module."""
        command = super().get_command(ctx, cmd_name)
        if command is not None and cmd_name in COMMANDS:
            command.help = first_sentences(cmd_name)
        return command

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        """Load the command to run."""
        if args and args[0] in COMMANDS:
            return args[0], load_command(args[0]), args[1:]
        return super().resolve_command(ctx, args)


app = typer.Typer(
    name=PROGRAM,
    cls=CommandList,
    help="Consume sharded logs exactly once: leases, checkpoints and committed output.",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)


def _print_version(requested: bool) -> None:
    if requested:
        from importlib.metadata import version as version_of

        sys.stdout.write(f"{PROGRAM} {version_of(DISTRIBUTION)}\n")
        raise typer.Exit


@app.callback()
def _root(
    debug: Annotated[
        bool, typer.Option("--debug", help="Print the stack trace of any error.")
    ] = False,
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version."
        ),
    ] = False,
) -> None:
    """Consume sharded logs exactly once: leases, checkpoints and committed output."""
    del debug, version  # `main` reads `--debug`, and a callback handles `--version`.


@app.command()
def version(as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False) -> None:
    """Print the versions of Leasehold and its dependencies."""
    from importlib.metadata import version as version_of

    from dagster_leasehold.orchestration.presentation import say, show_json

    packages = (DISTRIBUTION, "dagster", "pyspark", "pyarrow", "sqlalchemy")
    versions = {name: version_of(name) for name in packages}
    versions["python"] = ".".join(str(part) for part in sys.version_info[:3])
    if as_json:
        show_json(versions)
        return
    for name, number in versions.items():
        say(f"{name} {number}")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command, and return its exit code; print errors as one sentence."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    debug = "--debug" in words
    if isinstance(sys.stdout, io.TextIOWrapper):
        # JSON is UTF-8 in every locale.
        sys.stdout.reconfigure(encoding="utf-8", errors="backslashreplace")
    try:
        code = app(words, prog_name=PROGRAM, standalone_mode=False)
        sys.stdout.flush()
    except BrokenPipeError:
        # The reader closed the pipe (`leasehold cat demo | head`), which is not an error. Buffered
        # output is discarded, so that Python prints no error at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt:
        code = EXIT_INTERRUPTED
    except Exception as error:
        if debug:
            traceback.print_exc()
        return _explain(error)
    # Typer returns this code after Ctrl-C within a command, and prints nothing.
    if code == EXIT_INTERRUPTED:
        sys.stderr.write("Interrupted.\n")
    return code if isinstance(code, int) else 0


def _explain(error: Exception) -> int:
    """Write one sentence about an error, and return the exit code."""
    from dagster_leasehold.lease_store.errors import LeaseholdError

    if isinstance(error, LeaseholdError):
        sys.stderr.write(_one_line(str(error)) + "\n")
        return EXIT_MISTAKE
    # Typer's usage errors have no public class, but a method for their message.
    message = getattr(error, "format_message", None)
    if callable(message):
        text = str(message()).strip()
        if type(error).__name__ == "NoArgsIsHelpError":
            sys.stderr.write(text + "\n")
        else:
            text = text if text.endswith((".", "?", "!")) else text + "."
            sys.stderr.write(f"{_one_line(text)} See `leasehold --help`.\n")
        return EXIT_MISTAKE
    if isinstance(error, OSError) and error.strerror:
        sys.stderr.write(f"{error.filename or 'The output cannot be written'}: {error.strerror}.\n")
        return EXIT_MISTAKE
    with tempfile.NamedTemporaryFile(
        "w", prefix="leasehold-error-", suffix=".log", delete=False, encoding="utf-8"
    ) as log:
        traceback.print_exception(error, file=log)
    sys.stderr.write(
        f"An unexpected error ({type(error).__name__}) ended the command. Its stack trace is in "
        f"{log.name}; --debug prints it here.\n"
    )
    return EXIT_UNEXPECTED


def _one_line(text: str) -> str:
    return " ".join(text.split())


if __name__ == "__main__":
    sys.exit(main())
