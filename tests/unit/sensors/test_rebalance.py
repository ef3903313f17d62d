from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import dagster as dg
import pytest
from dagster import DagsterRunStatus

from dagster_leasehold.assets.deployment import Deployment
from dagster_leasehold.assets.node_settings import Pinned
from dagster_leasehold.assets.partitions import NODE_TAG, PROCESS_TAG, STREAM_TAG
from dagster_leasehold.assets.shard_stream import ShardStream
from dagster_leasehold.lease_store.errors import StoreUnavailable
from dagster_leasehold.lease_store.group_rows import AssignmentMode
from dagster_leasehold.lease_store.identifiers import NodeName, ShardId
from dagster_leasehold.lease_store.memory_store import MemoryStore
from dagster_leasehold.lease_store.outcomes import Opened, Stale
from dagster_leasehold.lease_store.rules.liveness import steady_clock
from dagster_leasehold.lease_store.rules.states import ShardState
from dagster_leasehold.lease_store.shard_rows import ShardListing
from dagster_leasehold.sensors.rebalance import rebalance_step
from dagster_leasehold.sensors.shard_list import sync_listing
from dagster_leasehold.sensors.statement_counts import UpkeepReport
from dagster_leasehold.sensors.steps import Outcome
from dagster_leasehold.sensors.tick_mark import tick_marks
from tests.manual_clock import ManualClock
from tests.spans import recorded_spans
from tests.unit.sensors.streams import ScriptedSource, memory_deployment, run_step, scripted_stream

A, B = NodeName("a"), NodeName("b")


class Scene:
    """A deployment's rebalancing over a scripted source; a test sets the runs of the instance."""

    def __init__(
        self,
        instance: dg.DagsterInstance,
        *,
        shards: int = 4,
        nodes: str = "ab",
        store: MemoryStore | None = None,
        clock: Callable[[], float] = steady_clock,
    ) -> None:
        self.instance = instance
        self.clock = clock
        self.stream: ShardStream
        self.source: ScriptedSource
        self.stream, self.source = scripted_stream(shards)
        self.deployment: Deployment
        self.store: MemoryStore
        self.deployment, self.store = memory_deployment(*nodes, store=store)
        self.cursor: str | None = None
        self.restart()

    def restart(self) -> None:
        """A new code server: the memory of the old one is lost."""
        self.step = rebalance_step(self.stream, self.deployment, self.clock)

    def sync(self) -> None:
        sync_listing(self.store, self.stream, self.source.shards, timeout_s=20.0)

    def tick(self) -> Outcome:
        outcome = run_step(self.step, self.instance, self.cursor)
        self.cursor = outcome.cursor
        return outcome

    def add_run(self, request: dg.RunRequest, status: DagsterRunStatus, **tags: str) -> str:
        """Return the run that the daemon makes of a request."""
        run = dg.DagsterRun(
            job_name="consume_orders_eu",
            run_config=request.run_config,
            status=status,
            tags=dict(request.tags) | tags,
        )
        self.instance.add_run(run)
        return run.run_id

    def open(self, shard: str, node: NodeName, run: str) -> Opened:
        opened = self.store.open_tenure(self.stream.key, ShardId(shard), node, run)
        assert isinstance(opened, Opened)
        return opened

    def row(self, shard: str):
        rows = self.store.snapshot(self.stream.key).shards
        return next(row for row in rows if row.shard == shard)


def served(request: dg.RunRequest) -> tuple[str, set[str]]:
    config = request.run_config["ops"]["consume__orders_eu"]["config"]
    return config["node"], set(config["shards"])


def test_a_first_tick_without_a_stored_shard_list_reads_the_source(instance):
    scene = Scene(instance, nodes="a")
    scene.source.ends = {"0": 5}
    (request,) = scene.tick().run_requests
    assert served(request) == ("a", {"0"})
    assert {row.consumer_owner for row in scene.store.snapshot(scene.stream.key).shards} == {A}


def test_a_source_without_a_log_yet_is_one_sentence(instance):
    scene = Scene(instance, nodes="a")
    scene.source.down = "There is no local log at 'x': create it."
    assert scene.tick().line == scene.source.down


def test_the_first_tick_claims_all_shards_and_launches_one_run_per_node_with_records(instance):
    scene = Scene(instance)
    scene.sync()
    scene.source.ends = {"0": 5, "1": 5, "2": 5}
    requests = scene.tick().run_requests
    assert sorted(served(request)[0] for request in requests) == ["a", "b"]
    assert set.union(*(served(request)[1] for request in requests)) == {"0", "1", "2"}
    for request in requests:
        node, shards = served(request)
        assert request.tags[NODE_TAG] == node
        assert request.tags[STREAM_TAG] == scene.stream.name
        assert request.run_key is None
        assert all(scene.row(shard).consumer_owner == node for shard in shards)


def test_shards_of_a_killed_run_are_freed_and_launched_in_one_tick(instance, monkeypatch):
    scene = Scene(instance, nodes="a")
    scene.sync()
    scene.source.ends = dict.fromkeys("0123", 5)
    (request,) = scene.tick().run_requests
    killed = scene.add_run(request, DagsterRunStatus.STARTED, **{PROCESS_TAG: "killed"})
    for shard in "0123":
        scene.store.save_checkpoint(scene.open(shard, A, killed).tenure, "2")
    assert not scene.tick().run_requests, "it is at work, as far as anybody knows"
    monkeypatch.setattr(
        "dagster_leasehold.sensors.run_cleaning.process_ended", lambda note: note == "killed"
    )
    result = scene.tick()
    (again,) = result.run_requests
    assert served(again) == ("a", set("0123"))
    run = instance.get_run_by_id(killed)
    assert run.status is DagsterRunStatus.FAILURE
    assert all(scene.row(shard).consumer_run == "" for shard in "0123")


def test_an_idle_tick_says_so_and_launches_nothing(instance):
    scene = Scene(instance)
    scene.sync()
    scene.tick()
    result = scene.tick()
    assert not result.run_requests
    assert "nothing to change at generation" in result.line
    assert "nothing to read in 4 shards that no run serves; active runs: 0" in result.line


@pytest.mark.parametrize("status", [DagsterRunStatus.NOT_STARTED, DagsterRunStatus.STARTED])
def test_a_shard_of_an_active_run_is_not_launched_again(instance, status):
    scene = Scene(instance, nodes="a")
    scene.sync()
    scene.source.ends = {"0": 5}
    (request,) = scene.tick().run_requests
    scene.add_run(request, status)
    assert not scene.tick().run_requests


def test_the_partition_of_a_queued_materialization_is_not_launched(instance):
    scene = Scene(instance, nodes="a")
    scene.sync()
    scene.source.ends = {"0": 5}
    instance.add_run(
        dg.DagsterRun(
            job_name="__ASSET_JOB",
            status=DagsterRunStatus.NOT_STARTED,
            asset_selection={dg.AssetKey(["orders.eu"])},
            tags={"dagster/partition": "0"},
        )
    )
    assert not scene.tick().run_requests


def test_a_read_only_shard_without_unread_records_is_finished_and_frees_its_children(instance):
    scene = Scene(instance, shards=1, nodes="a")
    scene.sync()
    scene.tick()
    parent = ShardId("0")
    scene.source.shards = [ShardListing(parent, read_only=True)] + [
        ShardListing(ShardId(child), parents=(parent,)) for child in ("1", "2")
    ]
    scene.source.finished = {"0"}
    scene.sync()
    assert scene.row("1").state is ShardState.WAIT
    assert "finished 1 shard," in scene.tick().line
    assert scene.row("0").state is ShardState.OVER
    scene.tick()
    assert scene.row("1").consumer_owner == scene.row("2").consumer_owner == A


def test_a_paused_group_launches_nothing(instance):
    scene = Scene(instance)
    scene.sync()
    group = scene.store.snapshot(scene.stream.key).group
    scene.store.update_group(replace(group, paused=True), observer="test")
    scene.source.ends = {"0": 5}
    result = scene.tick()
    assert not result.run_requests
    assert "paused" in result.line


def test_a_restarted_code_server_keeps_its_nodes_and_moves_nothing(instance):
    scene = Scene(instance)
    scene.sync()
    scene.tick()
    before = scene.store.snapshot(scene.stream.key)
    scene.restart()
    result = scene.tick()
    after = scene.store.snapshot(scene.stream.key)
    assert after.shards == before.shards
    assert after.group.generation == before.group.generation
    assert "nothing to change" in result.line


def test_an_unavailable_source_costs_no_lease(instance):
    scene = Scene(instance)
    scene.sync()
    scene.source.down = "The source does not answer: try later."
    assert scene.tick().line.endswith(f"nothing is launched: {scene.source.down}")
    assert scene.row("0").state is ShardState.ALREADY_ALLOC
    assert scene.cursor


def test_a_store_that_does_not_answer_is_one_sentence_and_keeps_the_cursor(instance, monkeypatch):
    scene = Scene(instance)
    scene.sync()
    scene.tick()
    cursor = scene.cursor

    def fail(*_: object) -> None:
        raise StoreUnavailable("The lease store does not answer: try later.")

    monkeypatch.setattr(scene.store, "pulse", fail)
    assert scene.tick().line == "The lease store does not answer: try later."
    assert scene.cursor == cursor


def test_the_cursor_stays_small(instance):
    scene = Scene(instance, shards=500)
    scene.sync()
    scene.tick()
    assert scene.cursor is not None
    assert len(scene.cursor) < 1_000


def test_a_damaged_shard_is_named_and_does_not_stop_runs_of_others(instance):
    scene = Scene(instance, nodes="a")
    scene.sync()
    scene.source.ends = dict.fromkeys("0123", 5)
    scene.source.damaged = {"2"}
    (request,) = scene.tick().run_requests
    assert served(request) == ("a", {"0", "1", "3"})
    scene.add_run(request, DagsterRunStatus.STARTED)
    again = "bounds of shard 2 is tried again in 5 s (shard 2 is damaged: restore it.)"
    assert again in scene.tick().line


def test_an_idle_tick_of_the_sensor_costs_three_statements_for_any_number_of_shards(instance):
    for shards in (4, 300):
        scene = Scene(instance, shards=shards, nodes="a", clock=ManualClock(step_s=5.0))
        scene.sync()
        scene.tick()
        scene.tick()
        before = scene.store.statements.total()
        for _ in range(6):
            scene.tick()
        assert scene.store.statements.total() - before <= 3 * 6


def test_the_cost_of_ticks_is_stored_for_the_status_command(instance, tmp_path):
    scene = Scene(instance, nodes="a", clock=ManualClock(step_s=0.5))
    path = tmp_path / "upkeep" / "orders.json"
    scene.deployment = replace(scene.deployment, upkeep_file=lambda key: path)
    scene.restart()
    scene.sync()
    scene.tick()
    scene.tick()
    noted = UpkeepReport.load(path)
    assert noted is not None
    assert (noted.ticks, noted.nodes) == (2, 1)
    assert noted.statements["pulse"] == 2
    assert noted.writes["claim"] == 1
    # A folder that cannot be written costs the note, and no beat.
    scene.deployment = replace(scene.deployment, upkeep_file=lambda key: path / "no" / "folder")
    scene.restart()
    assert "nothing to change" in scene.tick().line


def test_two_deployments_share_the_shards_and_one_takes_over_when_the_other_dies(instance):
    """No run, no Dagster instance and no clock is shared: only the lease tables are."""
    clock, other_clock = ManualClock(), ManualClock()
    one = Scene(instance, nodes="a", clock=clock)
    with dg.DagsterInstance.ephemeral() as elsewhere:
        other = Scene(elsewhere, nodes="b", store=one.store, clock=other_clock)
        one.source.ends = other.source.ends = dict.fromkeys("0123", 5)
        one.sync()
        one.tick()
        # The newcomer gets its share at once, because no run holds the shards open.
        for _ in range(2):
            clock.now_s += 5
            other_clock.now_s += 5
            other.tick()
            one.tick()
        owners = [one.row(shard).consumer_owner for shard in "0123"]
        assert owners.count(A) == owners.count(B) == 2

    run = "a-run-of-the-other"
    lost = next(shard for shard in "0123" if one.row(shard).consumer_owner == B)
    opened = one.open(lost, B, run)
    clock.now_s += 15
    one.tick()
    assert one.row(lost).consumer_owner == B, "its counter has not stood still for T yet"
    clock.now_s += 15
    launched = one.tick().run_requests
    assert {one.row(shard).consumer_owner for shard in "0123"} == {A}
    assert lost in set.union(*(served(request)[1] for request in launched))
    assert not one.store.review([opened.tenure])[ShardId(lost)].current


def test_a_second_deployment_with_the_same_node_name_does_not_touch_runs_of_the_first(instance):
    clock = ManualClock()
    one = Scene(instance, nodes="a", clock=clock)
    one.source.ends = {"0": 5}
    (request,) = one.tick().run_requests
    run = one.add_run(request, DagsterRunStatus.STARTED)
    opened = one.open("0", A, run)
    with dg.DagsterInstance.ephemeral() as elsewhere:
        other = Scene(elsewhere, nodes="a", store=one.store, clock=clock)
        other.source.ends = dict.fromkeys("0123", 5)
        for _ in range(12):
            clock.now_s += 5
            one.tick()
            result = other.tick()
            assert "Another live process answers to node 'a'" in result.line
            assert not result.run_requests
    assert one.store.review([opened.tenure])[ShardId("0")].current


def test_a_bootstrap_cursor_that_has_not_taken_effect_is_worth_a_run(instance):
    """Both shards were read to their ends; the settings now start one of them again."""
    scene = Scene(instance, shards=2, nodes="a")
    scene.stream = replace(
        scene.stream, assignment=AssignmentMode.PINNED, nodes={"a": Pinned({"0": 2, "1": -1})}
    )
    scene.restart()
    scene.source.ends = {"0": 5, "1": 5}
    scene.sync()
    for shard in "01":
        scene.store.force_checkpoint(
            scene.stream.key, ShardId(shard), "5", observer="test", reason="read"
        )
    (request,) = scene.tick().run_requests
    assert served(request) == ("a", {"0"})
    assert scene.store.bootstrap(scene.stream.key, ShardId("0"), A, "2", run="r") != Stale()
    scene.store.force_checkpoint(
        scene.stream.key, ShardId("0"), "5", observer="test", reason="read again"
    )
    scene.restart()
    result = scene.tick()
    assert not result.run_requests
    assert "nothing to read in 2 shards" in result.line


def test_each_complete_tick_leaves_a_mark_for_agents(instance: dg.DagsterInstance) -> None:
    scene = Scene(instance)
    key = scene.stream.key

    def mark() -> str:
        return tick_marks(instance, [key])[key]

    scene.tick()
    assert mark() == ""
    scene.deployment = replace(scene.deployment, agents=True)
    scene.restart()
    scene.tick()
    first = mark()
    assert first != ""
    # An unavailable source stops no deployment: it is unavailable for all.
    scene.source.down = "The log is away."
    scene.tick()
    second = mark()
    assert second not in ("", first)

    def refuse(*_: object) -> None:
        raise StoreUnavailable("The lease store does not answer.")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scene.store, "pulse", refuse)
        scene.tick()
        assert mark() == second
    with pytest.MonkeyPatch.context() as patch:
        # Dagster's storage is unavailable for a moment: the tick waits, and logs it.
        patch.setattr(instance.daemon_cursor_storage, "set_cursor_values", refuse)
        scene.source.down = ""
        scene.tick()
    assert mark() == second


def test_the_trace_of_a_tick_shows_its_rebalancing_and_its_launches(instance):
    scene = Scene(instance)
    scene.source.ends = {"0": 5}
    with recorded_spans() as spans:
        scene.tick()
        assert spans.tree() == ["tick", "  rebalance", "  launch"]
        group = {"stream": "orders.eu", "group": "default"}
        assert spans.attributes("tick") == [group | {"sensor": "rebalance"}]
        assert spans.attributes("rebalance") == [{"nodes": 2, "shards": 4}]
        assert spans.attributes("launch") == [{"runs": 1}]


def test_the_trace_of_a_tick_without_a_store_says_so(instance, monkeypatch):
    scene = Scene(instance)
    monkeypatch.setattr(scene.store, "pulse", _away)
    with recorded_spans() as spans:
        scene.tick()
        assert [each.status.description for each in spans.named("tick")] == [str(AWAY)]


AWAY = StoreUnavailable("The lease store does not answer.")


def _away(*_: object) -> None:
    raise AWAY
