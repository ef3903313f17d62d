"""Random histories of pull clients under virtual time: joins, stalls, crashes, store failures.

Method: a seeded scheduler picks a client and its action. Clients stall for longer than the timeout,
die without a message, and find the store unavailable before or after a write. Each step checks the
promises that need no end. Then all faults stop, and the group has to settle.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field

import pytest

from dagster_leasehold.lease_store.client import PullClient, PulledBatch
from dagster_leasehold.lease_store.errors import (
    BatchUnconfirmed,
    ConfirmedTooLate,
    LeaseLost,
    NodeNameTaken,
    OutcomeUnknown,
    ShardNotOpen,
    ShardOccupied,
    StoreUnavailable,
)
from dagster_leasehold.lease_store.identifiers import NodeName, ShardId
from dagster_leasehold.lease_store.memory_store import MemoryStore
from dagster_leasehold.lease_store.rules.verification import verify
from dagster_leasehold.lease_store.shard_rows import Tenure
from tests.manual_clock import ManualClock
from tests.unit.lease_store.client.world import BEAT_S, KEY, TIMEOUT_S, ListFeed, make_group

STEPS = 250
RECORDS = 400
NORMAL = (BatchUnconfirmed, ConfirmedTooLate, LeaseLost, ShardNotOpen, ShardOccupied)
NORMAL += (StoreUnavailable, OutcomeUnknown, NodeNameTaken)


class FaultyStore(MemoryStore):
    """Fails some calls before, or after, they took effect; notes every checkpoint that it took."""

    def __init__(self, chance: random.Random) -> None:
        super().__init__()
        self._chance = chance
        self.fault_rate = 0.0
        self.saved: dict[ShardId, int] = {}
        for verb in ("beat", "open_tenure", "close_tenure", "progress", "claim", "pulse"):
            setattr(self, verb, self._failing(getattr(self, verb)))

    def _failing(self, verb: Callable[..., object]) -> Callable[..., object]:
        def call(*args: object, **kwargs: object) -> object:
            fails = self._chance.random() < self.fault_rate
            if fails and self._chance.random() < 0.5:
                raise StoreUnavailable("before it took effect")
            outcome = verb(*args, **kwargs)
            if fails:
                raise OutcomeUnknown("after it took effect")
            return outcome

        return call

    def save_checkpoint(self, tenure: Tenure, cursor: str) -> None:
        super().save_checkpoint(tenure, cursor)
        before = self.saved.get(tenure.shard, 0)
        assert int(cursor) >= before, f"{tenure} moved {before} back to {cursor}"
        self.saved[tenure.shard] = int(cursor)


@dataclass
class Actor:
    """A client, the batches that it has not confirmed, and until when it stalls."""

    client: PullClient
    batches: list[PulledBatch] = field(default_factory=list)
    stalled_until: float = 0.0


class History:
    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.clock = ManualClock()
        self.store = FaultyStore(self.chance)
        self.feed = ListFeed()
        shards = self.chance.randint(1, 5)
        self.shards = [ShardId(str(number)) for number in range(shards)]
        for shard in self.shards:
            self.feed.append(shard, *[b"x"] * RECORDS)
        make_group(self.store, self.shards)
        self.actors: dict[str, Actor] = {}
        self.incarnations = 0
        self.store.fault_rate = self.chance.choice([0.0, 0.05, 0.2])

    def join(self, name: str) -> None:
        self.incarnations += 1
        client = PullClient(
            self.store,
            KEY,
            self.feed,
            name=NodeName(name),
            incarnation=f"{name}-{self.incarnations}",
            clock=self.clock,
            protect_s=self.chance.choice([4.0, 60.0]),
            flush_s=self.chance.choice([0.0, 12.0]),
            background=False,
            pause=self.clock.pass_s,
        )
        client.start()
        self.actors[name] = Actor(client)

    def act(self) -> None:
        """One step of one client, or of time."""
        step = self.chance.random()
        if step < 0.2:
            self.clock.pass_s(self.chance.choice([0.5, 2.0, BEAT_S]))
            return
        if step < 0.23 and len(self.actors) < 4:
            free = sorted({"a", "b", "c", "d"} - self.actors.keys())
            self.join(self.chance.choice(free))
            return
        ready = [n for n, a in sorted(self.actors.items()) if a.stalled_until <= self.clock()]
        if not ready:
            return
        name = self.chance.choice(ready)
        actor = self.actors[name]
        if step < 0.24:
            del self.actors[name]  # Killed: it never sends anything again.
        elif step < 0.25:
            del self.actors[name]
            actor.client.shutdown()
        elif step < 0.27:
            actor.stalled_until = self.clock() + self.chance.choice([0.8, 1.2, 2.0]) * TIMEOUT_S
        elif step < 0.6:
            actor.client.beat()
        else:
            self.consume(actor)

    def consume(self, actor: Actor) -> None:
        connected = actor.client.current_offsets()
        for shard in actor.client.partitions():
            if shard not in connected:
                actor.client.connect(shard)
        if actor.batches and self.chance.random() < 0.7:
            batch = actor.batches.pop(0)
            actor.client.confirm(batch, persist=self.chance.random() < 0.5)
        elif connected:
            shard = self.chance.choice(sorted(connected))
            batch = actor.client.poll(shard, records_max=self.chance.randint(1, 5))
            if batch is not None:
                actor.batches.append(batch)

    def check(self) -> None:
        """At most one client believes to hold a shard, by its own memory and clock alone.

        The exceptions: a hand-over whose deadline passed, where the holder is only fenced; and
        one whose reply was lost, where the holder has stopped, and will ask again.
        """
        for shard in self.shards:
            believers = [
                name
                for name, actor in self.actors.items()
                if actor.client._member.holds(shard)
                and not getattr(actor.client._open.get(shard), "leaving", False)
            ]
            assert len(believers) <= 1 or self.store.statements["complete_transfer"], believers
        for row in self.store.snapshot(KEY).shards:
            assert int(row.check_point or 0) == self.store.saved.get(row.shard, 0)

    def run(self) -> None:
        self.attempt(lambda: self.join("a"))
        for _ in range(STEPS):
            self.attempt(self.act)
            self.check()

    def attempt(self, action: Callable[[], None]) -> None:
        with suppress(NORMAL):
            action()

    def heal(self) -> None:
        """Stop faults: every client beats in time, and opens the shards that it gets."""
        self.store.fault_rate = 0.0
        for actor in self.actors.values():
            actor.stalled_until = 0.0
        while not self.actors:
            self.clock.pass_s(TIMEOUT_S + 1)
            self.attempt(lambda: self.join("z"))
        for _ in range(40):
            self.clock.pass_s(BEAT_S)
            for actor in self.actors.values():
                self.attempt(actor.client.beat)
                self.attempt(lambda actor=actor: self.settle(actor))
            self.check()

    def settle(self, actor: Actor) -> None:
        for batch in actor.batches:
            self.attempt(lambda batch=batch: actor.client.confirm(batch))
        actor.batches.clear()
        for shard in actor.client.partitions():
            if shard not in actor.client.current_offsets():
                self.attempt(lambda shard=shard: actor.client.connect(shard))
            self.attempt(lambda shard=shard: self.drain(actor, shard))

    def drain(self, actor: Actor, shard: ShardId) -> None:
        batch = actor.client.poll(shard, records_max=RECORDS)
        if batch is not None:
            actor.client.confirm(batch)


@pytest.mark.parametrize("seeds", [range(start, start + 20) for start in range(0, 100, 20)])
def test_random_histories_keep_the_promises_and_settle(seeds: range):
    for seed in seeds:
        history = History(seed)
        history.run()
        history.heal()
        counts = [len(actor.client.partitions()) for actor in history.actors.values()]
        assert sum(counts) == len(history.shards), f"seed {seed}: a shard has no client"
        assert max(counts) - min(counts) <= 1, f"seed {seed}: {counts}"
        for actor in history.actors.values():
            history.attempt(actor.client.shutdown)
        rows = history.store.snapshot(KEY).shards
        assert {row.check_point for row in rows} == {str(RECORDS)}, f"seed {seed}"
        assert verify(history.store, KEY) == [], f"seed {seed}"
