"""The command `leasehold`: its commands, and what becomes of every error.

Exit codes: 0 done, 1 a check failed, 2 a mistake that one sentence on standard error explains,
3 an unexpected error, whose stack trace is in a file that the sentence names.
"""

from __future__ import annotations

import io
import os
import sys
import tempfile
import traceback
from collections.abc import Sequence
from typing import Annotated

import typer

from dagster_leasehold.lease_store.errors import LeaseholdError
from dagster_leasehold.orchestration.commands import (
    database,
    gaps,
    groups,
    inspection,
    metrics,
    nodes,
    processes,
    quarantine,
    records,
    rewriting,
    service_checkpoints,
    shards,
    up,
    vacuum,
)
from dagster_leasehold.orchestration.presentation import say, show_json
from dagster_leasehold.orchestration.simulate import simulate

PROGRAM = "leasehold"
EXIT_MISTAKE = 2
EXIT_UNEXPECTED = 3
EXIT_INTERRUPTED = 130

app = typer.Typer(
    name=PROGRAM,
    help="Consume sharded logs exactly once: leases, checkpoints, and what is committed.",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
app.add_typer(groups.app, name="group")
# `import` and `export` add themselves to it.
app.add_typer(service_checkpoints.app, name="checkpoint")
app.add_typer(gaps.app, name="gap")
app.add_typer(shards.app, name="shard")
app.add_typer(quarantine.app, name="quarantine")
app.add_typer(database.app, name="db")
for command in (
    processes.demo,
    processes.ui,
    nodes.node,
    up.up,
    inspection.status,
    inspection.plan,
    inspection.journal,
    inspection.verify,
    records.cat,
    records.load,
    rewriting.replay,
    rewriting.compact,
    vacuum.vacuum,
    metrics.metrics,
    simulate,
):
    app.command()(command)


@app.callback()
def _root(
    debug: Annotated[
        bool, typer.Option("--debug", help="Show the stack trace of any error.")
    ] = False,
) -> None:
    """Consume sharded logs exactly once: leases, checkpoints, and what is committed."""
    del debug  # read by `main`, before anything can go wrong


@app.command()
def version(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Print the versions of Leasehold and of what it is built on."""
    from importlib.metadata import version as version_of

    packages = ("dagster-leasehold", "dagster", "pyspark", "pyarrow", "sqlalchemy")
    versions = {name: version_of(name) for name in packages}
    versions["python"] = ".".join(str(part) for part in sys.version_info[:3])
    if as_json:
        show_json(versions)
        return
    for name, number in versions.items():
        say(f"{name} {number}")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code; every error becomes one sentence."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    debug = "--debug" in given
    if isinstance(sys.stdout, io.TextIOWrapper):
        # JSON is UTF-8 whatever the terminal's locale says.
        sys.stdout.reconfigure(encoding="utf-8", errors="backslashreplace")
    try:
        code = app(given, prog_name=PROGRAM, standalone_mode=False)
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
    """Write one sentence about an error; its exit code."""
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
