"""Two deployments with the same output folder and stream name: one owns the folder."""

from __future__ import annotations

import json
import os
from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path

import pytest

from dagster_leasehold.assets.output import folder_owner
from dagster_leasehold.assets.output.folder_owner import owned
from dagster_leasehold.orchestration.command_line import main
from tests.declared import declare
from tests.environment import forget_settings
from tests.unit.orchestration.consumed_home import KEY, ConsumedHome
from tests.unit.orchestration.test_rewriting_commands import output_of


@dataclass
class Neighbours:
    """Two homes, each with ten records in two shards, and one output folder.

    The first one has consumed, and owns the folder; the second one comes later.
    """

    first: ConsumedHome
    second: ConsumedHome

    def files(self) -> set[Path]:
        return {path for path in self.first.output.rglob("*") if path.is_file()}


@pytest.fixture
def neighbours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Generator[Neighbours]:
    forget_settings(monkeypatch)
    monkeypatch.setattr(folder_owner, "_own_folders", set())
    shared = tmp_path / "shared"
    for name in ("first", "second"):
        declare(tmp_path / name, "demo", settings=f'output = "{shared}"\n')
    homes = [ConsumedHome(tmp_path / name, output=shared) for name in ("first", "second")]
    for home in homes:
        home.append(10)
    neighbours = Neighbours(*homes)
    owned(homes[0].store, homes[0].place)
    for home in homes:
        home.consume("run-1")
    yield neighbours
    for home in homes:
        home.store.close()


def test_a_second_deployment_neither_writes_nor_removes_files_of_the_first(
    neighbours: Neighbours, capsys: pytest.CaptureFixture[str]
) -> None:
    """Goal: every command that writes or removes is refused in one sentence."""
    for path in neighbours.files():
        os.utime(path, (0, 0))
    before = {path: path.stat().st_mtime_ns for path in neighbours.files()}
    home = ("--home", str(neighbours.second.settings.home))
    for command in (
        ("vacuum", "demo"),
        ("vacuum", "demo", "--dry-run"),
        ("vacuum", "demo", "--expire-days", "1"),
        ("compact", "demo"),
        ("replay", "demo"),
        ("table", "create", "demo"),
        ("checkpoint", "set", "demo", "1", "begin", "--force"),
    ):
        error = output_of(capsys, *command, *home, code=2)
        assert "belongs to another lease store" in error, command
        assert error.count("\n") == 1
    assert {path: path.stat().st_mtime_ns for path in neighbours.files()} == before


def test_take_over_gives_the_folder_to_the_second_deployment(
    neighbours: Neighbours, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second = (
        ("--home", str(each.settings.home)) for each in (neighbours.first, neighbours.second)
    )
    text = output_of(capsys, "db", "take-over", "demo", *second)
    assert text.endswith("now belongs to this lease store, and no longer to another store.\n")
    output_of(capsys, "vacuum", "demo", *second)
    assert "belongs to another" in output_of(capsys, "vacuum", "demo", *first, code=2)


def test_verify_finds_missing_files_and_reports_a_skipped_check(
    neighbours: Neighbours, capsys: pytest.CaptureFixture[str]
) -> None:
    home = ("--home", str(neighbours.first.settings.home))
    assert ", none missing." in output_of(capsys, "verify", *home)
    [file, *_] = [each for batch in neighbours.first.store.batches(KEY) for each in batch.files]
    (neighbours.first.output / file.path).unlink()
    text = output_of(capsys, "verify", *home, code=1)
    assert f"MISSING: The file {file.path} " in text
    assert text.endswith("6 committed files checked, 1 missing.\n")
    assert "were not checked (--no-files)" in output_of(capsys, "verify", "--no-files", *home)
    assert main(["verify", "--json", *home]) == 1
    assert json.loads(capsys.readouterr().out)["files"]["missing"] == 1
    main(["verify", "--json", "--no-files", *home])
    assert json.loads(capsys.readouterr().out)["files"] is None
