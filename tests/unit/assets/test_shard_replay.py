"""The checks of a replay's shards: a replay is no consumption, and turns no shard green."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from dagster_leasehold.assets.deployment import Deployment
from dagster_leasehold.assets.rewriting.replay import ReplayReport
from dagster_leasehold.assets.shard_replay import ReplayedPartitions
from dagster_leasehold.lease_store.group_rows import Timing
from dagster_leasehold.lease_store.identifiers import ShardId
from dagster_leasehold.lease_store.outcomes import Opened
from dagster_leasehold.lease_store.rules.isolation import Suspicion
from tests.unit.assets.consumption_world import NODE, World


def test_a_held_shard_stays_red_when_its_output_is_replayed(tmp_path: Path) -> None:
    world = World(tmp_path)
    opened = world.store.open_tenure(world.key, ShardId("0"), NODE, "run-1")
    assert isinstance(opened, Opened)
    held = replace(Suspicion(failure="It hangs.").within(1, alone=True), held=True)
    world.store.suspect(opened.tenure, held, abandon=False)
    reports = {shard: ReplayReport(shard) for shard in world.ids}
    deployment = Deployment(lambda: world.store, (NODE,), Timing(), lambda _: world.place)
    done = ReplayedPartitions(world.stream, deployment, reports, 1.0)
    passed = {
        shard: next(check.passed for check in done.checks(shard) if check.name == "not_blocked")
        for shard in world.ids
    }
    assert passed == {"0": False, "1": True}
