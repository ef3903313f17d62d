"""Fixtures for the tests of the pull client."""

from __future__ import annotations

import pytest

from tests.manual_clock import ManualClock
from tests.unit.lease_store.client.world import ListFeed


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def feed() -> ListFeed:
    """Two shards of ten records each."""
    feed = ListFeed()
    for shard in ("0", "1"):
        feed.append(shard, *(f"{shard}:{number}".encode() for number in range(10)))
    return feed
