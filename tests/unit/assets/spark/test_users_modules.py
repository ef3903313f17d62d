"""Modules that are forgotten when a file was edited, in a process whose imports are followed."""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dagster_leasehold.assets.spark import users_modules
from dagster_leasehold.assets.spark.users_modules import UsersModules

PROJECT = "shop_of_edits"


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A namespace package in which one module imports another."""
    package = tmp_path / PROJECT
    package.mkdir()
    (package / "prices.py").write_text("PRICE = 1\n")
    (package / "rules.py").write_text(f"from {PROJECT}.prices import PRICE\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    yield package
    for name in [name for name in sys.modules if name.partition(".")[0] == PROJECT]:
        del sys.modules[name]


@pytest.fixture
def modules(monkeypatch: pytest.MonkeyPatch) -> UsersModules:
    modules = UsersModules()
    monkeypatch.setattr(sys, "meta_path", [modules, *sys.meta_path])
    return modules


def imported(name: str) -> Any:
    return importlib.import_module(f"{PROJECT}.{name}")


def test_all_modules_are_imported_again_after_an_edit(project: Path, modules: UsersModules) -> None:
    rules = imported("rules")
    modules.unload_changed()
    assert imported("rules") is rules, "nothing has changed"
    (project / "prices.py").write_text("PRICE = 20\n")
    modules.unload_changed()
    assert imported("rules").PRICE == 20
    assert rules.PRICE == 1
    namespace: Any = importlib.import_module(PROJECT)
    assert namespace.prices.PRICE == 20
    (project / "prices.py").unlink()
    modules.unload_changed()
    with pytest.raises(ImportError):
        imported("rules")


def test_an_edit_while_a_module_is_imported_is_not_missed(
    project: Path, modules: UsersModules
) -> None:
    """Method: the module edits its own file, as a user can do after Python has read it."""
    text = "from pathlib import Path\nPRICE = 1\nPath(__file__).write_text('PRICE = 30\\n')\n"
    (project / "prices.py").write_text(text)
    assert imported("rules").PRICE == 1
    modules.unload_changed()
    assert imported("rules").PRICE == 30


def test_installed_packages_and_leasehold_are_not_imported_again(
    project: Path, modules: UsersModules, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(users_modules, "_installation", lambda: (project.parent,))
    rules = imported("rules")
    os.utime(project / "prices.py", ns=(1, 1))
    modules.unload_changed()
    assert imported("rules") is rules
    assert users_modules.__name__ in sys.modules


def test_a_module_of_another_finder_is_imported_again(
    project: Path, modules: UsersModules, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Goal: a project in an editable installation has its own finder."""
    name = f"{PROJECT}_by_finder"

    class Finder:
        def find_spec(self, wanted: str, *_: object) -> Any:
            if wanted != name:
                return None
            return importlib.util.spec_from_file_location(name, project / "prices.py")

    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path, Finder()])
    assert importlib.import_module(name).PRICE == 1
    (project / "prices.py").write_text("PRICE = 20\n")
    modules.unload_changed()
    assert importlib.import_module(name).PRICE == 20
    modules.unload_changed()
    del sys.modules[name]
