"""The statements that reach a real database while nothing happens, counted at the driver."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.upkeep import BEATS_PER_TERM, lease_per_shard, volume_leases


@pytest.mark.parametrize("nodes", [1, 4])
@pytest.mark.parametrize("shards", [1, 10, 400])
def test_upkeep_depends_on_the_nodes_and_not_on_the_shards(tmp_path: Path, shards: int, nodes: int):
    """Three statements for an idle tick, and one row written for a beat, whatever is held."""
    cost = volume_leases(f"sqlite:///{tmp_path}/leases.db", shards, nodes)
    assert cost.rows_written == BEATS_PER_TERM * nodes
    assert cost.statements <= 3 * BEATS_PER_TERM * nodes


def test_the_counting_sees_every_write(tmp_path: Path):
    """The alarm rings: a lease per shard is counted as the many writes that it is."""
    cost = lease_per_shard(f"sqlite:///{tmp_path}/leases.db", 50, 2)
    assert cost.rows_written == BEATS_PER_TERM * 50
