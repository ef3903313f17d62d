"""Folders that a commit relies on: after a power failure they bear their names."""

from __future__ import annotations

from pathlib import Path

import pytest

from dagster_leasehold.shard_sources.durable_folder import make_folder
from tests.synced import synced


def test_every_folder_that_was_made_is_named_on_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "output").mkdir()
    with synced(monkeypatch) as paths:
        make_folder(tmp_path / "output" / "attempts" / "one")
        assert paths == [tmp_path / "output", tmp_path / "output" / "attempts"]
        make_folder(tmp_path / "output" / "attempts" / "two")
        assert paths[2:] == [tmp_path / "output" / "attempts"]
        make_folder(tmp_path / "output" / "attempts" / "two", exist_ok=True)
        assert len(paths) == 3


def test_a_folder_that_is_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FileExistsError):
        make_folder(tmp_path)
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match="file"):
        make_folder(tmp_path / "file" / "below", exist_ok=True)
