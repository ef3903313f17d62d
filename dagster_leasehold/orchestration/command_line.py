"""The command `leasehold`: the list of its commands, and a sentence for every error.

Exit codes: 0 done, 1 a check failed, 2 a mistake that one sentence on standard error explains,
3 an unexpected error, whose stack trace is in a file that the sentence names.
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
from importlib.util import find_spec
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

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
    "replay": "rewriting",
    "compact": "rewriting",
    "vacuum": "vacuum",
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
"""Each command's module of the package `commands`: it has a function of the command's name, or a
Typer application `app`; of the modules that add to one application, the last."""

SECTIONS: dict[str, tuple[str, ...]] = {
    "First steps": ("init", "dev", "stop", "status", "top", "report", "doctor"),
    "Streams": ("cat", "load", "replay", "compact", "vacuum", "table", "gap", "quarantine"),
    "Groups": ("group", "checkpoint", "plan", "journal", "verify"),
    "Operations": ("node", "metrics", "db", "shard", "simulate", "version"),
}
"""The commands under the headings of the help."""


class Sentences(TyperGroup):
    """A group of commands whose help has the first sentence of each, and cuts none."""

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
    """Import the module of a command, and return the command as Typer makes it."""
    module = importlib.import_module(f"{COMMANDS_PACKAGE}.{COMMANDS[name]}")
    target = getattr(module, name, None) or module.app
    single = typer.Typer(
        add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False
    )
    if isinstance(target, typer.Typer):
        single.add_typer(target, name=name, cls=Sentences)
    else:
        single.command(name)(target)
    return typer.main.get_group(single).commands[name]


def first_sentences(name: str) -> str:
    """Return the first paragraph of a command's help, as it stands in the source of its module.

    A module of commands imports the lease store, settings or Spark's client, each of which costs a
    part of a second; the list of commands needs none of them.
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
    """The list of commands, whose modules are imported only when they are called."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        listed = {name: TyperCommand(name) for name in COMMANDS}
        self.commands = {**listed, **self.commands}

    def sections(self) -> Mapping[str, Sequence[str]]:
        """Return the names of the commands by purpose."""
        return SECTIONS

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return a command for its line in the list, with its help."""
        command = super().get_command(ctx, cmd_name)
        if command is not None and cmd_name in COMMANDS:
            command.help = first_sentences(cmd_name)
        return command

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        """Return the command that is called itself, in the place of its line in the list."""
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


def _print_version(asked: bool) -> None:
    """Print the version of Leasehold, and end."""
    if asked:
        from importlib.metadata import version as version_of

        sys.stdout.write(f"{PROGRAM} {version_of(DISTRIBUTION)}\n")
        raise typer.Exit


@app.callback()
def _root(
    debug: Annotated[
        bool, typer.Option("--debug", help="Show the stack trace of any error.")
    ] = False,
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version."
        ),
    ] = False,
) -> None:
    """Consume sharded logs exactly once: leases, checkpoints and committed output."""
    del debug, version  # read by `main`, before anything can go wrong, and by its callback


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
    """Run one command and return its exit code; every error becomes one sentence."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    debug = "--debug" in words
    if isinstance(sys.stdout, io.TextIOWrapper):
        # JSON is UTF-8 in every locale.
        sys.stdout.reconfigure(encoding="utf-8", errors="backslashreplace")
    try:
        code = app(words, prog_name=PROGRAM, standalone_mode=False)
        sys.stdout.flush()
    except BrokenPipeError:
        # The reader of our output has gone (`leasehold cat demo | head`): nothing is wrong.
        # What is still buffered goes nowhere, so that the interpreter does not complain at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt:
        code = EXIT_INTERRUPTED
    except Exception as error:
        if debug:
            traceback.print_exc()
        return _explained(error)
    # Typer turns an interrupt within a command into this code, without a word.
    if code == EXIT_INTERRUPTED:
        sys.stderr.write("Interrupted.\n")
    return code if isinstance(code, int) else 0


def _explained(error: Exception) -> int:
    """Write one sentence about an error, and return the exit code."""
    from dagster_leasehold.lease_store.errors import LeaseholdError

    if isinstance(error, LeaseholdError):
        sys.stderr.write(_one_line(str(error)) + "\n")
        return EXIT_MISTAKE
    # Typer's usage errors have no public class; they carry their own message and exit code.
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
        f"An unexpected error ({type(error).__name__}) ended the command: its stack trace is in "
        f"{log.name}, and --debug shows it here.\n"
    )
    return EXIT_UNEXPECTED


def _one_line(text: str) -> str:
    return " ".join(text.split())


if __name__ == "__main__":
    sys.exit(main())
