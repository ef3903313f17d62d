"""The command `leasehold`: the list of its commands, and a sentence for every error.

Exit codes: 0 done, 1 a check failed, 2 a mistake that one sentence on standard error explains,
3 an unexpected error, whose stack trace is in a file that the sentence names.
"""

from __future__ import annotations

import importlib
import io
import os
import sys
import tempfile
import traceback
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, NamedTuple

import typer
from typer.core import TyperCommand, TyperGroup

PROGRAM = "leasehold"
DISTRIBUTION = "dagster-leasehold"
COMMANDS_PACKAGE = "dagster_leasehold.orchestration.commands"
EXIT_MISTAKE = 2
EXIT_UNEXPECTED = 3
EXIT_INTERRUPTED = 130


class Place(NamedTuple):
    """The place of a command in the code, and its line in the list of commands.

    Attributes:
        module: of the package `commands`, with a function of the command's name, or with a Typer
            application `app`; of the modules that add to one application, the last.
        help: the first sentence of its own help.
    """

    module: str
    help: str


COMMANDS = {
    "init": Place(
        "init",
        "Write a project into this folder: a source, a transform, and all settings with their "
        "meaning.",
    ),
    "dev": Place(
        "dev",
        "Run everything on this machine until Ctrl-C: Dagster's pages and daemon, a node, and "
        "Spark.",
    ),
    "stop": Place(
        "stop", "Stop whatever runs on the home, also what a killed `leasehold dev` has left."
    ),
    "node": Place(
        "nodes", "Run this host's node: keep its code server and Spark running, and beat for it."
    ),
    "status": Place(
        "status", "Show a group's nodes, and its shards with state, owner, checkpoint and lag."
    ),
    "top": Place(
        "top", "Watch a stream live: its nodes, and each shard's state, lag and rate; q quits."
    ),
    "report": Place(
        "report",
        "Write a page about a stream: nodes, shards, ownership, rates, gaps, moves and runs.",
    ),
    "plan": Place(
        "inspection", "Show what the next planning round would change; nothing is carried out."
    ),
    "journal": Place(
        "inspection", "Show every change of owner, tenure and checkpoint, with its reason."
    ),
    "verify": Place(
        "inspection",
        "Prove that every record was committed once, by its holder, and that the table shows it.",
    ),
    "cat": Place("records", "Print committed records as JSON lines, in order per shard."),
    "load": Place(
        "records",
        "Append the lines of files to the local log of a stream; a log that is missing is made.",
    ),
    "replay": Place(
        "rewriting", "Rebuild committed output with today's transform, while consumption continues."
    ),
    "compact": Place(
        "rewriting", "Merge small files of committed output into larger ones, in the same order."
    ),
    "vacuum": Place(
        "vacuum",
        "Forget committed output that has expired; remove old files that the ledger does not name.",
    ),
    "table": Place(
        "table",
        "Publish all that is committed to a stream's table, and compare it with the ledger.",
    ),
    "metrics": Place(
        "metrics", "Serve Prometheus metrics of all groups of the lease store until Ctrl-C."
    ),
    "doctor": Place(
        "doctor",
        "Check a deployment from this host: database, output, Spark, sources, Dagster and nodes.",
    ),
    "simulate": Place(
        "simulate",
        "Show who would hold how many shards after each change, and how many shards would move.",
    ),
    "group": Place("group_pausing", "Create, list, change, pause and delete consumer groups."),
    "checkpoint": Place("service_checkpoints", "Show checkpoints, or force one."),
    "gap": Place(
        "gaps", "List ranges that were removed before they were read, and accept their loss."
    ),
    "shard": Place("shards", "List, split and merge the shards of a local log."),
    "quarantine": Place(
        "quarantine",
        "List records that could not be parsed or that stop every run, and try them again.",
    ),
    "db": Place("database", "Prepare the lease store's database, or copy it into another one."),
}


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
    place = COMMANDS[name]
    module = importlib.import_module(f"{COMMANDS_PACKAGE}.{place.module}")
    target = getattr(module, name, None) or module.app
    single = typer.Typer(
        add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False
    )
    if isinstance(target, typer.Typer):
        single.add_typer(target, name=name, cls=Sentences)
    else:
        single.command(name)(target)
    return typer.main.get_group(single).commands[name]


class CommandList(Sentences):
    """The list of commands, whose modules are imported only when they are called.

    A module of commands imports the lease store, settings or Spark's client, each of which costs a
    part of a second; the list of commands needs none of them.
    """

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        listed = {name: TyperCommand(name, help=place.help) for name, place in COMMANDS.items()}
        self.commands = {**listed, **self.commands}

    def sections(self) -> Mapping[str, Sequence[str]]:
        """Return the names of the commands by what they are for."""
        return SECTIONS

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        """Return the command that is called itself, in the place of its line in the list."""
        name, command, rest = super().resolve_command(ctx, args)
        return name, load_command(name) if name in COMMANDS else command, rest


app = typer.Typer(
    name=PROGRAM,
    cls=CommandList,
    help="Consume sharded logs exactly once: leases, checkpoints, and what is committed.",
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
    """Consume sharded logs exactly once: leases, checkpoints, and what is committed."""
    del debug, version  # read by `main`, before anything can go wrong, and by its callback


@app.command()
def version(as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False) -> None:
    """Print the versions of Leasehold and of what it is built on."""
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
        # JSON is UTF-8 whatever the terminal's locale says.
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
