"""The examples in the docstrings of public names: each runs, and all but errors have one."""

from __future__ import annotations

import doctest
import importlib
import inspect
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.environment import forget_settings
from tests.unit.test_front_door import FRONT, NAMES

ON_A_PAGE = {
    "ReadOptions", "GroupMember", "HourlyAssetComponent", "Processor",
    "ProcessorWorker", "PullClient", "ShardFeed", "ShardStreamComponent", "SourceFeed",
    *("BoundedFromCursors", "DivisibleRanges", "ProgressMirror", "ShardReader", "ShardSource"),
    *("SourceKind", "TimedRecords"),
}  # fmt: skip
"""Names that take more than a few lines: a how-to page shows them, and a test runs that page."""


EXAMPLES = [
    (door, name, value)
    for door, name in NAMES
    if not (
        inspect.isclass(value := getattr(importlib.import_module(door), name))
        and issubclass(value, Exception)
    )
]
"""Each public name that is no error, with the module that offers it."""


@pytest.mark.parametrize(
    ("door", "name", "value"), EXAMPLES, ids=[f"{d}.{n}" for d, n, _ in EXAMPLES]
)
def test_the_example_of_a_docstring_runs(
    door: str, name: str, value: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    forget_settings(monkeypatch)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("BRANCH_DATABASE_URL", "sqlite:///branch.db")
    names: dict[str, Any] = {"datetime": datetime, "timezone": timezone, "Path": Path, "pa": pa}
    for module in map(importlib.import_module, (FRONT, door)):
        names |= {each: getattr(module, each) for each in module.__all__}
    finder = doctest.DocTestFinder(recurse=False)
    [documented] = finder.find(value, name, globs=names)
    if not documented.examples:
        assert name in ON_A_PAGE, f"{door}.{name} has no example"
    assert doctest.DocTestRunner().run(documented).failed == 0
