"""The janitor's rounds of deleting history: hourly, in small parts, without delaying other work."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from dagster_leasehold.assets.deployment import Deployment
from dagster_leasehold.assets.places.local_place import local_place
from dagster_leasehold.lease_store.errors import StoreError
from dagster_leasehold.lease_store.group_rows import Timing
from dagster_leasehold.lease_store.identifiers import GroupKey, ShardId
from dagster_leasehold.lease_store.memory_store import MemoryStore
from dagster_leasehold.lease_store.roles.retention import REFERENCE_ENTRIES
from dagster_leasehold.lease_store.shard_rows import ShardListing
from dagster_leasehold.lease_store.shard_summary import ENTRIES_KEPT
from dagster_leasehold.sensors.janitor import ROUND_EVERY_S, STEPS_PER_TICK, HistoryRounds
from tests.conformance.world import A, World, X

KEY = GroupKey.parse("group", "stream")
MONTH = timedelta(days=30)


@dataclass
class Scene:
    """A group on a store whose dates are set by hand, and its rounds on another clock."""

    age: timedelta | None = MONTH
    output_age: timedelta | None = None
    output: Path = Path()
    date: datetime = datetime(2026, 1, 1, tzinfo=UTC)
    now_s: float = 0.0
    rounds: HistoryRounds = field(init=False)
    world: World = field(init=False)

    def __post_init__(self) -> None:
        store = MemoryStore(lambda: self.date)
        self.world = World(store, KEY)
        deployment = Deployment(
            store=lambda: store, nodes=(), timing=Timing(),
            output_folder=lambda _: local_place(self.output),
            history_age=self.age,
        )  # fmt: skip
        self.rounds = HistoryRounds(KEY, deployment, lambda: self.now_s, self.output_age)
        self.world.group()
        self.world.join(A)
        self.world.add(X)
        self.world.claim(A, X)

    def tenures(self, number: int) -> None:
        for _ in range(number):
            tenure = self.world.open(A, X, f"run-{len(self.world.journal())}").tenure
            self.world.store.close_tenure(tenure, reason="done")

    def entries(self) -> int:
        return len(self.world.journal(X))


def test_old_entries_are_deleted_once_an_hour() -> None:
    scene = Scene()
    scene.tenures(200)
    assert scene.rounds.tick() == [], "nothing is old yet"
    scene.date += timedelta(days=31)
    scene.tenures(100)
    assert scene.rounds.tick() == [], "the next round is not due"
    scene.now_s += ROUND_EVERY_S
    assert scene.rounds.tick() == ["deleted 401 old rows of history"]
    assert scene.entries() == 201, "its first sight, and the young ones"


def test_the_setting_forever_keeps_all_history() -> None:
    scene = Scene(age=None)
    scene.tenures(200)
    scene.date += timedelta(days=10_000)
    scene.tenures(200)
    before = scene.world.store.statements.copy()
    assert scene.rounds.tick() == []
    assert scene.world.store.statements == before, "the store is not even asked"


def test_output_expires_even_if_all_history_is_kept(tmp_path: Path) -> None:
    scene = Scene(age=None, output_age=MONTH, output=tmp_path)
    tenure = scene.world.open(A, X, "run").tenure
    for number in range(5):
        scene.world.consume(tenure, str(number), str(number + 1), number)
    events = scene.world.store.pending_events(KEY)
    scene.world.store.mark_delivered(KEY, [event.sequence for event in events])
    scene.world.store.close_tenure(tenure, reason="done")
    assert scene.rounds.tick() == [], "nothing is old yet"
    scene.date += timedelta(days=31)
    scene.tenures(REFERENCE_ENTRIES)
    scene.now_s += ROUND_EVERY_S
    entries = scene.entries()
    assert scene.rounds.tick() == ["deleted 4 ledger rows of expired output"]
    assert [row.sequence for row in scene.world.store.batches(KEY)] == [4]
    assert scene.entries() == entries, "history_days is another setting"


def test_a_clock_that_jumps_ahead_does_not_empty_the_journal() -> None:
    """A host writes a few entries a year ahead: ages are counted from the others beside them."""
    scene = Scene()
    scene.tenures(300)
    before = scene.entries()
    scene.date += timedelta(days=365)
    scene.tenures(REFERENCE_ENTRIES // 2 - 1)
    scene.rounds.tick()
    assert scene.entries() == before + REFERENCE_ENTRIES - 2
    scene.tenures(1)
    scene.now_s += ROUND_EVERY_S
    scene.rounds.tick()
    assert scene.entries() == ENTRIES_KEPT + 1, "all have jumped, and the newest stay even so"


def test_a_tick_does_a_bounded_part_of_a_round() -> None:
    scene = Scene()
    scene.world.store.sync_shards(
        KEY, [ShardListing(ShardId(f"s{n}")) for n in range(STEPS_PER_TICK)], observer="test"
    )
    store = scene.world.store
    assert scene.rounds.tick() == []
    assert store.statements["prune_journal"] + store.statements["prune_batches"] == STEPS_PER_TICK
    for _ in range(3):
        scene.rounds.tick()
    assert store.statements["prune_outbox"] == 1, "the rest of the round came with later ticks"


def test_a_refusal_of_the_store_is_reported_and_retried_after_an_hour(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    scene = Scene()
    calls: list[object] = []

    def refuse(*args: object, **_: object) -> None:
        calls.append(args)
        raise StoreError("The lease store refused (error 1142).")

    for verb in ("prune_batches", "prune_journal", "prune_outbox", "prune_gaps"):
        monkeypatch.setattr(scene.world.store, verb, refuse)
    lines = scene.rounds.tick()
    assert len(lines) == 3
    assert "error 1142" in lines[0]
    asked = len(calls)
    assert scene.rounds.tick() == []
    assert len(calls) == asked
    monkeypatch.setattr(scene.world.store, "reference_time", refuse)
    scene.now_s += ROUND_EVERY_S
    assert scene.rounds.tick() == ["The lease store refused (error 1142)."]
