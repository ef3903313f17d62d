"""Free space: for a home that does not exist yet, and on a disk of unknown space."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from dagster_leasehold.lease_store.errors import NoSpace
from dagster_leasehold.orchestration.supervision.preflight import MIB, free_bytes, require_room


def with_disk(monkeypatch: pytest.MonkeyPatch, asked: list[Path], **numbers: int) -> None:
    def statvfs(path: Path) -> SimpleNamespace:
        asked.append(path)
        return SimpleNamespace(**numbers)

    monkeypatch.setattr(os, "statvfs", statvfs)


@pytest.mark.parametrize(("account", "blocks"), [(0, 50), (1_000, 40)])
def test_free_space_is_that_of_the_account(
    account: int, blocks: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Path] = []
    with_disk(monkeypatch, asked, f_blocks=100, f_bfree=50, f_bavail=40, f_frsize=MIB)
    monkeypatch.setattr(os, "geteuid", lambda: account)
    home = tmp_path / "not" / "yet"
    assert free_bytes(home) == blocks * MIB
    assert asked == [tmp_path]
    require_room(home, blocks * MIB)
    with pytest.raises(NoSpace, match=f"has {blocks} MiB left, but {blocks + 1} MiB are needed"):
        require_room(home, (blocks + 1) * MIB)


def test_a_disk_of_unknown_space_is_accepted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_disk(monkeypatch, [], f_blocks=0, f_bfree=0, f_bavail=0, f_frsize=4_096)
    require_room(tmp_path, MIB)
