"""The sensor that launches compactions."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import dagster as dg
import pytest
from dagster import DagsterRunStatus

from dagster_leasehold.assets.deployment import ensure_instance_address
from dagster_leasehold.assets.partitions import NODE_TAG, PROCESS_TAG, STREAM_TAG
from dagster_leasehold.assets.run_process import process_note
from dagster_leasehold.assets.shard_stream import Retention
from dagster_leasehold.lease_store.errors import StoreUnavailable
from dagster_leasehold.lease_store.group_rows import Node
from dagster_leasehold.lease_store.identifiers import NodeName, ShardId
from dagster_leasehold.lease_store.ledger_rows import (
    BatchCommit,
    BatchStatistics,
    Compacted,
    DataFile,
    Intent,
    RewriteKind,
)
from dagster_leasehold.lease_store.outcomes import Changed, Opened
from dagster_leasehold.sensors.compaction import (
    BATCHES_MIN,
    PAUSE_S,
    VACUUM_EVERY_RUNS,
    VACUUM_MARGIN_S,
    compaction_step,
)
from dagster_leasehold.sensors.shard_list import sync_listing
from tests.unit.sensors.streams import memory_deployment, run_step, scripted_stream

A, B = NodeName("a"), NodeName("b")
ZERO, ONE = ShardId("0"), ShardId("1")
NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)
OLD = BATCHES_MIN
"""So many batches of each shard were committed two hours before the newest."""


class Scene:
    """Two shards of node `a`, or of `a` and `b`, with batches of two ages."""

    def __init__(self, instance: dg.DagsterInstance, *owners: NodeName) -> None:
        self.instance = instance
        self.now_s = 0.0
        stream, self.source = scripted_stream(2)
        self.stream = replace(stream, retention=Retention(compact_after_s=3_600.0))
        self.deployment, self.store = memory_deployment("a")
        self.time = NOON
        self.store._clock = lambda: self.time
        self.address = ensure_instance_address(instance)
        sync_listing(self.store, self.stream, self.source.list_shards(), timeout_s=20.0)
        for node, address in ((A, self.address), (B, "another deployment")):
            node_row = Node(node, 0, f"{node}-1", address=address)
            self.store.register(self.key, node_row, observer="test")
        owners = owners or (A, A)
        for shard, owner in zip((ZERO, ONE), owners, strict=True):
            lease_id = self.row(shard).lease_id
            self.store.claim(
                self.key, {shard: (owner, lease_id)}, observer="test", reason="it was free"
            )
        self.owners = dict(zip((ZERO, ONE), owners, strict=True))
        for shard in self.owners:
            self.commit(shard, OLD)
        self.time += timedelta(hours=2)
        for shard in self.owners:
            self.commit(shard, 1)
        self.start()

    @property
    def key(self):
        return self.stream.key

    def row(self, shard: ShardId):
        return next(row for row in self.store.snapshot(self.key).shards if row.shard == shard)

    def commit(self, shard: ShardId, batches: int) -> None:
        run = f"run-{shard}-{self.time:%H}"
        opened = self.store.open_tenure(self.key, shard, self.owners[shard], run)
        assert isinstance(opened, Opened)
        begin = self.store.heads(self.key)[shard].next_number
        for number in range(begin, begin + batches):
            start, end = str(number), str(number + 1)
            self.store.record_intents([Intent(opened.tenure, number, start, end)])
            files = (DataFile(f"{shard}-{number}", 1, 10),)
            statistics = BatchStatistics(1, 10, 1)
            commit = BatchCommit(opened.tenure, number, start, end, "at", files, statistics)
            assert isinstance(self.store.commit([commit])[shard], Changed)
        self.source.ends[shard] = begin + batches
        self.store.close_tenure(opened.tenure, reason="done")

    def start(self) -> None:
        """Load the sensor again, as a restarted code server does."""
        self.step = compaction_step(self.stream, self.deployment, lambda: self.now_s)
        self.cursor: str | None = None

    def tick(self) -> list[dg.RunRequest]:
        outcome = run_step(self.step, self.instance, self.cursor)
        self.cursor = self.cursor if outcome.cursor is None else outcome.cursor
        self.sentence = "" if outcome.run_requests else outcome.line
        return list(outcome.run_requests)

    def config(self) -> dict[str, Any]:
        (request,) = self.tick()
        return request.run_config["ops"]["compact__orders_eu"]["config"]

    def add_run(
        self, status: DagsterRunStatus, job: str = "consume_orders_eu", process: str = ""
    ) -> str:
        tags = {NODE_TAG: A, STREAM_TAG: self.stream.name, PROCESS_TAG: process}
        run = dg.DagsterRun(job_name=job, status=status, tags=tags)
        self.instance.add_run(run)
        return run.run_id


@pytest.fixture
def scene(instance: dg.DagsterInstance) -> Scene:
    return Scene(instance)


def test_one_run_compacts_all_shards_with_enough_old_batches(scene: Scene):
    (request,) = scene.tick()
    assert request.job_name == "compact_orders_eu"
    assert request.tags[NODE_TAG] == "a"
    assert request.tags[STREAM_TAG] == "orders.eu"
    config = request.run_config["ops"]["compact__orders_eu"]["config"]
    assert (config["node"], config["shards"], config["vacuum"]) == ("a", ["0", "1"], False)
    assert scene.tick() == [], "the node pauses"
    scene.now_s += PAUSE_S
    assert len(scene.tick()) == 1


def test_compacted_shards_are_not_chosen_again(scene: Scene):
    scene.store.claim_rewrite(scene.key, ZERO, "done", RewriteKind.COMPACTION)
    scene.store.note_compacted(scene.key, ZERO, "done", Compacted(0, OLD))
    scene.store.release_rewrite(scene.key, ZERO, "done")
    assert scene.config()["shards"] == ["1"]


def test_young_batches_are_not_worth_a_run(instance: dg.DagsterInstance):
    scene = Scene(instance)
    scene.stream = replace(scene.stream, retention=Retention(compact_after_s=3 * 3_600.0))
    scene.start()
    assert scene.tick() == []
    assert scene.sentence == "No shard has enough small files that are old enough."


def test_only_the_deployment_whose_node_holds_the_shard_compacts_it(instance: dg.DagsterInstance):
    scene = Scene(instance, A, B)
    assert scene.config()["shards"] == ["0"]


@pytest.mark.parametrize("agents", [False, True])
def test_each_shape_of_deployment_compacts(scene: Scene, agents: bool):
    scene.deployment = replace(scene.deployment, agents=agents)
    scene.start()
    assert scene.config()["shards"] == ["0", "1"]


def test_a_node_that_takes_no_runs_compacts_nothing(scene: Scene):
    nodes = scene.store._groups[scene.key].nodes
    nodes[A] = replace(nodes[A], accepts_runs=False)
    assert scene.tick() == []


def test_lagging_consumption_delays_compaction(scene: Scene):
    scene.source.ends[ZERO] += scene.stream.limits.records_max + 1
    assert scene.config()["shards"] == ["1"]
    scene.now_s += PAUSE_S
    scene.source.ends[ONE] += scene.stream.limits.records_max + 1
    assert scene.tick() == []
    assert scene.sentence.startswith("The shards with enough small files lag")


def test_an_unavailable_source_does_not_prevent_compaction(scene: Scene):
    scene.source.down = "the service is away"
    assert scene.config()["shards"] == ["0", "1"]


@pytest.mark.parametrize(
    ("states", "launched"),
    [
        ([DagsterRunStatus.STARTED], 1),
        ([DagsterRunStatus.NOT_STARTED], 0),
        ([DagsterRunStatus.STARTED] * 2, 0),
    ],
)
def test_a_compaction_waits_for_a_free_slot_of_its_node(
    scene: Scene, states: list[DagsterRunStatus], launched: int
):
    for status in states:
        scene.add_run(status)
    assert len(scene.tick()) == launched
    if not launched:
        assert scene.sentence == "No node of this deployment has a free slot for a compaction."


def test_one_compaction_of_a_stream_at_a_time_on_a_node(scene: Scene):
    scene.add_run(DagsterRunStatus.STARTED, "compact_orders_eu")
    assert scene.tick() == []


def test_a_compaction_whose_process_ended_is_failed_and_repeated(scene: Scene):
    """Goal: without an agent, no other process notices it, and its node would never compact
    again.
    """
    place = process_note().partition("|")[0]
    run = scene.add_run(DagsterRunStatus.STARTED, "compact_orders_eu", f"{place}|999999999|1")
    assert len(scene.tick()) == 1
    assert scene.instance.get_run_by_id(run).status is DagsterRunStatus.FAILURE


def test_a_shard_that_another_run_rewrites_is_skipped(scene: Scene):
    """Goal: a run that has ended keeps nothing from being compacted."""
    scene.store.claim_rewrite(scene.key, ZERO, "unknown", RewriteKind.REPLAY)
    ended = scene.add_run(DagsterRunStatus.FAILURE, "compact_orders_eu")
    scene.store.claim_rewrite(scene.key, ONE, ended, RewriteKind.COMPACTION)
    assert scene.config()["shards"] == ["1"]


def test_every_24th_compaction_removes_replaced_files(scene: Scene):
    """Goal: their number is in the cursor, because code servers restart."""
    marks: list[bool] = []
    for _ in range(VACUUM_EVERY_RUNS):
        scene.now_s += PAUSE_S
        marks.append(scene.config()["vacuum"])
        cursor = scene.cursor
        scene.start()
        scene.cursor = cursor
    assert marks == [False] * (VACUUM_EVERY_RUNS - 1) + [True]


def test_an_unavailable_store_is_one_sentence(scene: Scene):
    def away(*_: object) -> None:
        raise StoreUnavailable("the lease store is away")

    scene.store.snapshot = away
    assert scene.tick() == []
    assert scene.sentence == "the lease store is away"


def test_a_quiet_shard_is_compacted_to_its_end(scene: Scene):
    """Goal: without later batches nothing in the ledger would ever make its last ones old."""
    assert scene.config()["old_until"] == {}
    scene.now_s += scene.stream.retention.compact_after_s
    scene.commit(ONE, 1)
    assert scene.config()["old_until"] == {"0": OLD + 1}


def test_a_last_run_removes_replaced_files_once_all_of_them_are_old(scene: Scene):
    """Goal: a stream that ends, or is compacted seldom, leaves nothing on the disk either."""
    assert scene.config()["vacuum"] is False
    for shard in (ZERO, ONE):
        scene.store.claim_rewrite(scene.key, shard, "done", RewriteKind.COMPACTION)
        scene.store.note_compacted(scene.key, shard, "done", Compacted(0, OLD + 1))
        scene.store.release_rewrite(scene.key, shard, "done")
    scene.now_s += scene.stream.retention.vacuum_after_s
    assert scene.tick() == []
    scene.now_s += VACUUM_MARGIN_S
    config = scene.config()
    assert (config["node"], config["shards"], config["vacuum"]) == ("a", [], True)
    scene.now_s += scene.stream.retention.vacuum_after_s + VACUUM_MARGIN_S
    assert scene.tick() == [], "nothing was replaced since"
    scene.commit(ZERO, OLD)
    scene.now_s += scene.stream.retention.compact_after_s
    scene.tick()
    scene.now_s += scene.stream.retention.compact_after_s
    assert scene.config()["shards"] == ["0"]
    assert scene.cursor == "2"
