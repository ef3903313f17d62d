"""The names of Dagster's private modules are few, imported in one place, and there."""

from __future__ import annotations

import ast
from pathlib import Path

import dagster_leasehold
from dagster_leasehold.assets import dagster_internals

PACKAGE = Path(dagster_leasehold.__file__).parent
NAMES_MAX = 8


def private_names(path: Path) -> list[str]:
    """Return the names that a module imports from Dagster's private modules."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("dagster._"):
            names |= {f"{node.module}.{each.name}" for each in node.names}
        if isinstance(node, ast.Import):
            names |= {each.name for each in node.names if each.name.startswith("dagster._")}
    return sorted(names)


def test_one_module_imports_a_few_private_names_of_dagster() -> None:
    modules = {path: private_names(path) for path in PACKAGE.rglob("*.py")}
    importing = {path: names for path, names in modules.items() if names}
    assert list(importing) == [Path(dagster_internals.__file__)]
    assert len(importing[Path(dagster_internals.__file__)]) <= NAMES_MAX


def test_a_client_of_a_code_server_is_made() -> None:
    client = dagster_internals.code_server_client(socket="/nowhere/code.sock")
    assert client.socket == "/nowhere/code.sock"
