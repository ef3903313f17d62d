"""Two rules of plain English that a program can check, for all code and all tests."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

import pytest

from tests.unit.test_layout import MODULES, ROOT, name, tree_of

# A docstring opens with a verb or a noun: "Return the shards that …", "Pure rules for gaps."
OPENINGS = re.compile(r"(What|Whether|Whose|Who|Which|As which|How many)\b")
# A variable is a noun for its value, not a participle for its origin.
PARTICIPLES = {"said", "told", "known", "found", "kept"}
# Names that users read: a key of the JSON that `leasehold replay` prints.
RIGHT = {("dagster_leasehold/assets/rewriting/replay.py", "kept")}


def docstrings(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """All texts that stand alone: docstrings of modules, classes, functions and attributes."""
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Expr)
            and isinstance(node.value, ast.Constant)
            and isinstance(node.value.value, str)
        ):
            yield node.lineno, node.value.value


def given_names(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """All names that a module gives: to variables, arguments, attributes, functions, classes."""
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=given, ctx=ast.Store()) | ast.Attribute(attr=given, ctx=ast.Store()):
                yield node.lineno, given
            case ast.arg(arg=given):
                yield node.lineno, given
            case ast.FunctionDef(name=given) | ast.ClassDef(name=given):
                yield node.lineno, given
            case _:
                pass


def wrong_openings(tree: ast.Module) -> list[tuple[int, str]]:
    return [(line, text[:60]) for line, text in docstrings(tree) if OPENINGS.match(text.strip())]


def participles(tree: ast.Module) -> list[tuple[int, str]]:
    return [
        (line, given)
        for line, given in given_names(tree)
        if given.strip("_").lower() in PARTICIPLES
    ]


def test_docstrings_open_with_a_verb_or_a_noun() -> None:
    wrong = [
        f"{name(path)}:{line}: {text}"
        for path in MODULES
        for line, text in wrong_openings(tree_of(path))
    ]
    assert wrong == []


def test_variables_are_nouns() -> None:
    wrong = [
        f"{name(path)}:{line}: {given}"
        for path in MODULES
        for line, given in participles(tree_of(path))
        if (name(path), given) not in RIGHT
    ]
    assert wrong == []


@pytest.mark.parametrize(
    "code",
    [
        '"""What a shard is."""',
        'class Shard:\n    name: str\n    """Whose it is."""',
        "def found(): ...",
        "def look(said): ...",
        "self._kept = 1",
        "for known in []: ...",
    ],
)
def test_the_rules_find_planted_violations(code: str) -> None:
    tree = ast.parse(code)
    assert wrong_openings(tree) or participles(tree)


def test_allowed_names_still_exist() -> None:
    for path, given in RIGHT:
        tree = tree_of(ROOT / path)
        assert given in {each for _, each in given_names(tree)}
