"""The public modules: every name exists, explains itself, and loads quickly."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

import dagster_leasehold
from tests.unit.docs.test_docs import PAGES, fences
from tests.unit.test_layout import FILES, MODULES, OWN_MODULES, ROOT, name

FRONT = "dagster_leasehold"
SIDES = ("dagster_leasehold.clients", "dagster_leasehold.reading", "dagster_leasehold.sources")
DOORS = (FRONT, *SIDES)
NAMES = [(door, offered) for door in DOORS for offered in import_module(door).__all__]
# Modules that a user names in a workspace or on a command line, and never imports.
NAMED_MODULES = {"dagster_leasehold.orchestration.definitions"}


@pytest.mark.parametrize(("door", "offered"), NAMES)
def test_every_public_name_has_a_self_contained_docstring(door: str, offered: str) -> None:
    value = getattr(import_module(door), offered)
    summary = (value.__doc__ or "").partition("\n")[0]
    assert summary.endswith("."), f"{door}.{offered} has no docstring of a whole sentence"
    assert not re.match(r"See\b", summary)
    # Internal modules can move, and readers of the site cannot see them.
    inside = r"`(?:assets|lease_store|orchestration|sensors|shard_sources)\.[\w.]+`|docs/|[Ss]ee `"
    assert not re.search(inside, value.__doc__ or "")
    assert value.__module__.startswith(FRONT)


@pytest.mark.parametrize("door", DOORS)
def test_public_names_are_sorted_and_listed(door: str) -> None:
    module = import_module(door)
    assert module.__all__ == sorted(set(module.__all__))
    assert set(module.__all__) <= set(dir(module))


def test_the_main_module_has_few_names() -> None:
    """Goal: about 20 names; names for some users belong to another public module."""
    assert len(dagster_leasehold.__all__) <= 30


def test_lazy_names_match_the_names_for_type_checkers() -> None:
    tree = ast.parse(Path(dagster_leasehold.__file__).read_text("utf-8"))
    [typed] = [node for node in tree.body if isinstance(node, ast.If)]
    imported = {
        alias.name: node.module
        for node in typed.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert imported == dagster_leasehold._HOMES
    assert sorted(imported) == dagster_leasehold.__all__


def test_an_unknown_name_raises_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="'dagster_leasehold' has no attribute 'ShardStreams'"):
        _ = dagster_leasehold.ShardStreams  # pyright: ignore[reportAttributeAccessIssue]
    with pytest.raises(ImportError, match="cannot import name 'ShardStreams'"):
        exec("from dagster_leasehold import ShardStreams", {})


@pytest.mark.parametrize(
    ("door", "absent"),
    [
        (FRONT, ("dagster_leasehold.", "dagster", "pydantic", "pyarrow", "sqlalchemy", "pyspark")),
        ("dagster_leasehold.clients", ("dagster", "pydantic", "pyarrow", "pyspark", "pandas")),
        ("dagster_leasehold.sources", ("dagster", "pyspark", "pandas", "sqlalchemy")),
        ("dagster_leasehold.reading", ("pyspark", "pandas", "pymysql")),
    ],
)
def test_public_modules_load_only_what_their_users_need(door: str, absent: tuple[str, ...]) -> None:
    """A name that ends with a dot stands for everything below that package."""
    code = f"import sys, {door}; print(*sys.modules)"
    output = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    loaded = output.stdout.split()
    assert door in loaded
    assert [
        module
        for module in loaded
        if module in absent or module.startswith(tuple(each for each in absent if each[-1] == "."))
    ] == []


def imported_names(code: str) -> set[tuple[str, str]]:
    """All `from MODULE import NAME` of own modules; `import MODULE` has no name."""
    names: set[tuple[str, str]] = set()
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Import):
            names |= {(alias.name, "") for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names |= {(node.module or "", alias.name) for alias in node.names}
    return {(module, name) for module, name in names if module.split(".")[0] == FRONT}


def test_internal_modules_do_not_import_public_modules() -> None:
    """Goal: a room names the module that it needs, so that imports can be seen to go down only."""
    wrong = [
        f"{name(path)} imports {imported} from {module}"
        for path in OWN_MODULES
        for module, imported in imported_names(path.read_text("utf-8"))
        if module in SIDES or (module, imported) in NAMES
    ]
    assert wrong == []


def test_the_reference_shows_every_public_name_once() -> None:
    page = (ROOT / "docs/reference/python.md").read_text("utf-8")
    shown = re.findall(r"^::: (\S+)$", page, re.M)
    assert sorted(shown) == sorted(f"{door}.{each}" for door, each in NAMES)


EXAMPLES = [
    *((name(page), block) for page in PAGES for block in fences(page, "python")),
    *(
        (name(path), path.read_text("utf-8"))
        for path in MODULES
        if name(path).startswith("examples/")
    ),
]


@pytest.mark.parametrize("page", sorted({page for page, _ in EXAMPLES}))
def test_examples_import_only_public_modules(page: str) -> None:
    imported = {each for shown, code in EXAMPLES if shown == page for each in imported_names(code)}
    assert imported <= set(NAMES), imported - set(NAMES)


def test_pages_for_users_name_only_public_names() -> None:
    """Running text can name a module that a workspace loads, and otherwise only public names."""
    offered = {*DOORS, *NAMED_MODULES, *(f"{door}.{each}" for door, each in NAMES)}
    wrong: list[str] = []
    for page in [path for path in FILES if path.suffix == ".md"]:
        if name(page).startswith(("contributing/", "CONTRIBUTING", "CHANGELOG")):
            continue
        for span in re.findall(r"\bdagster_leasehold(?:\.\w+)+", page.read_text("utf-8")):
            if span not in offered:
                wrong.append(f"{name(page)}: {span}")
    assert wrong == []
