"""Fixtures for the tests of the pull client."""

from __future__ import annotations

import pytest

from tests.unit.lease_store.client.world import ListFeed, VirtualClock


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


@pytest.fixture
def feed() -> ListFeed:
    """Two shards of ten records each."""
    feed = ListFeed()
    for shard in ("0", "1"):
        feed.append(shard, *(f"{shard}:{number}".encode() for number in range(10)))
    return feed
