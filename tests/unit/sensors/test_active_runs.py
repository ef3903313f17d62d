from __future__ import annotations

from typing import Any

import dagster as dg
import pytest

from assets.partitions import asset_key, asset_op_name
from sensors.active_runs import PARTITION_TAG, ActiveRun, HoldingMemory, active_runs
from tests.unit.sensors.streams import scripted_stream


def started(run_id: str) -> ActiveRun:
    return ActiveRun(run_id, "a", frozenset({"0"}), started=True)


def overdue(memory: HoldingMemory, active: list[ActiveRun], holding: set[str], now_s: float):
    return memory.overdue(active, holding, now_s=now_s, grace_s=20.0)


def test_a_run_that_holds_nothing_any_more_is_overdue_after_the_grace_time():
    memory, run = HoldingMemory(), started("run-1")
    assert overdue(memory, [run], {"run-1"}, 0.0) == []
    assert overdue(memory, [run], set(), 20.0) == []
    assert overdue(memory, [run], set(), 20.1) == ["run-1"]


def test_a_run_that_still_starts_up_has_not_held_anything_yet():
    memory, run = HoldingMemory(), started("run-1")
    assert overdue(memory, [run], set(), 0.0) == []
    assert overdue(memory, [run], set(), 1_000.0) == []


def test_a_run_that_ended_is_forgotten():
    memory, run = HoldingMemory(), started("run-1")
    overdue(memory, [run], {"run-1"}, 0.0)
    assert overdue(memory, [], set(), 30.0) == []
    assert overdue(memory, [run], set(), 60.0) == []


@pytest.mark.parametrize(
    ("config", "served"),
    [({}, {"0"}), ({"wait_s": 1.0}, {"0"}), ({"from": "begin"}, set()), ({"to": "5"}, set())],
)
def test_a_replay_serves_no_shard_so_that_consumption_goes_on_beside_it(
    config: dict[str, Any], served: set[str]
) -> None:
    stream, _ = scripted_stream(1)
    with dg.DagsterInstance.ephemeral() as instance:
        run_config = {"ops": {asset_op_name(stream): {"config": config}}} if config else {}
        instance.add_run(
            dg.DagsterRun(
                job_name="__ASSET_JOB",
                run_id="00000000-0000-0000-0000-000000000001",
                run_config=run_config,
                asset_selection=frozenset([asset_key(stream)]),
                status=dg.DagsterRunStatus.STARTED,
                tags={PARTITION_TAG: "0"},
            )
        )
        (found,) = active_runs(instance, stream)
    assert found.shards == served
