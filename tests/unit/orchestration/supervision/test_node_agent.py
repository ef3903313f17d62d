"""The agent of a node with a code server that a test can silence; store and instance are real."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import NoReturn

import dagster as dg
import pytest
from typing_extensions import override

from dagster_leasehold.assets.deployment import ensure_instance_address
from dagster_leasehold.lease_store.errors import NodeNameTaken, StoreUnavailable
from dagster_leasehold.lease_store.group_rows import Group, Node, Pulse, Timing
from dagster_leasehold.lease_store.identifiers import GroupKey, NodeName, ShardId
from dagster_leasehold.lease_store.memory_store import MemoryStore
from dagster_leasehold.lease_store.outcomes import Changed, Opened, Stale
from dagster_leasehold.lease_store.process_identity import ProcessIdentity, current_place
from dagster_leasehold.lease_store.rebalancing import Rebalancer
from dagster_leasehold.lease_store.rules.assignment_plan import BeginTransfer
from dagster_leasehold.lease_store.rules.liveness import Clock, steady_clock
from dagster_leasehold.lease_store.rules.planning import plan
from dagster_leasehold.lease_store.rules.states import ShardState
from dagster_leasehold.lease_store.shard_rows import ShardListing, Tenure
from dagster_leasehold.orchestration.supervision import node_agent
from dagster_leasehold.orchestration.supervision.code_server import (
    AgentState,
    CodeServer,
    node_lock,
)
from dagster_leasehold.orchestration.supervision.node_agent import NodeAgent
from dagster_leasehold.orchestration.supervision.node_directory import Endpoint, find, withdrawn
from dagster_leasehold.orchestration.supervision.node_runs import NodeRuns
from dagster_leasehold.orchestration.supervision.spark_warm_up import SparkKeeper
from dagster_leasehold.sensors.tick_mark import write_tick_mark
from tests.waiting import wait_for

KEY = GroupKey.parse("default", "orders")
A, B = NodeName("a"), NodeName("b")
SHARDS = [ShardId("0"), ShardId("1")]
AT = Endpoint("127.0.0.1", 4202)
DEADLINE_S = 60.0


class Server(CodeServer):
    """A code server that answers until a test stops it."""

    def __init__(self) -> None:
        self.answers = True
        self.silence_s = 0.0
        self.stopped = False
        self.sessions: list[ProcessIdentity] = []

    @property
    def silent_s(self) -> float:
        return self.silence_s

    def check(self) -> bool:
        return self.answers

    def adopt_runs(self, predecessor: AgentState) -> None:
        self.sessions += predecessor.sessions

    def stop(self) -> None:
        self.stopped = True


class Scene:
    """A group of two shards, and an agent at work for node `a`, in further groups, too."""

    def __init__(
        self,
        folder: Path,
        instance: dg.DagsterInstance,
        timeout_s: float = 1.0,
        *,
        store: MemoryStore | None = None,
        further: Sequence[GroupKey] = (),
        clock: Clock = steady_clock,
        spark: SparkKeeper | None = None,
    ) -> None:
        self.folder, self.instance = folder, instance
        self.store, self.server = store or MemoryStore(), Server()
        self.store.create_group(Group(KEY, timeout_s=timeout_s))
        self.store.sync_shards(KEY, [ShardListing(shard) for shard in SHARDS], observer="test")
        self.agent = NodeAgent(
            A,
            {key: Node(A, 0, "") for key in (KEY, *further)},
            store=self.store,
            instance=instance,
            server=self.server,
            spark=spark,
            folder=folder,
            advertised=AT,
            leave_timeout_s=DEADLINE_S,
            clock=clock,
        )

    @property
    def row(self) -> Node | None:
        return next((node for node in self.store.snapshot(KEY).nodes if node.name == A), None)

    def claim(self, node: NodeName) -> None:
        leases = self.store.snapshot(KEY).shards
        claims = {lease.shard: (node, lease.lease_id) for lease in leases}
        self.store.claim(KEY, claims, observer="test", reason="test")

    @contextmanager
    def at_work(self) -> Iterator[threading.Event]:
        """The agent on a thread; it is stopped at the end of the block, and has left afterwards."""
        stopping = threading.Event()
        thread = threading.Thread(target=self.agent.run, args=(stopping,), daemon=True)
        thread.start()
        try:
            yield stopping
        finally:
            stopping.set()
            thread.join(DEADLINE_S)
        assert not thread.is_alive()


class SilentStore(MemoryStore):
    """A store that is unavailable, and takes six seconds of its clock to report it.

    Each call also records the health of the agent, which checked its code server before a beat.
    """

    def __init__(self) -> None:
        super().__init__()
        self.seconds, self.looks = 0.0, 0
        self.asked = Counter[str]()
        self.sentences = set[str]()
        self.unhealthy: Callable[[], str] = str

    def check(self) -> bool:
        self.looks += 1
        return True

    @override
    def pulse(self, key: GroupKey, node: NodeName | None = None) -> Pulse:
        looks, until = self.looks, time.monotonic() + 0.2
        while self.looks < looks + 2 and time.monotonic() < until:
            time.sleep(0.001)
        return self._away("pulse")

    @override
    def leave(self, key: GroupKey, node: NodeName, incarnation: str) -> Changed | Stale:
        return self._away("leave")

    def _away(self, verb: str) -> NoReturn:
        self.asked[verb] += 1
        self.seconds += 6.0
        self.sentences.add(self.unhealthy())
        raise StoreUnavailable("The lease store does not answer.")


until = partial(wait_for, "the agent", timeout_s=DEADLINE_S)


@pytest.fixture
def scene(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Scene]:
    """A scene whose group has a timeout of one second, or of as many as a test asks for."""
    with dg.DagsterInstance.ephemeral() as instance:
        ensure_instance_address(instance)
        yield Scene(tmp_path, instance, getattr(request, "param", 1.0))


def test_a_node_is_published_once_its_code_server_answers(scene: Scene) -> None:
    scene.server.answers = False
    with scene.at_work():
        time.sleep(1.5)
        assert find(scene.instance, A) is None
        assert scene.row is None, "nobody gives shards to a node that cannot take a run"
        scene.server.answers = True
        until(lambda: scene.row is not None and scene.row.member)
        assert find(scene.instance, A) == AT
    assert withdrawn(scene.instance, A)
    assert scene.server.stopped


class ColdSpark(SparkKeeper):
    """A keeper whose server starts when a test says so."""

    def __init__(self) -> None:
        self.started = False

    @property
    @override
    def cold(self) -> bool:
        return not self.started

    @override
    def check(self) -> None:
        pass

    @override
    def stop(self) -> None:
        pass


@pytest.mark.parametrize("restarted", [True, False])
def test_a_restarted_node_leaves_its_shards_to_others_until_its_spark_is_warm(
    tmp_path: Path, restarted: bool
) -> None:
    """Goal: warm nodes commit its shards meanwhile; at a first start, all nodes are cold."""
    with dg.DagsterInstance.ephemeral() as instance:
        ensure_instance_address(instance)
        spark = ColdSpark()
        scene = Scene(tmp_path, instance, DEADLINE_S, spark=spark)
        if restarted:
            AgentState(current_place(), "a-1").write(tmp_path)
        scene.store.register(KEY, Node(B, 0, "b-1"), observer="test")
        with scene.at_work():
            until(lambda: scene.row is not None and scene.row.member)
            assert scene.row is not None
            assert scene.row.accepts_runs is not restarted
            spark.started = True
            until(lambda: scene.row is not None and scene.row.accepts_runs)


def test_a_node_with_a_silent_code_server_keeps_beating_and_transfers_its_shards(
    scene: Scene,
) -> None:
    with scene.at_work():
        until(lambda: scene.row is not None and scene.row.member)
        scene.store.register(KEY, Node(B, 0, "b-1"), observer="test")
        scene.claim(A)

        def seen(reached: Callable[[Node], bool]) -> bool:
            # The other node lives as well.
            scene.store.beat(KEY, B, "b-1")
            return scene.row is not None and reached(scene.row)

        scene.server.answers, scene.server.silence_s = False, 11.0
        until(lambda: seen(lambda now: not now.accepts_runs))
        row = scene.row
        assert row is not None
        assert row.member
        until(lambda: seen(lambda now: now.lease_id > row.lease_id + 1))
        actions = plan(scene.store.snapshot(KEY), live=[A, B]).actions
        assert {type(action) for action in actions} == {BeginTransfer}
        assert {action.shard for action in actions} == set(SHARDS)
        scene.server.answers, scene.server.silence_s = True, 0.0
        until(lambda: scene.row is not None and scene.row.accepts_runs)


def test_a_node_with_a_silent_rebalance_sensor_accepts_no_runs_until_it_ticks(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(node_agent, "CHECK_S", 0.1)
    monkeypatch.setattr(node_agent, "PLANNER_READ_S", 0.1)

    def tick() -> None:
        write_tick_mark(scene.instance, KEY)

    tick()
    with scene.at_work():
        until(lambda: scene.row is not None and scene.row.member and scene.row.accepts_runs)
        until(lambda: scene.row is not None and not scene.row.accepts_runs)
        sentence = "The rebalance sensor of orders/default has not ticked for 2 s. Until"
        assert capsys.readouterr().out.count(sentence) == 1
        tick()
        until(lambda: scene.row is not None and scene.row.accepts_runs)


def test_an_agent_claims_shards_without_a_ticking_sensor(scene: Scene) -> None:
    with scene.at_work():
        until(lambda: {row.consumer_owner for row in scene.store.snapshot(KEY).shards} == {A})
    claims = [entry for entry in scene.store.journal(KEY) if entry.edge == 3]
    assert {entry.observer for entry in claims} == {"agent of a"}


def test_a_node_with_a_silent_sensor_accepts_runs_while_a_run_has_a_shard_open(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The working run opens shards that the node gains. No other run would be launched."""
    monkeypatch.setattr(node_agent, "CHECK_S", 0.1)
    monkeypatch.setattr(node_agent, "PLANNER_READ_S", 0.1)
    write_tick_mark(scene.instance, KEY)
    with scene.at_work():
        until(lambda: {row.consumer_owner for row in scene.store.snapshot(KEY).shards} == {A})
        opened = scene.store.open_tenure(KEY, SHARDS[0], A, "run-1")
        assert isinstance(opened, Opened)
        time.sleep(4.0)
        assert scene.row is not None
        assert scene.row.accepts_runs
        scene.store.close_tenure(opened.tenure, reason="its budget is over")
        until(lambda: scene.row is not None and not scene.row.accepts_runs)


def test_the_shards_of_a_run_whose_process_ended_are_free_within_a_second(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    failed = Counter[str]()
    ended = threading.Event()
    monkeypatch.setattr(NodeRuns, "ended", property(lambda _: ended.is_set()))

    def fail_dead(_: NodeRuns) -> list[str]:
        failed["asked"] += 1
        return ["run-1"] if ended.is_set() else []

    monkeypatch.setattr(NodeRuns, "fail_dead", fail_dead)
    monkeypatch.setattr(node_agent, "RUNS_CHECK_S", DEADLINE_S)
    with scene.at_work():
        until(lambda: {row.consumer_owner for row in scene.store.snapshot(KEY).shards} == {A})
        scene.instance.add_run(
            dg.DagsterRun(job_name="job", run_id="run-2", status=dg.DagsterRunStatus.STARTED)
        )
        for shard, run in zip(SHARDS, ("run-1", "run-2"), strict=True):
            assert isinstance(scene.store.open_tenure(KEY, shard, A, run), Opened)
        until(lambda: failed["asked"])
        ended.set()
        until(lambda: scene.store.progress(KEY, [A])[SHARDS[0]].consumer_run == "")
        assert scene.store.progress(KEY, [A])[SHARDS[1]].consumer_run == "run-2"
        # Stopped while its runs work, it would wait for them.
        scene.store.open_tenure(KEY, SHARDS[1], A, "test", replaces="run-2")
        rows = scene.store.progress(KEY, [A])
        assert rows[SHARDS[0]].consumer_epoch == 2, "the dead run is fenced"
        ended.clear()
        scene.store.close_tenure(
            Tenure(KEY, SHARDS[1], A, rows[SHARDS[1]].consumer_epoch, "test"), reason="test"
        )


def test_a_stopping_agent_waits_for_open_shards_and_frees_all_at_once(scene: Scene) -> None:
    with scene.at_work() as stopping:
        until(lambda: scene.row is not None and scene.row.member)
        scene.claim(A)
        opened = scene.store.open_tenure(KEY, SHARDS[0], A, "run-1")
        assert isinstance(opened, Opened)
        stopping.set()
        # The mark asks the run to stop at its next checkpoint.
        until((scene.folder / "leaving").exists)
        time.sleep(1.2)
        assert {lease.consumer_owner for lease in scene.store.snapshot(KEY).shards} == {A}
        scene.store.close_tenure(opened.tenure, reason="stop_requested")
    row = scene.row
    assert row is not None
    assert not row.member
    assert {lease.consumer_owner for lease in scene.store.snapshot(KEY).shards} == {None}
    assert not (scene.folder / "leaving").exists()


@pytest.mark.parametrize("scene", [20.0], indirect=True)
def test_a_stopping_agent_transfers_its_shards_to_a_node_that_accepts_runs(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No shard is without an owner, and the run continues until the next one has it."""
    monkeypatch.setattr(node_agent, "CHECK_S", 0.1)
    planner = Rebalancer(
        scene.store,
        KEY,
        serves=(B,),
        timing=Timing(),
        observer="planner",
        incarnation_of=lambda name: f"{name}-1",
    )
    with scene.at_work() as stopping:
        until(lambda: scene.row is not None and scene.row.member)
        scene.claim(A)
        opened = scene.store.open_tenure(KEY, SHARDS[0], A, "run-1")
        assert isinstance(opened, Opened)

        def handed_over() -> bool:
            planner.tick()
            rows = {row.shard: row for row in scene.store.snapshot(KEY).shards}
            if rows[SHARDS[0]].state is ShardState.TRANSFER:
                assert not (scene.folder / "leaving").exists()
                scene.store.close_tenure(opened.tenure, reason="transfer")
            return scene.row is not None and not scene.row.member

        stopping.set()
        until(handed_over)
    edges = [entry.edge for entry in scene.store.journal(KEY) if entry.edge is not None]
    assert {lease.consumer_owner for lease in scene.store.snapshot(KEY).shards} == {B}
    assert Counter(edges) == {1: 2, 3: 2, 5: 2, 6: 2}, "edge 4 would leave a shard without an owner"


@pytest.mark.parametrize("scene", [20.0], indirect=True)
def test_a_stopping_agent_waits_for_an_unavailable_store(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its runs continue meanwhile; if they were stopped, their shards would have no owner."""
    monkeypatch.setattr(node_agent, "CHECK_S", 0.02)
    monkeypatch.setattr(node_agent, "LOOP_S", 0.02)
    asked, progress = Counter[str](), scene.store.progress

    def away(*_: object) -> NoReturn:
        asked["progress"] += 1
        raise StoreUnavailable("The lease store does not answer.")

    with scene.at_work() as stopping:
        until(lambda: scene.row is not None and scene.row.member)
        scene.store.register(KEY, Node(B, 0, "b-1"), observer="test")
        scene.claim(A)
        opened = scene.store.open_tenure(KEY, SHARDS[0], A, "run-1")
        assert isinstance(opened, Opened)
        monkeypatch.setattr(scene.store, "progress", away)
        stopping.set()
        try:
            until(lambda: asked["progress"] > 3)
            assert not (scene.folder / "leaving").exists()
        finally:
            monkeypatch.setattr(scene.store, "progress", progress)
            scene.store.close_tenure(opened.tenure, reason="test")
            scene.store.leave(KEY, B, "b-1")


def test_a_stopping_agent_does_not_wait_for_a_plan_without_a_planner(scene: Scene) -> None:
    def tick() -> None:
        write_tick_mark(scene.instance, KEY)

    tick()
    with scene.at_work() as stopping:
        until(lambda: scene.row is not None and scene.row.member)
        scene.store.register(KEY, Node(B, 0, "b-1"), observer="test")
        scene.claim(A)
        stopping.set()
        until(lambda: scene.row is not None and not scene.row.member)


def test_an_agent_is_ready_while_it_accepts_runs_and_beats(scene: Scene) -> None:
    assert scene.agent.not_ready() == "The code server of node a takes no runs."
    with scene.at_work():
        until(lambda: not scene.agent.not_ready())
        scene.server.answers, scene.server.silence_s = False, 11.0
        until(lambda: scene.agent.not_ready() == "The code server of node a takes no runs.")
        assert scene.agent.unhealthy() == ""


def test_an_agent_with_a_hanging_loop_is_unhealthy(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    beating, resumed = threading.Event(), threading.Event()

    def hangs(*_: object) -> str:
        beating.set()
        resumed.wait(DEADLINE_S)
        return ""

    monkeypatch.setattr(NodeAgent, "_beat", hangs)
    monkeypatch.setattr(node_agent, "ITERATION_MAX_S", 3.0)
    with scene.at_work():
        assert beating.wait(DEADLINE_S)
        until(lambda: "node a has not tried to send a heartbeat for" in scene.agent.unhealthy())
        resumed.set()
        until(lambda: not scene.agent.unhealthy())


def test_an_unavailable_database_needs_no_restart_of_an_agent_with_many_groups(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Method: a round of 30 beats takes three minutes, longer than a turn may; so does leaving."""
    # The store's clock runs up to 300 times as fast as the clock of the loops.
    monkeypatch.setattr(node_agent, "LOOP_S", 0.01)
    monkeypatch.setattr(node_agent, "CHECK_S", 0.01)
    store = SilentStore()
    further = [GroupKey.parse("default", f"stream-{number}") for number in range(29)]
    away = Scene(
        scene.folder, scene.instance, store=store, further=further, clock=lambda: store.seconds
    )
    store.unhealthy = away.agent.unhealthy
    monkeypatch.setattr(away.server, "check", store.check)
    with away.at_work():
        until(lambda: store.asked["pulse"] > 2 * 30)
        assert away.agent.not_ready()
    assert store.asked["leave"] == 30
    assert store.sentences == {""}


def test_the_successor_of_a_killed_agent_continues_its_incarnation(scene: Scene) -> None:
    AgentState(current_place(), "of-the-first").write(scene.folder)
    with scene.at_work():
        until(lambda: scene.row is not None and scene.row.member)
        assert scene.row is not None
        assert scene.row.incarnation == "of-the-first"
    assert AgentState.read(scene.folder) is None, "one that left has no successor"


def test_a_node_whose_old_incarnation_still_beats_is_not_published(scene: Scene) -> None:
    """Its note was lost; runs that an agent before it started beat for the old incarnation."""
    scene.store.register(KEY, Node(A, 0, "of-the-first"), observer="test")
    with scene.at_work():
        time.sleep(0.8)
        assert find(scene.instance, A) is None
        # No process beats: the old incarnation is dead after the timeout of one second.
        until(lambda: scene.row is not None and scene.row.incarnation != "of-the-first")
        assert find(scene.instance, A) == AT


def test_notes_of_another_deployment_are_not_used(tmp_path: Path) -> None:
    """Two containers of one host name, say: the runs of the first keep beating, unseen."""
    boot = current_place().rpartition(".")[0]
    AgentState(f"{boot}.1", "first").write(tmp_path)
    assert AgentState.read(tmp_path) is None


def test_a_second_agent_of_a_folder_is_refused_in_one_sentence(tmp_path: Path) -> None:
    with (
        node_lock(tmp_path, A),
        pytest.raises(NodeNameTaken, match=r"^Another `leasehold node` runs node 'a'[^\n]+$"),
        node_lock(tmp_path, A),
    ):
        pass
