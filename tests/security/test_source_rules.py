"""Rules for our own source, read from its syntax trees, and for its dependencies."""

from __future__ import annotations

import ast
import re
from dataclasses import fields
from importlib.metadata import distributions
from pathlib import Path

import pytest
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
PACKAGE = "dagster_leasehold"
PACKAGES = ("lease_store", "shard_sources", "assets", "sensors", "orchestration")
MODULES = sorted(path for name in PACKAGES for path in (ROOT / PACKAGE / name).rglob("*.py"))
BANNED_CALLS = {
    "eval", "exec", "compile", "__import__", "pickle.load", "pickle.loads", "cloudpickle.load",
    "cloudpickle.loads", "marshal.load", "marshal.loads", "shelve.open", "yaml.load",
    "yaml.unsafe_load", "os.system", "os.popen", "importlib.import_module", "dill.loads",
}  # fmt: skip


def dotted(node: ast.expr) -> str:
    if isinstance(node, ast.Attribute):
        return f"{dotted(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else ""


def offences(tree: ast.AST) -> list[str]:
    """Return calls that execute their input, shells, and SQL that is composed as text."""
    names: list[str] = []
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        name = dotted(node.func)
        if name in BANNED_CALLS:
            names.append(name)
        names += [
            f"{name}(shell=...)"
            for keyword in node.keywords
            if keyword.arg == "shell"
            and not (isinstance(keyword.value, ast.Constant) and keyword.value.value is False)
        ]
        executes = name.split(".")[-1] in ("execute", "executemany", "exec_driver_sql", "text")
        if executes and node.args and isinstance(node.args[0], ast.JoinedStr | ast.BinOp):
            names.append(f"{name}(composed)")
    return names


ALLOWED = {
    # A run's own transform, in the worker that Spark sent it to; Spark pickles functions, too.
    ("dagster_leasehold/assets/consuming/range_tasks.py", "pickle.loads"),
    # SQLite's PRAGMA takes no parameters; the value is a constant of the module.
    ("dagster_leasehold/lease_store/transactions.py", "connection.execute(composed)"),
    # The module of a command, from the table of commands.
    ("dagster_leasehold/orchestration/command_line.py", "importlib.import_module"),
    # Modules that settings and options name, as those of Dagster itself do.
    ("dagster_leasehold/orchestration/user_modules.py", "importlib.import_module"),
}


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_no_code_executes_its_input(path: Path) -> None:
    name = path.relative_to(ROOT).as_posix()
    offending = {(name, offence) for offence in offences(ast.parse(path.read_text("utf-8")))}
    assert offending <= ALLOWED, offending - ALLOWED


@pytest.mark.parametrize(
    "program",
    [
        "eval(text)", "pickle.loads(row)", "subprocess.run(line, shell=True)", "os.system(line)",
        "cursor.execute(f'SELECT {name}')", "connection.execute(text('SELECT ' + name))",
        "importlib.import_module(name)",
    ],
)  # fmt: skip
def test_the_source_rules_find_planted_violations(program: str) -> None:
    assert offences(ast.parse(program)) != []


def test_every_dependency_is_pinned_and_none_names_an_address() -> None:
    lines = (ROOT / "constraints.txt").read_text("utf-8").splitlines()
    pins = [line for line in lines if line and not line.startswith("#")]
    assert len(pins) > 50
    for line in pins:
        assert re.fullmatch(r"[A-Za-z0-9._-]+==[A-Za-z0-9.+!-]+(?: ;.*)?", line), line


def test_every_pinned_package_installs_on_every_python_that_the_project_allows() -> None:
    """Debian 12 has Python 3.11.2: pip refuses to install a package there that needs 3.11.5."""
    pins = re.findall(r"^([A-Za-z0-9._-]+)==", (ROOT / "constraints.txt").read_text("utf-8"), re.M)
    pinned = {canonicalize_name(name) for name in pins}
    present = [each for each in distributions() if canonicalize_name(each.name) in pinned]
    assert len(present) > 50
    for package in present:
        accepted = SpecifierSet(package.metadata["Requires-Python"] or "")
        for python in ("3.11.0", "3.12.0", "3.13.0"):
            assert python in accepted, f"{package.name} refuses Python {python}"


def test_the_driver_is_new_enough() -> None:
    """CVE-2024-36039: before 1.1.1 keys of dictionaries went into SQL as they were."""
    pins = (ROOT / "constraints.txt").read_text("utf-8").lower()
    match = re.search(r"^pymysql==(\d+)\.(\d+)\.(\d+)", pins, re.M)
    assert match
    assert tuple(map(int, match.groups())) >= (1, 1, 3)


def test_no_setting_configures_java_options_or_jars() -> None:
    """A user chooses the engine's address; class paths, Java options and jars are not to be set."""
    from dagster_leasehold.assets.shard_stream import ShardStream
    from dagster_leasehold.orchestration.settings import Settings

    streams = {field.name for field in fields(ShardStream)}
    names = {*Settings.model_fields, *streams}
    assert not {name for name in names if "conf" in name or "java" in name or "jar" in name}
