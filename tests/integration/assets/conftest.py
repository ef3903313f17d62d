"""Fixtures from which the tests of assets start."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integration.assets.runs import new_home


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A small deployment whose shards are all claimed."""
    return new_home(tmp_path)
