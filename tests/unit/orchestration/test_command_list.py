"""The list of commands: complete, true to the commands, and quick because it loads none."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from typing import Annotated

import pytest
import typer.main
from typer.testing import CliRunner

from dagster_leasehold.orchestration.command_line import (
    COMMANDS,
    app,
    expanded,
    first_sentences,
    load_command,
)

HEAVY = {
    *("dagster", "pyspark", "pandas", "pyarrow", "matplotlib", "sqlalchemy", "pydantic"),
    *("rich", "psutil", "pendulum", "dagster_leasehold.lease_store", "dagster_leasehold.assets"),
}


def modules_of(*arguments: str) -> set[str]:
    """Return the names of all modules that a fresh interpreter has loaded after a command."""
    program = (
        "import sys\n"
        "from dagster_leasehold.orchestration.command_line import main\n"
        "main(sys.argv[1:])\n"
        "sys.stderr.write('\\n'.join(sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert "Usage: leasehold" in done.stdout
    return set(done.stderr.split())


def commands_in(modules: set[str]) -> set[str]:
    prefix = "dagster_leasehold.orchestration.commands."
    return {module.removeprefix(prefix) for module in modules if module.startswith(prefix)}


def test_the_list_of_commands_loads_no_command_and_no_heavy_library() -> None:
    """Goal: `leasehold --help` answers at once. Method: list the modules of a fresh interpreter."""
    modules = modules_of("--help")
    assert modules & HEAVY == set()
    assert commands_in(modules) == set()


def test_a_command_loads_its_own_module_and_none_of_the_others() -> None:
    modules = modules_of("gap", "--help")
    assert "gaps" in commands_in(modules)
    assert commands_in(modules) & {"inspection", "dev", "nodes", "records"} == set()
    assert modules & {"dagster", "pyspark", "pandas", "pyarrow", "matplotlib"} == set()


@pytest.mark.parametrize("name", COMMANDS)
def test_the_line_of_a_command_is_the_first_of_its_own_help(name: str) -> None:
    paragraph = (load_command(name).help or "").split("\n\n")[0]
    assert first_sentences(name).split() == paragraph.split() != []


def test_the_tree_has_every_listed_command_in_the_order_of_the_list() -> None:
    tree = typer.main.get_command(app)
    assert list(getattr(tree, "commands", {})) == [*COMMANDS, "version"]


@dataclass(frozen=True)
class Shared:
    """Options that several commands share."""

    name: Annotated[str, typer.Argument()]
    quiet: Annotated[bool, typer.Option("--quiet")] = False


def test_a_command_takes_the_fields_of_a_dataclass() -> None:
    """Its arguments come first and its options last, as in the help of the command."""
    calls: list[tuple[Shared, int, bool]] = []

    def command(
        shared: Shared,
        number: Annotated[int, typer.Argument()],
        *,
        fast: Annotated[bool, typer.Option("--fast")] = False,
    ) -> None:
        """Run."""
        calls.append((shared, number, fast))

    whole = expanded(command)
    assert whole.__doc__ == "Run."
    assert expanded(whole) is whole
    application = typer.Typer()
    application.command()(whole)
    parameters = typer.main.get_command(application).params
    assert [each.name for each in parameters][:4] == ["name", "number", "fast", "quiet"]
    for arguments in (["a", "7"], ["a", "7", "--quiet", "--fast"]):
        assert CliRunner().invoke(application, arguments).exit_code == 0
    assert calls == [(Shared("a"), 7, False), (Shared("a", quiet=True), 7, True)]
