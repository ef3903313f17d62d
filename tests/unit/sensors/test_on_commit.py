"""Delivery to a hook: order, back-off, delays, and the delivering deployment."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pytest

from dagster_leasehold.assets.commit_hook import CommittedBatch
from dagster_leasehold.assets.deployment import Deployment
from dagster_leasehold.assets.places.local_place import local_place
from dagster_leasehold.assets.shard_stream import ShardStream
from dagster_leasehold.lease_store.errors import without_secrets
from dagster_leasehold.lease_store.group_rows import Node, Timing
from dagster_leasehold.lease_store.identifiers import NodeName, ShardId
from dagster_leasehold.lease_store.journal_rows import EventKind, OutboxEvent
from dagster_leasehold.lease_store.ledger_rows import BatchCommit, BatchStatistics, DataFile, Intent
from dagster_leasehold.lease_store.memory_store import MemoryStore
from dagster_leasehold.lease_store.outcomes import Changed, Opened
from dagster_leasehold.lease_store.shard_rows import ShardListing, Tenure
from dagster_leasehold.sensors.on_commit import RETRY_FIRST_S, TICK_BUDGET_S, HookDelivery
from tests.unit.sensors.streams import ScriptedSource

A, B = NodeName("a"), NodeName("b")
X, Y = ShardId("x"), ShardId("y")
OUT = local_place(Path("/out"))


@dataclass
class Scene:
    """A group with nodes a and b, shards x and y, and a hook that notes its calls."""

    store: MemoryStore = field(default_factory=MemoryStore)
    now_s: float = 1_000.0
    calls: list[CommittedBatch] = field(default_factory=list)
    fails: Callable[[CommittedBatch], Exception | None] = lambda _: None
    tenures: dict[ShardId, Tenure] = field(default_factory=dict)
    committed: dict[ShardId, int] = field(default_factory=lambda: {X: 0, Y: 0})

    def __post_init__(self) -> None:
        self.stream = ShardStream(name="orders", source=ScriptedSource(), on_commit=self.hook)
        key = self.stream.key
        self.store.create_group(self.stream.new_group(20.0))
        self.store.sync_shards(key, [ShardListing(X), ShardListing(Y)], observer="test")
        for node in (A, B):
            self.store.register(key, Node(node, 0, f"{node}-1"), observer="test")
        self.store.claim(key, {X: (A, 0), Y: (A, 0)}, observer="test", reason="test")
        for shard in (X, Y):
            opened = self.store.open_tenure(key, shard, A, "run")
            assert isinstance(opened, Opened)
            self.tenures[shard] = opened.tenure

    def hook(self, batch: CommittedBatch) -> None:
        self.calls.append(batch)
        error = self.fails(batch)
        if error is not None:
            raise error

    def commit(self, shard: ShardId, count: int = 1) -> None:
        for _ in range(count):
            number = self.committed[shard]
            tenure, start, end = self.tenures[shard], str(number), str(number + 1)
            self.store.record_intents([Intent(tenure, number, start, end)])
            files = (DataFile("at/x.parquet", 4, 40), DataFile("at/q.parquet", 1, 4, True))
            statistics = BatchStatistics(5, 50, 4, 1)
            commit = BatchCommit(tenure, number, start, end, "at", files, statistics, hooked=True)
            assert isinstance(self.store.commit([commit])[shard], Changed)
            self.committed[shard] += 1

    def delivery(self, *nodes: NodeName) -> HookDelivery:
        served = nodes or (A,)
        deployment = Deployment(lambda: self.store, served, Timing(), lambda key: OUT)
        return HookDelivery(self.stream, deployment, clock=lambda: self.now_s, jitter=lambda: 0.0)

    def ids(self) -> list[str]:
        return [batch.batch_id for batch in self.calls]

    def waiting(self) -> int:
        return len(self.store.pending_events(self.stream.key, kind=EventKind.HOOK))


@pytest.fixture
def scene() -> Scene:
    return Scene()


def test_a_hook_receives_each_batch_once_and_in_order_per_shard(scene: Scene) -> None:
    scene.commit(X)
    scene.commit(Y)
    scene.commit(X, 2)
    delivery = scene.delivery()
    report = delivery.tick("")
    assert scene.ids() == ["x.0", "x.1", "x.2", "y.0"]
    assert (report.delivered, report.waiting, report.failures) == (4, 0, {})
    assert delivery.tick("").delivered == 0
    assert len(scene.calls) == 4
    assert len(scene.store.pending_events(scene.stream.key)) == 4, "Dagster hears of them apart"


def test_a_hook_receives_the_fields_of_a_batch(scene: Scene) -> None:
    scene.commit(X)
    scene.delivery().tick("")
    (batch,) = scene.calls
    assert (batch.key, batch.shard, batch.start, batch.end) == (scene.stream.key, X, "0", "1")
    assert (batch.records, batch.bytes, batch.written, batch.quarantined) == (5, 50, 4, 1)
    assert batch.files == (Path("/out/at/x.parquet"),)
    assert (batch.finished, batch.attempt, batch.first_event_time) == (False, 1, None)


def test_a_failed_call_delays_only_its_shard_and_is_repeated(scene: Scene) -> None:
    scene.fails = lambda batch: ValueError("no room") if batch.batch_id == "x.1" else None
    scene.commit(X, 3)
    scene.commit(Y, 2)
    delivery = scene.delivery()
    report = delivery.tick("")
    assert scene.ids() == ["x.0", "x.1", "y.0", "y.1"]
    assert report.failures == {
        X: "on_commit failed for batch x.1 at attempt 1 (ValueError: no room); "
        "the next attempt is in 5 s."
    }
    assert "2 waiting" in str(report)
    scene.now_s += RETRY_FIRST_S - 0.1
    assert "due in 0 s" in str(delivery.tick(""))
    assert len(scene.calls) == 4, "not before its time"
    scene.now_s += 0.2
    assert "at attempt 2" in str(delivery.tick(""))
    assert scene.calls[-1].attempt == 2
    scene.fails = lambda _: None
    scene.now_s += 2 * RETRY_FIRST_S
    assert delivery.tick("").delivered == 2
    assert scene.ids()[4:] == ["x.1", "x.1", "x.2"]
    assert scene.waiting() == 0


def test_attempts_survive_a_restart(scene: Scene) -> None:
    scene.fails = lambda _: RuntimeError("down")
    scene.commit(X)
    for attempt in (1, 2, 3):
        report = scene.delivery().tick("")
        assert f"at attempt {attempt} " in report.failures[X]
    (waiting,) = scene.store.waiting_events(scene.stream.key, EventKind.HOOK)
    assert (waiting.oldest.attempts, waiting.oldest.error) == (3, "RuntimeError: down")


def test_a_delivery_that_dies_within_a_call_is_repeated(scene: Scene) -> None:
    scene.commit(X, 2)

    def die(batch: CommittedBatch) -> None:
        scene.calls.append(batch)
        raise KeyboardInterrupt

    dying = scene.delivery()
    dying._hook = die
    with pytest.raises(KeyboardInterrupt):
        dying.tick("")
    assert scene.delivery(B).tick("").delivered == 2
    assert scene.ids() == ["x.0", "x.0", "x.1"]


def test_one_deployment_delivers_at_a_time(scene: Scene) -> None:
    scene.commit(X, 2)
    other = scene.delivery(B)
    seen: list[str] = []
    scene.fails = lambda _: seen.append(str(other.tick("")))
    scene.delivery(A).tick("")
    assert scene.ids() == ["x.0", "x.1"]
    assert all("Node a delivers" in sentence for sentence in seen)
    scene.fails = lambda _: None
    scene.commit(X)
    assert other.tick("").delivered == 1


def test_a_deployment_declared_dead_settles_nothing(scene: Scene) -> None:
    """1. a calls the hook. 2. a is evicted, and b delivers. 3. a's call returns: it lost
    the lock.
    """
    scene.commit(X, 2)

    def evict(batch: CommittedBatch) -> None:
        scene.fails = lambda _: None
        lease_id = next(n.lease_id for n in scene.store.pulse(scene.stream.key).nodes)
        scene.store.evict(scene.stream.key, A, lease_id, observer="b", reason="silent")
        scene.delivery(B).tick("")

    scene.fails = evict
    report = scene.delivery(A).tick("")
    assert scene.ids() == ["x.0", "x.0", "x.1"]
    assert (report.delivered, report.explanation) == (
        0,
        "Another deployment took over the delivery.",
    )


def test_a_deployment_without_a_live_node_delivers_nothing(scene: Scene) -> None:
    scene.commit(X)
    assert "No live node" in scene.delivery(NodeName("c")).tick("").explanation
    assert scene.calls == []


def test_a_call_that_does_not_return_is_named(scene: Scene) -> None:
    entered, leave = Event(), Event()

    def hang(batch: CommittedBatch) -> None:
        entered.set()
        assert leave.wait(30)

    scene.fails = hang
    scene.commit(X)
    delivery = scene.delivery()
    first = Thread(target=delivery.tick, args=("",))
    first.start()
    assert entered.wait(30)
    scene.now_s += 90
    assert delivery.calling() == "on_commit was called for batch x.0 90 s ago and has not returned"
    leave.set()
    first.join(30)
    assert scene.ids() == ["x.0"]
    assert scene.waiting() == 0


def test_a_tick_ends_in_time(scene: Scene) -> None:
    def slow(batch: CommittedBatch) -> None:
        scene.now_s += TICK_BUDGET_S / 2

    scene.fails = slow
    scene.commit(X, 5)
    delivery = scene.delivery()
    report = delivery.tick("")
    assert (report.delivered, report.waiting) == (2, 3)
    assert "next tick" in report.explanation
    assert delivery.tick("").delivered == 2


@pytest.mark.parametrize(
    ("line", "safe"),
    [
        ("OperationalError: mysql://app:s3cret@db/x refused", "mysql://***@db/x refused"),
        ("HTTPError: token=s3cret, again", "token=***, again"),
        ("E: {'api_key': 's3cret', 'n': 1}", "'api_key': ***, 'n': 1}"),
        ("E: Authorization: Bearer s3cret", "Authorization: ***"),
        ("E: AWS_SECRET_ACCESS_KEY=s3cret", "AWS_SECRET_ACCESS_KEY=***"),
        ("KeyError: 'name'", "KeyError: 'name'"),
    ],
)
def test_text_that_looks_like_a_secret_is_removed_from_errors(line: str, safe: str) -> None:
    assert without_secrets(line).endswith(safe)
    assert "s3cret" not in without_secrets(line)


def test_an_error_is_one_line_without_secrets(scene: Scene) -> None:
    scene.fails = lambda _: OSError("password=hunter2 refused\nsecond line\x1b[0m" + "x" * 9_999)
    scene.commit(X)
    (sentence,) = scene.delivery().tick("").failures.values()
    assert "hunter2" not in sentence
    assert "second" not in sentence
    assert len(sentence) < 500


def test_a_stream_without_a_hook_has_no_delivery(scene: Scene) -> None:
    with pytest.raises(AssertionError):
        HookDelivery(
            replace(scene.stream, on_commit=None),
            Deployment(lambda: scene.store, (A,), Timing(), lambda key: OUT),
            clock=lambda: 0.0,
            jitter=lambda: 0.0,
        )


def test_unreadable_rows_of_one_shard_do_not_delay_others(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene.commit(X)
    scene.commit(Y)
    pending = MemoryStore.pending_events

    def raising(self: MemoryStore, *args: Any, **given: Any) -> list[OutboxEvent]:
        if given["shard"] == X:
            raise ZeroDivisionError("unforeseen")
        return pending(self, *args, **given)

    delivery = scene.delivery()
    with monkeypatch.context() as patched:
        patched.setattr(MemoryStore, "pending_events", raising)
        report = delivery.tick("")
    assert scene.ids() == ["y.0"]
    assert "shard x failed (ZeroDivisionError: unforeseen), tried again in 5 s" in str(report)
    scene.now_s += 5
    delivery.tick("")
    assert scene.ids() == ["y.0", "x.0"]


def test_a_payload_of_another_form_counts_as_a_failed_call(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene.commit(X)
    scene.commit(Y)
    of = CommittedBatch.of

    def raising(event: OutboxEvent, *args: Any) -> CommittedBatch:
        if event.shard == X:
            raise KeyError("bytes")
        return of(event, *args)

    monkeypatch.setattr(CommittedBatch, "of", raising)
    report = scene.delivery().tick("")
    assert scene.ids() == ["y.0"]
    assert "KeyError" in report.failures[X]
