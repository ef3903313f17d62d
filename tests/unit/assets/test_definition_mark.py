"""A definition has the same mark wherever it is loaded, and another one after a change."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dagster_leasehold.assets.definition_mark import definition_mark
from dagster_leasehold.assets.pace import Pace
from dagster_leasehold.assets.shard_stream import Checks, ShardStream
from dagster_leasehold.shard_sources.source import Limits
from tests.unit.sensors.streams import scripted_stream


@pytest.fixture
def load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], ShardStream]:
    """Load a package of the user again, as a code server does."""
    package = tmp_path / "visits_of_users"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "parsing.py").write_text("def parsed(records):\n    return records\n")
    (package / "columns.py").write_text("NAMES = ('a',)\n")
    monkeypatch.syspath_prepend(tmp_path)

    def loaded() -> ShardStream:
        for name in [name for name in sys.modules if name.startswith(package.name)]:
            del sys.modules[name]
        module: Any = importlib.import_module(f"{package.name}.parsing")
        return replace(scripted_stream()[0], transform=module.parsed)

    return loaded


def test_a_definition_that_is_loaded_again_has_the_same_mark(
    load: Callable[[], ShardStream],
) -> None:
    assert definition_mark(load()) == definition_mark(load())
    assert definition_mark(scripted_stream()[0]) == definition_mark(scripted_stream()[0])


@pytest.mark.parametrize(
    "changes", [{"limits": Limits(5, 5)}, {"pace": Pace(3.0)}, {"checks": Checks(7)}, {"name": "b"}]
)
def test_another_setting_is_another_definition(changes: dict[str, Any]) -> None:
    stream = scripted_stream()[0]
    assert definition_mark(replace(stream, **changes)) != definition_mark(stream)


def test_a_run_continues_if_only_the_presentation_of_an_asset_changes() -> None:
    stream = scripted_stream()[0]
    looks = replace(stream, asset_spec=lambda spec: spec.replace_attributes(group_name="g"))
    assert definition_mark(looks) == definition_mark(stream)
    assert definition_mark(replace(stream, key_prefix="web")) != definition_mark(stream)


@pytest.mark.parametrize("name", ["parsing.py", "columns.py"])
def test_another_source_file_in_the_package_of_the_transform_is_another_definition(
    load: Callable[[], ShardStream], tmp_path: Path, name: str
) -> None:
    before = definition_mark(load())
    file = tmp_path / "visits_of_users" / name
    os.utime(file, (1.0, 1.0))
    assert definition_mark(load()) != before


def test_a_transform_of_a_class_or_a_lambda_has_a_mark() -> None:
    class Doubling:
        def __call__(self, records: Any) -> Any:
            return records

    stream = scripted_stream()[0]
    marks = {
        definition_mark(replace(stream, transform=transform))
        for transform in (None, Doubling(), lambda records: records)
    }
    assert len(marks) == 3
