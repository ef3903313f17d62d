"""The same random histories on the model and on a database: equal outcomes, equal rows.

A history is a seeded sequence of verbs with mostly plausible arguments: stale counters, ended
tenures and wrong cursors included. A failing case prints its seed, and replays exactly.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from functools import cache
from typing import Any

import pytest

from dagster_leasehold.lease_store.errors import LeaseholdError
from dagster_leasehold.lease_store.group_rows import Group, Node
from dagster_leasehold.lease_store.identifiers import GroupKey, NodeName, ShardId
from dagster_leasehold.lease_store.journal_rows import Gap
from dagster_leasehold.lease_store.ledger_rows import DataFile, Intent
from dagster_leasehold.lease_store.memory_store import MemoryStore
from dagster_leasehold.lease_store.outcomes import Opened
from dagster_leasehold.lease_store.rules.reopening import Reopening
from dagster_leasehold.lease_store.shard_rows import ShardListing, Tenure
from dagster_leasehold.lease_store.store import LeaseStore
from tests.conformance.conftest import on_databases
from tests.conformance.pictures import Picture
from tests.conformance.publishing_player import PublishingPlayer
from tests.conformance.world import a_commit

pytestmark = pytest.mark.long

HISTORIES = (60, 73, 163, 173, 273, 311, 320, 333)  # together they reach everything
STEPS = 200
NODES = [NodeName(name) for name in "abc"]
SHARDS = [ShardId(name) for name in ("s0", "s1", "s2", "S2", "m")]
EPOCH = datetime(2026, 1, 1, tzinfo=UTC)


class Player:
    """Plays one history; two players with the same seed do the same as long as answers agree."""

    def __init__(self, store: LeaseStore, key: GroupKey, seed: int) -> None:
        self.store = store
        self.key = key
        self.random = random.Random(seed)
        self.tenures: list[Tenure] = []
        self.intended: dict[Tenure, Intent] = {}
        self.cursor = 0
        self.publisher = PublishingPlayer(store, key, self.random)
        self.picture = Picture(store, key, tuple(NODES))
        self.parents = {SHARDS[4]: (SHARDS[0], SHARDS[1])}

    def play(self, steps: int) -> list[Any]:
        self.store.create_group(Group(self.key))
        for node in NODES[:2]:
            self.store.register(self.key, Node(node, 0, f"{node}-1"), observer="t")
        return [self._answer(self.random.choice(self._verbs())) for _ in range(steps)]

    def _answer(self, verb: Callable[[], Any]) -> Any:
        try:
            return (verb.__name__, verb())
        except (LeaseholdError, ValueError) as error:
            return (verb.__name__, type(error).__name__, str(error))
        finally:
            self.picture.check()

    def _verbs(self) -> list[Callable[[], Any]]:
        often = [self.claim, self.open, self.intend, self.commit]
        seldom = [
            self.sync, *[self.register] * 5, *[self.begin] * 3, self.beat, self.leave, self.evict,
            self.cancel, self.complete, *[self.force] * 3, self.close, self.announce,
            self.save, self.finish, self.gap, self.orphans, self.order, self.review, self.progress,
            self.deliver, self.acknowledge, self.publisher.take_lock,
            *[self.publisher.publish] * 4, *[self.publisher.rewrite] * 2,
        ]  # fmt: skip
        return often * 3 + seldom

    # -- choices ------------------------------------------------------------------------------

    def _node(self) -> NodeName:
        """Return mostly a node with an incarnation."""
        members = [node.name for node in self.store.pulse(self.key).nodes if node.member]
        likely = members if members and self.random.random() < 0.85 else NODES
        return self.random.choice(likely)

    def _shard(self, *states: str) -> ShardId:
        """Mostly one in the states that the verb is meant for."""
        rows = self.store.snapshot(self.key).shards
        fitting = [row.shard for row in rows if row.state in states]
        likely = fitting if fitting and self.random.random() < 0.85 else SHARDS
        return self.random.choice(likely)

    def _seen(self, shard: ShardId) -> int:
        rows = {row.shard: row.lease_id for row in self.store.snapshot(self.key).shards}
        return rows.get(shard, 0) - (self.random.random() < 0.15)

    def _incarnation(self, node: NodeName) -> str:
        return f"{node}-{self.random.choice((1, 1, 1, 1, 1, 2))}"

    def _tenure(self) -> Tenure:
        if not self.tenures or self.random.random() < 0.03:
            return Tenure(self.key, self._shard(), self._node(), 1, "run-0")
        return self.random.choice(self.tenures[-6:])

    def _check_point(self, shard: ShardId) -> str:
        rows = {row.shard: row.check_point for row in self.store.snapshot(self.key).shards}
        return rows.get(shard) or "0"

    def _ahead(self) -> str:
        """Return a new cursor, or seldom one to which a checkpoint went back."""
        self.cursor += 1
        return str(self.cursor if self.random.random() < 0.9 else self.cursor // 2)

    # -- verbs --------------------------------------------------------------------------------

    def sync(self) -> Any:
        chosen = self.random.sample(SHARDS, self.random.randint(1, 5))
        flag = self.random.random() < 0.2
        listing = [ShardListing(s, self.parents.get(s, ()), read_only=flag) for s in chosen]
        return self.store.sync_shards(self.key, listing, observer="t")

    def register(self) -> Any:
        node = self._node()
        counters = {row.name: row.lease_id for row in self.store.pulse(self.key).nodes}
        displaced = self.random.choice((None, None, None, counters.get(node)))
        accepts = self.random.random() < 0.8
        row = Node(node, 0, self._incarnation(node), accepts_runs=accepts)
        return self.store.register(self.key, row, observer="t", displaced_lease_id=displaced)

    def beat(self) -> Any:
        node = self._node()
        return self.store.beat(self.key, node, self._incarnation(node))

    def leave(self) -> Any:
        node = self._node()
        return self.store.leave(self.key, node, self._incarnation(node))

    def evict(self) -> Any:
        node = self._node()
        counters = {row.name: row.lease_id for row in self.store.pulse(self.key).nodes}
        seen = counters.get(node, 1) - self.random.choice((0, 1, 1))
        return self.store.evict(self.key, node, seen, observer="t", reason="silent")

    def claim(self) -> Any:
        chosen = {self._shard("not_alloc") for _ in range(self.random.randint(1, 3))}
        claims = {shard: (self._node(), self._seen(shard)) for shard in sorted(chosen)}
        return self.store.claim(self.key, claims, observer="t", reason="share")

    def begin(self) -> Any:
        shard = self._shard("already_alloc")
        return self.store.begin_transfer(
            self.key, {shard: (self._node(), self._seen(shard), "balance")}, observer="t"
        )[shard]

    def cancel(self) -> Any:
        shard = self._shard("transfer")
        seen = self._seen(shard)
        return self.store.cancel_transfer(self.key, shard, seen, observer="t", reason="r")

    def complete(self) -> Any:
        shard = self._shard("transfer")
        seen = self._seen(shard)
        return self.store.complete_transfer(self.key, shard, seen, observer="t", reason="late")

    def orphans(self) -> Any:
        return self.store.free_orphans(self.key, observer="t")

    def force(self) -> Any:
        reopen = self.random.choice(list(Reopening))
        shard = self._shard("over", "transfer")
        self.cursor += 1
        borders = [batch.start for batch in self.store.batches(self.key, shard)]
        forward = str(self.cursor)
        cursor = self.random.choice(borders) if borders and self.random.random() < 0.8 else forward
        return self.store.force_checkpoint(
            self.key, shard, cursor, observer="t", reason="r", reopen=reopen
        )

    def open(self) -> Any:
        shard = self._shard("already_alloc", "transfer")
        rows = {row.shard: row for row in self.store.snapshot(self.key).shards}
        row = rows.get(shard)
        node = row.consumer_owner if row and row.consumer_owner else self._node()
        self.cursor += 1
        replaces = row.consumer_run if row and self.random.random() < 0.3 else None
        opened = self.store.open_tenure(
            self.key, shard, node, f"run-{self.cursor}", replaces=replaces
        )
        if isinstance(opened, Opened):
            self.tenures.append(opened.tenure)
        return opened

    def intend(self) -> Any:
        tenure = self._tenure()
        rows = self.store.batches(self.key, tenure.shard, state=None)
        newest = rows[-1] if rows else None
        if newest and newest.state == "intent" and self.random.random() < 0.9:
            intent = Intent(tenure, newest.sequence, newest.start, newest.end)
        else:
            self.cursor += 1
            number = newest.sequence + 1 if newest else 0
            start = self._check_point(tenure.shard)
            if self.random.random() < 0.1:
                start = self.random.choice((str(self.cursor - 1), "elsewhere"))
            intent = Intent(tenure, number, start, str(self.cursor))
        outcome = self.store.record_intents([intent])
        self.intended[tenure] = intent
        return outcome

    def commit(self) -> Any:
        chosen = {t.shard: i for t, i in list(self.intended.items())[-3:]}
        finished = self.random.random() < 0.15
        commits = [
            a_commit(
                i.tenure,
                i.start,
                i.end,
                i.sequence,
                finished=finished,
                files=(DataFile(f"{i.tenure.shard}/{i.end}", 5, 123),),
            )
            for i in chosen.values()
        ]
        return self.store.commit(commits)

    def finish(self) -> Any:
        tenure = self._tenure()
        return self.store.finish_empty(tenure, self._check_point(tenure.shard))

    def close(self) -> Any:
        return self.store.close_tenure(self._tenure(), reason="boundary")

    def announce(self) -> Any:
        return self.store.announce(self._tenure(), handoff_eta_s=self.random.randint(1, 9) / 2)

    def save(self) -> Any:
        return self.store.save_checkpoint(self._tenure(), self._ahead())

    def gap(self) -> Any:
        tenure = self._tenure()
        start = self._check_point(tenure.shard)
        skip = self.random.random() < 0.8
        end = self._ahead()
        return self.store.record_gap(tenure, start=start, end=end, reason="trim", skip=skip)

    def acknowledge(self) -> Any:
        gaps = self.store.gaps(self.key)
        gap = self.random.choice(gaps or [Gap(self._shard(), "0", "1", "r", EPOCH)])
        return self.store.acknowledge_gap(self.key, gap, observer="ops")

    def order(self) -> Any:
        group = self.store.pulse(self.key).group
        changed = replace(
            group, ordered=self.random.random() < 0.6, paused=self.random.random() < 0.05
        )
        return self.store.update_group(changed, observer="ops")

    def review(self) -> Any:
        chosen = {tenure.shard: tenure for tenure in self.tenures[-5:]}
        return self.store.review(list(chosen.values()))

    def progress(self) -> Any:
        return self.store.progress(self.key, [self._node(), self._node()])

    def deliver(self) -> Any:
        pending = self.store.pending_events(self.key)
        self.store.mark_delivered(self.key, [event.sequence for event in pending[:2]])
        return [(event.batch_id, event.payload, event.run) for event in pending]


def rows_of(store: LeaseStore, key: GroupKey) -> dict[str, Any]:
    """All that a group has, without numbers and dates that a database gives out itself."""
    publication = store.publication(key)
    return {
        "snapshot": store.snapshot(key),
        "journal": [replace(entry, sequence=0, at=EPOCH) for entry in store.journal(key)],
        "batches": [
            replace(batch, committed_at=EPOCH if batch.committed_at else None)
            for batch in store.batches(key, state=None)
        ],
        "outbox": [replace(event, sequence=0) for event in store.pending_events(key)],
        "gaps": [replace(gap, at=EPOCH) for gap in store.gaps(key)],
        "publication": publication and replace(publication, at=EPOCH),
        "published": store.published_until(key),
        "changes": [replace(change, sequence=0) for change in store.pending_changes(key)],
    }


@cache
def played(player: type[Player], seed: int) -> tuple[MemoryStore, GroupKey, list[Any]]:
    """Play a history on the model; return it with its answers."""
    model, key = MemoryStore(), GroupKey.parse("group", f"{player.__name__}-{seed}")
    return model, key, player(model, key, seed).play(STEPS)


def assert_like_the_model(store: LeaseStore, player: type[Player], seed: int) -> GroupKey:
    model, key, expected = played(player, seed)
    answers = player(store, key, seed).play(STEPS)
    for step, (wanted, answer) in enumerate(zip(expected, answers, strict=True)):
        assert answer == wanted, f"seed {seed}, step {step}"
    assert rows_of(store, key) == rows_of(model, key)
    return key


@on_databases
@pytest.mark.parametrize("seed", HISTORIES)
def test_a_database_answers_like_the_model(store: LeaseStore, seed: int) -> None:
    assert_like_the_model(store, Player, seed)


def test_histories_reach_every_edge_and_outcome() -> None:
    """The comparison is worth as much as the histories cover."""
    edges: set[int | None] = set()
    kinds: set[str] = set()
    outcomes: set[str] = set()
    for seed in HISTORIES:
        store, key, answers = played(Player, seed)
        outcomes |= {type(answer[1]).__name__ for answer in answers if len(answer) == 2}
        outcomes |= {answer[1] for answer in answers if len(answer) == 3}
        outcomes |= {type(answer[1][0]).__name__ for answer in answers if answer[0] == "publish"}
        edges |= {entry.edge for entry in store.journal(key)}
        kinds |= {entry.kind for entry in store.journal(key)}
    assert edges == {None, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10}
    assert kinds == {
        "edge", "open", "close", "force", "join", "leave", "evict", "resume", "group",
        "gap", "ack", "accept", "rewrite",
    }  # fmt: skip
    assert outcomes >= {
        "Changed", "Stale", "Registered", "NameTaken", "Beaten", "BeatRefused", "Opened",
        "OpenByOther", "NotHeld", "LeaseLost", "IntentConflict", "CheckpointRefused",
        "UnknownShard", "PublishLock", "LockTaken", "Settled", "LockOver", "Unpublished",
    }  # fmt: skip
