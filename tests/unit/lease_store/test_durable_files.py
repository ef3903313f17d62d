"""Files and folders that others rely on: replaced as a whole, and there after a power failure."""

from __future__ import annotations

from pathlib import Path

import pytest

from dagster_leasehold.lease_store.durable_files import make_folder, replace_file, replacing
from tests.synced import synced


def test_every_created_folder_is_synced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "output").mkdir()
    with synced(monkeypatch) as paths:
        make_folder(tmp_path / "output" / "attempts" / "one")
        assert paths == [tmp_path / "output", tmp_path / "output" / "attempts"]
        make_folder(tmp_path / "output" / "attempts" / "two")
        assert paths[2:] == [tmp_path / "output" / "attempts"]
        make_folder(tmp_path / "output" / "attempts" / "two", exist_ok=True)
        assert len(paths) == 3


def test_an_existing_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FileExistsError):
        make_folder(tmp_path)
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match="file"):
        make_folder(tmp_path / "file" / "below", exist_ok=True)


def test_a_file_is_replaced_as_a_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "state"
    replace_file(path, "old")
    with pytest.raises(RuntimeError, match="halfway"), replacing(path) as file:  # noqa: PT012
        file.write(b"half of the new")
        file.flush()
        assert path.read_text() == "old"
        raise RuntimeError("halfway")
    assert path.read_text() == "old"
    replace_file(path, "new")
    assert path.read_text() == "new"
    assert list(tmp_path.iterdir()) == [path]


def test_a_file_is_synced_before_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "catalog"
    with synced(monkeypatch) as paths:
        replace_file(path, "lost where power fails")
        assert paths == []
        replace_file(path, "kept", durable=True)
    draft, folder = paths
    assert (draft.parent, folder) == (tmp_path, tmp_path)
    assert draft != path


def test_a_private_file_is_private_from_its_creation(tmp_path: Path) -> None:
    path = tmp_path / "token"
    with replacing(path, mode=0o600):
        (draft,) = tmp_path.iterdir()
        assert draft.stat().st_mode & 0o777 == 0o600
    assert path.stat().st_mode & 0o777 == 0o600


def test_two_processes_can_replace_a_file_at_the_same_time(tmp_path: Path) -> None:
    path = tmp_path / "report"
    with replacing(path) as first, replacing(path) as second:
        first.write(b"first")
        second.write(b"second")
    assert path.read_text() == "first"
