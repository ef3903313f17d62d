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


def name(path: Path) -> str:
    return path.relative_to(PACKAGE).as_posix()


@pytest.mark.parametrize("path", MODULES, ids=name)
def test_no_clock_but_the_databases_own_utc_and_no_session_locks(path: Path) -> None:
    """`NOW()` follows the session's zone, `GET_LOCK` has no fencing number."""
    calls = re.findall(
        r"\b(?:NOW|CURRENT_TIMESTAMP|SYSDATE|GET_LOCK|RELEASE_LOCK)\s*\(?", path.read_text()
    )
    assert calls == []


@pytest.mark.parametrize("path", SQL_MODULES, ids=name)
def test_statements_are_expressions_and_all_in_one_place(path: Path) -> None:
    """Nothing hands text to a connection: every `execute` gets what `statements` built."""
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
    if not path.name.endswith("statements.py"):
        assert not imported & {"select", "insert", "update", "delete"}


def discarded(tree: ast.AST) -> set[str]:
    """Statements whose result nobody looks at."""
    return {
        call.args[0].func.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr) and isinstance(call := node.value, ast.Call)
        if isinstance(call.func, ast.Attribute) and call.func.attr == "execute"
        if isinstance(call.args[0], ast.Call) and isinstance(call.args[0].func, ast.Attribute)
    }


def test_row_counts_of_conditional_writes_are_looked_at() -> None:
    """An UPDATE whose row count nobody reads is a condition that nobody checks."""
    unread = set[str]()
    for path in SQL_MODULES:
        unread |= discarded(ast.parse(path.read_text()))
    inserts = {statement for statement in unread if statement.startswith("insert_")}
    # These have no condition beyond their key, and what they name need not be there.
    assert unread - inserts == {
        "update_settings", "abandon_intent", "mark_delivered", "delete_rows", "count_attempt",
        "withdraw_batches", "raise_version",
        "delete_entries", "delete_batches", "delete_gaps", "drop_changes",
    }  # fmt: skip


def test_the_check_of_row_counts_would_notice() -> None:
    program = "tx.connection.execute(statements.update_current(tenure, values))"
    assert discarded(ast.parse(program)) == {"update_current"}
    assert discarded(ast.parse(f"assert {program}.rowcount == 1")) == set()
