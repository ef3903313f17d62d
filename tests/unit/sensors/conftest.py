from __future__ import annotations

from collections.abc import Iterator

import dagster as dg
import pytest


@pytest.fixture
def instance() -> Iterator[dg.DagsterInstance]:
    """An instance of Dagster in memory, whose runs a test sets."""
    with dg.DagsterInstance.ephemeral() as ephemeral:
        yield ephemeral
