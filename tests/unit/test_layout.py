"""The laws of the tree: sizes, layers, words, and nothing of one machine."""

from __future__ import annotations

import ast
import re
import subprocess
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = "dagster_leasehold"
# What each room may import of the others: imports go down only, between floors and within them.
ALLOWED = {
    "lease_store": set[str](),
    "shard_sources": {"lease_store"},
    "assets": {"lease_store", "shard_sources"},
    "sensors": {"lease_store", "shard_sources", "assets"},
    "orchestration": {"lease_store", "shard_sources", "assets", "sensors"},
}
PACKAGES = tuple(ALLOWED)
# Modules at the root of assets that stand below its folders: how a stream is declared and named.
DECLARATION = {
    "arrow_transform",
    "commit_hook",
    "dagster_internals",
    "declared",
    "decode_settings",
    "deployment",
    "node_settings",
    "pace",
    "partitions",
    "run_process",
    "shard_stream",
    "partition_fields",
    "routes",
    "publication_check",
    "table_settings",
}
# The imports that parts of a package can have of its other parts. A part is a folder or a module at
# the package's root; those of assets that are not named here are the assets themselves, and can
# import all others.
ALLOWED_WITHIN = {
    "assets": {
        "errors": set[str](),
        "places": set[str](),
        "declaration": {"errors", "places"},
        "spark": {"errors"},
        "guarding": {"errors", "places", "spark"},
        "output": {"errors", "places", "declaration", "spark"},
        "arrow_parsing": {"errors", "output"},
        "decoding": {"errors", "declaration", "output", "arrow_parsing"},
        "consuming": {"errors", "places", "declaration", "spark", "guarding", "output", "decoding"},
        "rewriting": {
            "errors",
            "places",
            "declaration",
            "spark",
            "guarding",
            "output",
            "consuming",
        },
        "windows": {"errors", "places", "declaration", "spark", "guarding", "output"},
    },
    # Rules decide over rows; the roles of a store are known to them as types, and no store is.
    "lease_store": {
        "rules": {
            "errors",
            "identifiers",
            "group_rows",
            "journal_rows",
            "ledger_rows",
            "publication_rows",
            "shard_rows",
            "shard_summary",
            "outcomes",
            "roles",
            "store",
            "times",
        }
    },
    # Supervision starts processes; commands and the demo use it, and it knows neither.
    "orchestration": {"supervision": {"presentation", "project_module", "resources", "settings"}},
}
FORBIDDEN_LIBRARIES = {
    "lease_store": {"dagster", "pyspark", "dagster_pyspark"},
    "shard_sources": {"dagster", "dagster_pyspark"},
}
MODULE_LINES_MAX = 900
FUNCTION_LINES_MAX = 70
LINE_LENGTH_MAX = 100
# Unspecific names.
BANNED_NAMES = re.compile(r"(^|_)(utils?|common|helpers?|managers?|misc)(_|$)|Manager$|Helper$")
BANNED_TEXT = {
    "an unfinished part": re.compile(r"\b(TODO|FIXME|XXX|NotImplementedError)\b"),
    "a package index": re.compile(r"index[-]url|find[-]links|trusted[-]host", re.IGNORECASE),
    "a path of one machine": re.compile(r"(?<![\w.])/(?:work|root|home/\w+)/"),
}
TEXT_SUFFIXES = {".py", ".md", ".toml", ".yaml", ".yml", ".txt", ".sh", ".cfg", ".ini", ""}


def files_of_the_tree() -> list[Path]:
    """All files that git knows or would add; where there is no git, all that are in sight."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    if listed.returncode == 0:
        paths = [ROOT / line for line in listed.stdout.splitlines()]
    else:
        paths = [path for path in ROOT.rglob("*") if ".venv" not in path.parts]
    return [path for path in paths if path.is_file()]


FILES = files_of_the_tree()
MODULES = sorted(path for path in FILES if path.suffix == ".py")
OWN_MODULES = [
    path
    for path in MODULES
    if path.relative_to(ROOT).parts[0] == PACKAGE and path.relative_to(ROOT).parts[1] in PACKAGES
]
NAMES = {
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
    for path in OWN_MODULES
}


def name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def imports_of(path: Path) -> Iterator[str]:
    """All modules that a module imports, by their full names, also inside functions."""
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{name(path)} imports relatively"
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                yield inner if inner in NAMES else node.module or ""


def floor_of(module: str) -> str | None:
    """Return the top-level package of an own module; None for a module of another project."""
    package, *rest = module.split(".")
    return rest[0] if package == PACKAGE and rest else None


def test_the_package_has_modules() -> None:
    assert len(OWN_MODULES) > 30
    assert {path.relative_to(ROOT).parts[1] for path in OWN_MODULES} == set(PACKAGES)


def test_modules_are_small() -> None:
    lines = {path: len(path.read_text(encoding="utf-8").splitlines()) for path in MODULES}
    assert [name(path) for path, count in lines.items() if count > MODULE_LINES_MAX] == []


def test_functions_are_short() -> None:
    long: list[str] = []
    for path in MODULES:
        for node in ast.walk(tree_of(path)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                lines = (node.end_lineno or node.lineno) - node.lineno + 1
                if lines > FUNCTION_LINES_MAX:
                    long.append(f"{name(path)}:{node.lineno} {node.name} has {lines} lines")
    assert long == []


def test_lines_are_short() -> None:
    long = [
        f"{name(path)}:{number}"
        for path in MODULES
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if len(line) > LINE_LENGTH_MAX and "http" not in line
    ]
    assert long == []


@pytest.mark.parametrize("package", PACKAGES)
def test_imports_go_down_only(package: str) -> None:
    wrong = [
        f"{name(path)} imports {imported}"
        for path in OWN_MODULES
        if path.relative_to(ROOT).parts[1] == package
        for imported in imports_of(path)
        if (floor_of(imported) or package) not in {package, *ALLOWED[package]}
        or imported.split(".")[0] in FORBIDDEN_LIBRARIES.get(package, set())
    ]
    assert wrong == []


def part_of(module: str) -> str:
    """The part of its room that an own module belongs to; empty for the room itself."""
    _, room, *rest = module.split(".")
    if room == "assets" and rest and rest[0] in DECLARATION:
        return "declaration"
    return rest[0] if rest else ""


@pytest.mark.parametrize("room", ALLOWED_WITHIN)
def test_subpackages_import_down_only(room: str) -> None:
    allowed = ALLOWED_WITHIN[room]
    wrong: list[str] = []
    for path in OWN_MODULES:
        own = ".".join(path.relative_to(ROOT).with_suffix("").parts)
        part = part_of(own.removesuffix(".__init__"))
        if floor_of(own) != room or part not in allowed:
            continue
        wrong += [
            f"{name(path)} imports {imported}"
            for imported in imports_of(path)
            if floor_of(imported) == room and part_of(imported) not in {part, *allowed[part]}
        ]
    assert wrong == []


def test_no_imports_are_circular() -> None:
    """Goal: a reader can begin at the bottom. Method: imports for types alone count as well."""
    sorter = TopologicalSorter[str]()
    for path in OWN_MODULES:
        module = ".".join(path.relative_to(ROOT).with_suffix("").parts)
        inner = {each for each in imports_of(path) if each in NAMES}
        sorter.add(module.removesuffix(".__init__"), *inner)
    sorter.prepare()


def test_no_module_is_imported_through_the_links() -> None:
    """Goal: no module is loaded twice under two names, because its classes would differ."""
    bare = [
        f"{name(path)} imports {imported}"
        for path in MODULES
        for imported in imports_of(path)
        if imported.split(".")[0] in PACKAGES
    ]
    assert bare == []


def test_packages_are_linked_at_the_top() -> None:
    """Goal: a clone without links lacks only these four names."""
    for room in ("assets", "lease_store", "orchestration", "sensors"):
        link = ROOT / room
        assert link.is_symlink()
        assert link.readlink() == Path(PACKAGE) / room
    for room in PACKAGES:
        assert not (ROOT / PACKAGE / room).is_symlink()


def test_module_names_are_specific() -> None:
    wrong = [name(path) for path in OWN_MODULES if BANNED_NAMES.search(path.stem)]
    for path in OWN_MODULES:
        for node in ast.walk(tree_of(path)):
            if isinstance(node, ast.ClassDef | ast.FunctionDef) and BANNED_NAMES.search(node.name):
                wrong.append(f"{name(path)}: {node.name}")
    assert wrong == []


@pytest.mark.parametrize("what", BANNED_TEXT)
def test_banned_text_is_absent(what: str) -> None:
    places = [
        f"{name(path)}:{number}: {line.strip()[:80]}"
        for path in FILES
        if path.suffix in TEXT_SUFFIXES
        and path.name not in ("test_layout.py", "test_docs.py")  # they name these words
        for number, line in enumerate(
            path.read_text(encoding="utf-8", errors="replace").splitlines(), 1
        )
        if BANNED_TEXT[what].search(line)
    ]
    assert places == []


def test_no_file_is_empty_but_packages_of_tests() -> None:
    empty = [name(path) for path in FILES if path.stat().st_size == 0]
    assert [path for path in empty if not re.fullmatch(r"tests/(.*/)?__init__\.py", path)] == []


def test_every_variable_of_the_prefix_is_a_setting_or_known_not_to_be_one() -> None:
    """Goal: no part of the project reads a variable that the settings would refuse."""
    from dagster_leasehold.orchestration.settings import NOT_SETTINGS, PREFIX, Settings

    settings = {PREFIX + field.upper() for field in Settings.model_fields}
    used = {
        (name(path), variable)
        for path in OWN_MODULES
        for variable in re.findall(r"[\"'](LEASEHOLD_[A-Z_]+)[\"']", path.read_text())
        if path.name != "settings.py"
    }
    assert {
        (path, variable)
        for path, variable in used
        if variable not in settings and not variable.startswith(NOT_SETTINGS)
    } == set()


def test_constraints_name_exact_versions_and_no_address() -> None:
    for line in (ROOT / "constraints.txt").read_text().splitlines():
        assert line.startswith("#") or re.fullmatch(r"[A-Za-z0-9._-]+==[A-Za-z0-9.+!]+", line), line
