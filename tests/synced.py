"""A record of the files that this process syncs, for tests of power failures."""

from __future__ import annotations

import os
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def synced(monkeypatch: pytest.MonkeyPatch) -> Generator[list[Path]]:
    """The files and folders that are synced inside, in order; the disk is not waited for."""
    paths: list[Path] = []

    def fsync(descriptor: int) -> None:
        paths.append(Path(os.readlink(f"/proc/self/fd/{descriptor}")))

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fsync)
        yield paths
