"""The checks of a replay's shards: a replay is no consumption, and turns no shard green."""

from __future__ import annotations

from pathlib import Path

from dagster_leasehold.assets.deployment import Deployment
from dagster_leasehold.assets.rewriting.replay import ReplayReport
from dagster_leasehold.assets.shard_replay import ReplayedPartitions
from dagster_leasehold.lease_store.group_rows import Timing
from dagster_leasehold.lease_store.identifiers import ShardId
from dagster_leasehold.lease_store.outcomes import Opened
from tests.unit.assets.consumption_world import NODE, World


def test_a_replay_does_not_clear_the_check_of_a_held_gap(tmp_path: Path) -> None:
    world = World(tmp_path)
    opened = world.store.open_tenure(world.key, ShardId("0"), NODE, "run-1")
    assert isinstance(opened, Opened)
    world.store.record_gap(opened.tenure, start="0", end="5", reason="trimmed", skip=False)
    reports = {shard: ReplayReport(shard) for shard in world.ids}
    deployment = Deployment(lambda: world.store, (NODE,), Timing(), lambda _: world.place)
    done = ReplayedPartitions(world.stream, deployment, reports, 1.0)
    outcomes = {s: {check.name: check.passed for check in done.checks(s)} for s in world.ids}
    assert {shard: each["no_gap"] for shard, each in outcomes.items()} == {"0": False, "1": True}
    assert "progress" not in outcomes["0"], "the sensor reports it, and knows the obstacles"
