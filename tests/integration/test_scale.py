"""The benchmark of scale at a hundredth of its size: moves and statements, but no times."""

from __future__ import annotations

import pytest

from benchmarks.scale import measure
from tests import mysql

pytestmark = [pytest.mark.mysql, pytest.mark.long]


def test_two_groups_of_many_shards_join_die_and_flap_with_the_fewest_moves() -> None:
    with mysql.running() as server:
        rows, (beats, looks) = measure(
            server, groups=2, shards=600, nodes=6, changing=2, phases="claims,die,flap"
        )
    phases = {row["phase"]: row for row in rows}
    assert len(phases) == 5
    assert all(row["moves"] == row["fewest"] for row in rows), rows
    assert phases["nothing happens"]["rows written"] == 0
    joined = phases["2 nodes join"]
    assert joined["moves"] == 2 * 2 * (300 // 8)
    assert joined["statements"] < 100 * joined["rounds"]
    assert beats["rows read/s"] < 10 * beats["rows written/s"]
    # All agents together read a settled group's rows less than once in ten seconds.
    assert looks["rows written/s"] == 0
    assert looks["rows read/s"] < 600 / 10
