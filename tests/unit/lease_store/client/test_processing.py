"""The processor worker: its callbacks, rollback, failures, hand-over and loss."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field

import pytest

from dagster_leasehold.lease_store.client import ProcessorWorker, Record
from dagster_leasehold.lease_store.errors import (
    InvalidSetting,
    NodeNameTaken,
    RunStalled,
    StoreUnavailable,
)
from dagster_leasehold.lease_store.group_rows import STALL_LIMIT_DEFAULT_S, Group
from dagster_leasehold.lease_store.identifiers import ShardId
from dagster_leasehold.lease_store.memory_store import MemoryStore
from dagster_leasehold.lease_store.rules.consumer_lifecycle import ConsumerState
from dagster_leasehold.lease_store.rules.states import ShardState
from dagster_leasehold.lease_store.rules.verification import verify
from dagster_leasehold.lease_store.shard_rows import ShardListing
from tests.manual_clock import ManualClock
from tests.unit.lease_store.client.world import (
    BEAT_S,
    KEY,
    TIMEOUT_S,
    ListFeed,
    checkpoint,
    member,
    memory_store,
    moving_to,
    owner,
)

S0, S1 = ShardId("0"), ShardId("1")


@dataclass
class Recorder:
    """A processor that notes its calls; `answers` are returned, or raised, one per call."""

    calls: list[object] = field(default_factory=list)
    seen: list[bytes] = field(default_factory=list)
    answers: list[str | Exception | None] = field(default_factory=list)

    def initialize(self, shard: ShardId, cursor: str) -> None:
        self.calls.append(("initialize", shard, cursor))

    def process(self, records: tuple[Record, ...]) -> str | None:
        self.calls.append(("process", records[0].cursor, records[-1].next_cursor))
        answer = self.answers.pop(0) if self.answers else None
        if isinstance(answer, Exception):
            raise answer
        self.seen += [record.value for record in records]
        return answer

    def shutdown(self) -> None:
        self.calls.append("shutdown")


@dataclass
class Fleet:
    """Workers of one group; each shard's processors of all workers share one recorder."""

    store: MemoryStore
    clock: ManualClock
    feed: ListFeed
    recorders: dict[ShardId, Recorder] = field(default_factory=dict)

    def processor(self, shard: ShardId) -> Recorder:
        return self.recorders.setdefault(shard, Recorder())

    def worker(self, name: str) -> ProcessorWorker:
        joining = member(self.store, self.clock, name)
        joining.register()
        worker = ProcessorWorker(
            joining, self.feed, self.processor, records_max=4, clock=self.clock
        )
        worker.beat()
        return worker

    def drain(self, *workers: ProcessorWorker) -> None:
        busy = True
        while busy:
            busy = sum(worker.step() for worker in workers) > 0


@pytest.fixture
def fleet() -> Fleet:
    feed = ListFeed()
    for shard in ("0", "1"):
        feed.append(shard, *(f"{shard}:{number}".encode() for number in range(10)))
    return Fleet(memory_store(["0"]), ManualClock(), feed)


def test_a_processor_is_called_in_order_and_its_checkpoint_persisted(fleet: Fleet):
    worker = fleet.worker("a")
    worker.step()
    assert worker.states() == {"0": ConsumerState.PROCESSING}
    fleet.drain(worker)
    recorder = fleet.recorders[S0]
    assert recorder.calls == [
        ("initialize", "0", "0"),
        ("process", "0", "4"),
        ("process", "4", "8"),
        ("process", "8", "10"),
    ]
    assert checkpoint(fleet.store) == "0"
    worker.shutdown()
    assert recorder.calls[-1] == "shutdown"
    assert checkpoint(fleet.store) == "10"
    assert owner(fleet.store) is None
    assert verify(fleet.store, KEY) == []


@pytest.mark.parametrize(
    ("wanted", "then", "saved"),
    [
        ("6", ("process", "6", "10"), "6"),
        ("4", ("process", "4", "8"), "4"),
        ("8", ("process", "8", "10"), "8"),
        ("1", ("process", "1", "4"), "4"),
        ("99", ("process", "4", "8"), "4"),
    ],
    ids=["within the batch", "its start", "its end", "before it", "nonsense"],
)
def test_reading_continues_at_a_rollback_cursor(
    fleet: Fleet, wanted: str, then: object, saved: str
):
    """An earlier cursor delivers records again, and nothing is saved until the old position."""
    worker = fleet.worker("a")
    recorder = fleet.processor(S0)
    recorder.answers = [None, wanted]
    for _ in range(3):
        worker.step()
    saves: list[str] = []
    real = fleet.store.save_checkpoint

    def spy(tenure: object, cursor: str):
        saves.append(cursor)
        real(tenure, cursor)  # pyright: ignore

    fleet.store.save_checkpoint = spy  # pyright: ignore
    fleet.clock.pass_s(10)
    worker.beat()
    assert saves == [saved]
    while recorder.calls[-1] == ("process", "4", "8") and len(recorder.calls) < 4:
        worker.step()
    assert recorder.calls[3] == then
    fleet.drain(worker)
    worker.shutdown()
    assert saves == sorted(saves, key=int), "the checkpoint never goes back"
    assert checkpoint(fleet.store) == "10"
    assert set(recorder.seen) == set(fleet.feed.shards[S0])


def test_a_failing_processor_gets_the_same_records_again_and_delays_only_its_shard(fleet: Fleet):
    fleet.store = memory_store(["0", "1"])
    worker = fleet.worker("a")
    bad = fleet.processor(S0)
    bad.answers = [ValueError("no"), ValueError("no")]
    fleet.drain(worker)
    assert len(fleet.recorders[S1].seen) == 10
    assert bad.seen == []
    fleet.clock.pass_s(0.2)
    fleet.drain(worker)
    assert bad.seen == [], "the second pause is longer"
    fleet.clock.pass_s(0.2)
    fleet.drain(worker)
    assert bad.seen == []
    fleet.clock.pass_s(0.2)
    fleet.drain(worker)
    assert bad.seen == fleet.feed.shards[S0]


def test_a_processor_that_cannot_initialize_is_created_again(fleet: Fleet):
    made: list[Recorder] = []

    class Failing(Recorder):
        def initialize(self, shard: ShardId, cursor: str) -> None:
            super().initialize(shard, cursor)
            if len(made) == 1:
                raise ValueError("not yet")

    def make(shard: ShardId) -> Recorder:
        made.append(Failing())
        return made[-1]

    joining = member(fleet.store, fleet.clock, "a")
    joining.register()
    worker = ProcessorWorker(joining, fleet.feed, make, clock=fleet.clock)
    worker.beat()
    worker.step()
    assert worker.states() == {"0": ConsumerState.INITIALIZING}
    fleet.clock.pass_s(1)
    worker.step()
    worker.step()
    worker.shutdown()
    assert made[0].calls == [("initialize", "0", "0")], "what was not initialized is not shut down"
    assert made[1].calls[-1] == "shutdown"
    assert checkpoint(fleet.store) == "10"


def test_a_shard_moves_between_live_workers_without_repetition(fleet: Fleet):
    fleet.store = memory_store(["0", "1"])
    a = fleet.worker("a")
    for _ in range(2):
        a.step()
    a.beat()
    b = fleet.worker("b")
    moving = moving_to(fleet.store, "b")
    a.beat()
    assert a.states()[moving] is ConsumerState.SHUTTING_DOWN
    assert owner(fleet.store, moving) == "a"
    a.step()
    assert a.states()[moving] is ConsumerState.SHUTDOWN_COMPLETE
    a.beat()
    assert moving not in a.states()
    b.beat()
    fleet.drain(a, b)
    assert fleet.recorders[moving].calls == [
        ("initialize", moving, "0"),
        ("process", "0", "4"),
        "shutdown",
        ("initialize", moving, "4"),
        ("process", "4", "8"),
        ("process", "8", "10"),
    ]
    a.shutdown()
    b.shutdown()
    assert verify(fleet.store, KEY) == []


def test_a_lost_shard_is_shut_down_without_saving_and_opened_again(fleet: Fleet):
    worker = fleet.worker("a")
    worker.step()
    worker.step()
    fleet.store.force_checkpoint(KEY, S0, "7", observer="operator", reason="test")
    worker.beat()
    assert worker.states() == {"0": ConsumerState.STOPPING}
    worker.step()
    assert checkpoint(fleet.store) == "7"
    worker.beat()
    fleet.drain(worker)
    assert fleet.recorders[S0].calls == [
        ("initialize", "0", "0"),
        ("process", "0", "4"),
        "shutdown",
        ("initialize", "0", "7"),
        ("process", "7", "10"),
    ]


def test_a_worker_that_slept_beyond_its_lease_saves_nothing(fleet: Fleet):
    a = fleet.worker("a")
    a.step()
    recorder = fleet.recorders[S0]
    b = fleet.worker("b")

    def sleep_while_processing(records: tuple[Record, ...]) -> None:
        for _ in range(8):
            fleet.clock.pass_s(BEAT_S)
            b.beat()
        fleet.drain(b)

    recorder.process, processing = sleep_while_processing, recorder.process  # pyright: ignore
    fleet.recorders[S0] = Recorder()
    a.step()
    assert owner(fleet.store) == "b"
    assert a.states() == {"0": ConsumerState.STOPPING}
    b.shutdown()
    a.step()
    assert checkpoint(fleet.store) == "10"
    assert verify(fleet.store, KEY) == []
    assert processing is not None


def test_a_worker_that_slept_without_an_eviction_repeats_nothing(fleet: Fleet):
    worker = fleet.worker("a")
    worker.step()
    worker.step()
    recorder = fleet.recorders[S0]
    fleet.clock.pass_s(0.75 * TIMEOUT_S)
    real = fleet.store.beat

    def away(*_: object):
        raise StoreUnavailable("away")

    fleet.store.beat = away  # pyright: ignore
    worker.step()
    assert recorder.calls[-1] == ("process", "0", "4"), "nothing is read while it is in doubt"
    fleet.store.beat = real
    fleet.clock.pass_s(1.0)
    fleet.drain(worker)
    assert recorder.calls[1:] == [
        ("process", "0", "4"),
        ("process", "4", "8"),
        ("process", "8", "10"),
    ]
    worker.shutdown()
    assert checkpoint(fleet.store) == "10"
    assert verify(fleet.store, KEY) == []


def test_a_worker_waits_at_a_gap_until_it_is_accepted(fleet: Fleet):
    worker = fleet.worker("a")
    worker.step()
    worker.step()
    fleet.feed.begins[S0] = 7
    worker.step()
    fleet.drain(worker)
    assert fleet.recorders[S0].calls[-1] == ("process", "0", "4")
    (gap,) = fleet.store.gaps(KEY)
    assert (gap.start, gap.end, gap.skipped) == ("4", "7", False)
    fleet.store.acknowledge_gap(KEY, gap, observer="operator")
    fleet.clock.pass_s(1)
    worker.step()
    fleet.drain(worker)
    assert fleet.recorders[S0].calls[-1] == ("process", "7", "10")
    worker.shutdown()
    assert checkpoint(fleet.store) == "10"
    assert verify(fleet.store, KEY) == []


def test_a_finished_shard_is_shut_down_before_it_is_over(fleet: Fleet):
    fleet.feed.read_only.add(S0)
    worker = fleet.worker("a")
    states: list[ShardState] = []

    class Watching(Recorder):
        def shutdown(self) -> None:
            states.append(fleet.store.snapshot(KEY).shards[0].state)

    fleet.recorders[S0] = Watching()
    fleet.drain(worker)
    assert states == [ShardState.ALREADY_ALLOC]
    assert fleet.store.snapshot(KEY).shards[0].state is ShardState.OVER
    assert checkpoint(fleet.store) == "10"
    worker.beat()
    worker.step()
    assert worker.states() == {}


def test_an_outage_of_the_store_delays_a_release_and_does_not_repeat_the_shutdown(fleet: Fleet):
    fleet.store = memory_store(["0", "1"])
    a = fleet.worker("a")
    a.step()
    a.beat()
    fleet.worker("b")
    moving = moving_to(fleet.store, "b")
    a.beat()
    real = fleet.store.close_tenure

    def away(*_: object, **__: object):
        raise StoreUnavailable("away")

    fleet.store.close_tenure = away  # pyright: ignore
    a.step()
    a.step()
    assert a.states()[moving] is ConsumerState.STOPPING
    fleet.store.close_tenure = real
    a.step()
    assert a.states()[moving] is ConsumerState.STOP_COMPLETED
    assert fleet.recorders[moving].calls.count("shutdown") == 1
    assert owner(fleet.store, moving) == "b"


def test_run_works_until_it_is_asked_to_stop():
    store = MemoryStore()
    store.create_group(Group(KEY, timeout_s=TIMEOUT_S))
    store.sync_shards(KEY, [ShardListing(S0)], observer="test")
    feed = ListFeed()
    feed.append("0", *(str(number).encode() for number in range(100)))
    recorder = Recorder()
    clock = ManualClock()
    worker = ProcessorWorker(
        member(store, clock, "a"), feed, lambda _: recorder, idle_s=0.01, clock=clock
    )
    stopping = threading.Event()
    thread = threading.Thread(target=worker.run, args=(stopping,))
    thread.start()
    deadline = time.monotonic() + 20
    while len(recorder.seen) < 100:
        assert time.monotonic() < deadline
        threading.Event().wait(0.01)
    stopping.set()
    thread.join(20)
    assert not thread.is_alive()
    assert checkpoint(store) == "100"
    assert recorder.calls[-1] == "shutdown"
    assert not store.snapshot(KEY).nodes[0].member


def test_run_says_why_it_cannot_join(fleet: Fleet):
    fleet.worker("a")
    second = member(fleet.store, fleet.clock, "a", incarnation="second")
    with pytest.raises(NodeNameTaken):
        ProcessorWorker(second, fleet.feed, fleet.processor).run(threading.Event())


def test_a_worker_with_a_hanging_processor_leaves_and_no_record_is_lost(fleet: Fleet):
    """Its beats continue on another thread, here the test's; its own thread is in the call."""
    first = fleet.worker("a")
    first.step()
    hanging, woken = threading.Event(), threading.Event()
    recorder, process = fleet.recorders[S0], fleet.recorders[S0].process

    def hang(records: tuple[Record, ...]) -> str | None:
        if records[0].cursor == "4":
            hanging.set()
            woken.wait(60)
        return process(records)

    recorder.process = hang
    raised: list[Exception] = []

    def work() -> None:
        try:
            fleet.drain(first)
        except RunStalled as error:
            raised.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    assert hanging.wait(60)
    for _ in range(int(STALL_LIMIT_DEFAULT_S / BEAT_S)):
        fleet.clock.pass_s(BEAT_S)
        first.beat()
    assert owner(fleet.store) == "a", "it has the whole limit"
    fleet.clock.pass_s(BEAT_S)
    first.beat()
    assert owner(fleet.store) is None
    assert checkpoint(fleet.store) == "4", "what was done is saved"
    recorder.process = process
    second = fleet.worker("b")
    fleet.drain(second)
    assert owner(fleet.store) == "b"
    first.beat()
    assert owner(fleet.store) == "b", "it does not come back"
    woken.set()
    thread.join(60)
    (error,) = raised
    assert "Shard 0 made no progress for 600 s, so node a left its group" in str(error)
    first.shutdown()
    second.shutdown()
    assert checkpoint(fleet.store) == "10"
    assert verify(fleet.store, KEY) == []


def test_a_slow_caller_between_two_steps_does_not_count_as_a_stall(fleet: Fleet):
    worker = fleet.worker("a")
    for _ in range(3):
        worker.step()
        for _ in range(int(2 * STALL_LIMIT_DEFAULT_S / BEAT_S)):
            fleet.clock.pass_s(BEAT_S)
            worker.beat()
    assert owner(fleet.store) == "a"


@pytest.mark.parametrize("limit_s", [0.0, -1.0])
def test_a_stall_limit_that_is_not_positive_is_refused(fleet: Fleet, limit_s: float):
    with pytest.raises(InvalidSetting, match="The stall limit is"):
        ProcessorWorker(
            member(fleet.store, fleet.clock, "a"),
            fleet.feed,
            fleet.processor,
            stall_limit_s=limit_s,
        )
