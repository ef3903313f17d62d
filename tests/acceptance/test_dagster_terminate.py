"""A run that is terminated from the web page releases its shards, and loses or duplicates
nothing.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from dagster import DagsterInstance, DagsterRunStatus

from dagster_leasehold.lease_store import open_store
from dagster_leasehold.lease_store.rules.verification import verify
from dagster_leasehold.orchestration.settings import Settings
from dagster_leasehold.shard_sources.local_log import LocalLog
from tests.acceptance.held_stream import KEY, STREAM, committed, intended
from tests.dagster_deployment import DagsterDeployment, dagster_deployment
from tests.waiting import wait_for

RECORDS = 300
CONSUMED_S, STOPPED_S = 400.0, 120.0

pytestmark = [
    pytest.mark.long,
    pytest.mark.dagster_processes,
    pytest.mark.spark,
    pytest.mark.timeout(1200),
]


def terminate(deployment: DagsterDeployment, run_id: str) -> None:
    """Terminate a run as the button of its page does."""
    query = """mutation ($id: String!) { terminateRun(runId: $id) {
        __typename ... on TerminateRunFailure { message } } }"""
    done = deployment.graphql(query, id=run_id)["terminateRun"]
    assert done["__typename"] == "TerminateRunSuccess", done


def test_a_terminated_run_closes_its_shards_in_the_middle_of_a_batch(tmp_path: Path) -> None:
    home = tmp_path / "home"
    settings = Settings(home=home, nodes=("node-a",))
    log = LocalLog.create(home / "logs" / STREAM, 1)
    values = [b"%d" % number for number in range(RECORDS)]
    log.append("0", values)
    store = open_store(settings.store_url)
    (home / "hold").touch()
    started = dagster_deployment(settings, module="tests.acceptance.held_definitions")
    with started as deployment, DagsterInstance.from_config(str(settings.dagster_home)) as instance:
        stopped = wait_for("a batch in its Spark job", lambda: intended(store, home), CONSUMED_S)
        deployment.stop_sensor("orders_rebalance")
        terminate(deployment, stopped)

        def canceled() -> bool:
            run = instance.get_run_by_id(stopped)
            return run is not None and run.status is DagsterRunStatus.CANCELED

        wait_for("the end of the run", canceled, STOPPED_S)
        # The run itself released its shards during its Spark job: no sensor was needed.
        (row,) = store.snapshot(KEY).shards
        assert row.consumer_run == ""
        # One before it may have given up while Spark was starting.
        closed = [entry.run for entry in store.journal(KEY) if entry.kind == "close"]
        assert closed[-1] == stopped
        assert closed.count(stopped) == 1
        assert committed(store, settings.output_folder(KEY.stream, KEY.group)) == {}

        (home / "hold").unlink()
        deployment.start_sensor("orders_rebalance")

        def consumed() -> bool:
            return store.snapshot(KEY).shards[0].check_point == str(RECORDS)

        wait_for("all records", consumed, CONSUMED_S)
        by_shard = committed(store, settings.output_folder(KEY.stream, KEY.group))
        assert by_shard == {"0": values}
        assert verify(store, KEY) == []
