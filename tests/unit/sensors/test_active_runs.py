from __future__ import annotations

from typing import Any

import dagster as dg
import pytest

from assets.partitions import asset_key, asset_op_name
from sensors.active_runs import PARTITION_TAG, active_runs
from tests.unit.sensors.streams import scripted_stream


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
