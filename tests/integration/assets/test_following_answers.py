"""A waiting run reacts long before its records are due: real runs, on real Spark.

`test_following` counts on a virtual clock that it checks once a second.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from dagster_leasehold.assets.consume_job import build_consume_job
from dagster_leasehold.assets.consuming.run_requests import STOP_TAG
from dagster_leasehold.assets.deployment import LEASEHOLD, Deployment
from dagster_leasehold.assets.pace import Pace
from dagster_leasehold.assets.partitions import consume_job_name, consume_op_name
from dagster_leasehold.assets.places.local_place import local_place
from dagster_leasehold.assets.spark.spark_resource import SparkResource
from dagster_leasehold.lease_store.group_rows import Node, Timing
from dagster_leasehold.lease_store.identifiers import NodeName, ShardId
from dagster_leasehold.lease_store.rules.verification import verify
from dagster_leasehold.sensors.active_runs import ActiveRuns
from dagster_leasehold.sensors.following_runs import FollowingRuns
from dagster_leasehold.shard_sources.local_log import LocalLog
from tests.integration.assets.runs import NODE, RECORDS, WAYS, store_of, stream_of

pytestmark = [pytest.mark.long, pytest.mark.spark]

OTHER = NodeName("b")
INTERVAL_S = 30.0
DEADLINE_S = 120.0


class Scene:
    """A following run in a thread, and the requests of others."""

    def __init__(self, home: Path, spark_folder: Path, way: str, shards: str) -> None:
        self.home = home
        self.shards = shards
        self.stream = replace(
            stream_of(home, WAYS[way]),
            pace=Pace(commit_interval_s=INTERVAL_S, idle_limit_s=DEADLINE_S),
        )
        self.store = store_of(home)
        self.leaving = threading.Event()
        self.instance = dg.DagsterInstance.local_temp(str(home))
        deployment = Deployment(
            lambda: self.store,
            (NODE,),
            Timing(),
            lambda _: local_place(home / "output"),
            leaving=self.leaving.is_set,
            spark=SparkResource(mode="connect", folder=str(spark_folder)),
        )
        self.job = dg.Definitions(
            jobs=[build_consume_job(self.stream)], resources={LEASEHOLD: deployment}
        ).resolve_job_def(consume_job_name(self.stream))
        self.run = threading.Thread(target=self._consume, daemon=True)

    def _consume(self) -> None:
        config: dict[str, Any] = {
            "node": NODE, "incarnation": "a-1", "shards": list(self.shards), "follow": True,
            "definition": "before",
        }  # fmt: skip
        ops = {consume_op_name(self.stream): {"config": config}}
        self.job.execute_in_process(instance=self.instance, run_config={"ops": ops})

    def wait_until(self, holds: Callable[[], bool]) -> float:
        """Return the seconds that it took until something holds."""
        began = time.monotonic()
        while not holds():
            assert time.monotonic() < began + DEADLINE_S
            time.sleep(0.02)
        return time.monotonic() - began

    def rows(self) -> list[Any]:
        """The leases of the run's shards."""
        rows = self.store.snapshot(self.stream.key).shards
        return [row for row in rows if row.shard in self.shards]

    def append(self, records: int) -> None:
        log = LocalLog(self.home / "log")
        for shard in self.shards:
            end = int(log.bounds([ShardId(shard)])[ShardId(shard)].end)
            log.append(shard, [b"%s:%d" % (shard.encode(), end + n) for n in range(records)])

    # -- what others ask ------------------------------------------------------------------------

    def hand_over(self) -> None:
        self.store.register(self.stream.key, Node(OTHER, 0, "b-1"), observer="test")
        for row in self.rows():
            self.store.begin_transfer(
                self.stream.key, {row.shard: (OTHER, row.lease_id, "t")}, observer="t"
            )[row.shard]

    def pause(self) -> None:
        group = self.store.pulse(self.stream.key).group
        self.store.update_group(replace(group, paused=True), observer="test")

    def stop(self) -> None:
        self.leaving.set()

    def new_definition(self) -> None:
        """A sensor of another definition sees the run."""
        following = FollowingRuns("after", 3_600.0, 8, time.monotonic, lambda: "offer")
        following.update(ActiveRuns(self.instance).of(self.stream), {})
        assert len(following.stop(self.instance)) == 1
        (run,) = self.instance.get_runs()
        assert STOP_TAG in run.tags


ASKED = {
    # Of three shards, the other node's share is two: the run's own planner would keep the third.
    "hand-over": (Scene.hand_over, "arrow", "01"),
    "pause": (Scene.pause, "frames", "012"),
    "stop": (Scene.stop, "frames", "012"),
    "new definition": (Scene.new_definition, "arrow", "012"),
}


@pytest.mark.parametrize("what", ASKED)
def test_a_waiting_run_reacts_before_its_next_batch(
    what: str, home: Path, spark_folder: Path, connect_session: object
) -> None:
    """Records wait for the next batch, half a minute away, when the shards are requested."""
    del connect_session  # requested so that the server is warm
    ask, way, shards = ASKED[what]
    scene = Scene(home, spark_folder, way, shards)
    scene.run.start()
    scene.wait_until(lambda: all(row.check_point == str(RECORDS) for row in scene.rows()))
    scene.append(5)
    assert all(row.consumer_run for row in scene.rows())
    ask(scene)
    answered_s = scene.wait_until(lambda: not any(row.consumer_run for row in scene.rows()))
    assert answered_s < INTERVAL_S / 2
    scene.run.join(DEADLINE_S)
    assert {row.check_point for row in scene.rows()} == {str(RECORDS)}, "at its checkpoint"
    assert {row.consumer_owner for row in scene.rows()} == {OTHER if what == "hand-over" else NODE}
    assert verify(scene.store, scene.stream.key) == []
