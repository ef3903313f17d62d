from __future__ import annotations

import pytest

from dagster_leasehold.shard_sources.local_log import writing


@pytest.fixture(autouse=True)
def _no_waiting_for_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Thousands of logs are written here, and no power fails; one test looks at the flushes."""
    monkeypatch.setattr(writing.os, "fsync", lambda _: None)
    monkeypatch.setattr(writing.os, "fdatasync", lambda _: None)
