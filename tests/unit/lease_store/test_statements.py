"""Bans on the store's source: composed SQL, other clocks, locks that are no leases."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[3] / "dagster_leasehold/lease_store"
# Migrations compose nothing either, but they must name DDL.
MODULES = sorted(path for path in PACKAGE.rglob("*.py") if "migrations" not in path.parts)
SQL_MODULES = [path for path in MODULES if "sql_store" in path.parts]
ROLE_MODULES = [path for path in MODULES if "roles" in path.parts]
BUILD_NO_STATEMENTS = ("__init__.py", "mapping.py")


def name(path: Path) -> str:
    return path.relative_to(PACKAGE).as_posix()


@pytest.mark.parametrize("path", MODULES, ids=name)
def test_statements_use_no_other_clock_than_the_utc_of_the_database_and_no_session_locks(
    path: Path,
) -> None:
    """`NOW()` follows the session's zone, `GET_LOCK` has no fencing number."""
    calls = re.findall(
        r"\b(?:NOW|CURRENT_TIMESTAMP|SYSDATE|GET_LOCK|RELEASE_LOCK)\s*\(?", path.read_text()
    )
    assert calls == []


@pytest.mark.parametrize("path", SQL_MODULES, ids=name)
def test_statements_are_expressions_and_all_in_one_place(path: Path) -> None:
    """No code passes text to a connection: every `execute` gets an expression from `statements`."""
    tree = ast.parse(path.read_text())
    imported = {
        alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("sqlalchemy")
        for alias in node.names
    }
    attributes = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    imported |= {
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and ast.unparse(node.value) == "sa"
    }
    assert not imported & {"text", "literal_column", "TextClause"}
    assert not attributes & {"exec_driver_sql", "raw_connection"}
    if path.name in BUILD_NO_STATEMENTS:
        assert not imported & {"select", "insert", "update", "delete"}


@pytest.mark.parametrize("path", ROLE_MODULES, ids=name)
def test_operations_know_no_sql(path: Path) -> None:
    """Goal: an operation is written once. Method: the rows of a group are all that it reaches."""
    assert "sqlalchemy" not in path.read_text()


def discarded(tree: ast.AST, *writes: str) -> set[str]:
    """Return the functions that ignore how many rows a conditional write changed."""
    return {
        function.name
        for function in ast.walk(tree)
        if isinstance(function, ast.FunctionDef) and function.name != "work"
        for node in ast.walk(function)
        if isinstance(node, ast.Expr) and isinstance(call := node.value, ast.Call)
        if isinstance(call.func, ast.Attribute) and call.func.attr in writes
    }


def test_row_counts_of_conditional_writes_are_checked() -> None:
    """An UPDATE whose row count is ignored is a condition that is not checked."""
    unread = set[str]()
    for path in SQL_MODULES:
        unread |= discarded(ast.parse(path.read_text()), "execute", "change", "delete")
    for path in ROLE_MODULES:
        unread |= discarded(ast.parse(path.read_text()), "change", "delete")
    # These have no condition beyond their key, and the named row need not exist.
    assert unread == {
        "_delete_batches", "_force", "_release", "_insert", "abandon_intent",
        "change_group", "delete_group", "drop_publication", "reset_folding", "mark_delivered",
        "prune_gaps", "prune_journal", "remove_pointer", "rewrite_batches", "rewrite_unpublished",
        "settle_event", "withdraw",
    }  # fmt: skip


def test_the_check_finds_an_ignored_row_count() -> None:
    program = "def announce(): self._tx.connection.execute(sa.update(shard_lease))"
    assert discarded(ast.parse(program), "execute") == {"announce"}
    program = "def announce(): return self._tx.connection.execute(sa.update(t)).rowcount"
    assert discarded(ast.parse(program), "execute") == set()
