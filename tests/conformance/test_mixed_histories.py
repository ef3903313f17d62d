"""Runs, clients and operators in one group: no record is committed twice.

Random histories of one shard, with cursors like those of each source. After every step, the ranges
of the ledger are compared by the positions of their cursors in the log, which the test knows and
the store does not. Committed ranges never overlap, and earlier ones overlap only across a recorded
force. `verify` has to agree, and to find each overlap that is inserted by hand afterwards.
"""

from __future__ import annotations

import inspect
import itertools
import random
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cache
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dagster_leasehold.lease_store.client import GroupMember
from dagster_leasehold.lease_store.errors import LeaseholdError
from dagster_leasehold.lease_store.group_rows import AssignmentMode, Node
from dagster_leasehold.lease_store.identifiers import GroupKey, NodeName, ShardId
from dagster_leasehold.lease_store.journal_rows import Gap, JournalEntry
from dagster_leasehold.lease_store.ledger_rows import Batch, BatchState, DataFile
from dagster_leasehold.lease_store.memory_store import MemoryStore
from dagster_leasehold.lease_store.outcomes import Opened
from dagster_leasehold.lease_store.rules import history_proof, verification
from dagster_leasehold.lease_store.rules.verification import verify
from dagster_leasehold.lease_store.shard_rows import ShardListing, Tenure
from dagster_leasehold.lease_store.store import LeaseStore
from tests.conformance.conftest import on_databases
from tests.conformance.world import NOON, a_commit
from tests.conformance.world import World as Verbs
from tests.histories import check_history

pytestmark = pytest.mark.long

RUNS, CLIENT, X = NodeName("runs"), NodeName("client"), ShardId("x")
STEPS = 80
LOGS: dict[str, list[str]] = {
    "decimals": [str(number) for number in range(120)],
    "groups": [f"{n // 3}.{n % 3}" if n % 3 else str(n // 3) for n in range(120)],
    "numbers": [
        "start+1767225600",
        *(f"{n // 4}{('', '.1', '.10', '+1767225600')[n % 4]}" for n in range(118)),
        "gone",
    ],
}
"""The cursors of a log, in its order: of a local log or Kafka, of LogHub, and of Kinesis."""


@dataclass
class History:
    """One history, played on a store; the same seed does the same as long as answers agree."""

    store: LeaseStore
    key: GroupKey
    log: Sequence[str]
    chance: random.Random
    answers: list[Any] = field(default_factory=list[Any])
    tenures: list[Tenure] = field(default_factory=list[Tenure])

    def __post_init__(self) -> None:
        self.world = Verbs(self.store, self.key)
        self.world.group(assignment=AssignmentMode.PINNED)
        self.world.join(RUNS)
        self.world.add(ShardListing(X))
        self.client = GroupMember(
            self.store,
            self.key,
            Node(CLIENT, 0, "", pinned={}),
            incarnation="client-1",
            clock=lambda: 0.0,
            pause=lambda _: None,
        )
        self.client.register()
        self.world.claim(RUNS, X)
        self.runs = itertools.count()

    def play(self, steps: int, after: Callable[[], None] = lambda: None) -> None:
        for _ in range(steps):
            verbs = (*[self.run] * 2, *[self.consume] * 6, self.plain, self.operate)
            verb = self.chance.choice(verbs)
            try:
                answer: Any = verb()
            except LeaseholdError as error:
                answer = (type(error).__name__, str(error))
            self.answers.append((verb.__name__, answer))
            after()

    def _place(self) -> int:
        row = self.world.shard(X)
        return 0 if row.check_point is None else self.log.index(row.check_point)

    def _cursor(self, *, back: float) -> str:
        """A cursor ahead of the checkpoint, or with some chance one before it."""
        place = self._place()
        if self.chance.random() < back:
            return self.log[self.chance.randint(0, place)]
        return self.log[min(place + self.chance.randint(0, 4), len(self.log) - 1)]

    def _given_to(self, node: NodeName) -> None:
        if self.world.shard(X).lease_owner != node:
            self.world.transfer(X, node)
        row = self.world.shard(X)
        if row.consumer_owner != node and row.consumer_run:
            # Its holder is asked to stop, and stops.
            self.store.complete_transfer(
                self.key, X, row.lease_id, observer="test", reason="overdue"
            )

    def run(self) -> Any:
        """A run opens the shard, and continues where another one stopped."""
        self._given_to(RUNS)
        row = self.world.shard(X)
        opened = self.store.open_tenure(
            self.key, X, RUNS, f"run-{next(self.runs)}", replaces=row.consumer_run or None
        )
        if isinstance(opened, Opened):
            self.tenures.append(opened.tenure)
            if opened.intent is not None and self.chance.random() < 0.8:
                intent = opened.intent
                bounds = (intent.start, intent.end, intent.sequence)
                files = (DataFile(f"{opened.tenure.run}/{intent.sequence}", 5, 50),)
                return self.world.consume(opened.tenure, *bounds, files=files)
        return opened

    def consume(self) -> Any:
        """A run, perhaps one that lost the shard, intends and mostly commits its next batch."""
        if not self.tenures:
            return None
        tenure = self.chance.choice(self.tenures[-2:])
        rows = self.store.batches(self.key, X, state=None)
        number = rows[-1].last + 1 if rows else 0
        start = self.world.shard(X).check_point or self.chance.choice(self.log[:3])
        end = self._cursor(back=0.3)
        answer = self.world.intend(tenure, start, end, number)
        if self.chance.random() < 0.8:
            file = DataFile(f"{tenure.run}/{number}", 5, 50)
            commit = a_commit(tenure, start, end, number, files=(file,))
            return (answer, self.store.commit([commit]))
        return answer

    def plain(self) -> Any:
        """A client opens the shard, saves some checkpoints or records a gap, and releases it."""
        self._given_to(CLIENT)
        opened = self.client.open(X)
        if not isinstance(opened, Opened):
            return opened
        try:
            for _ in range(self.chance.randint(1, 3)):
                cursor = self._cursor(back=0.5)
                if self.chance.random() < 0.5:
                    self.client.save_checkpoint(X, cursor, persist=True)
                else:
                    start = self.world.shard(X).check_point or self.chance.choice(self.log[:3])
                    self.client.record_gap(X, start=start, end=cursor, reason="r")
        finally:
            with suppress(LeaseholdError):
                self.client.release(X)
        return opened

    def operate(self) -> Any:
        """An operator forces the checkpoint, or a run starts the shard where it is pinned."""
        borders = [batch.start for batch in self.store.batches(self.key, X)]
        cursor = self.chance.choice([*borders[-4:], *(self._cursor(back=0.7) for _ in range(2))])
        if self.chance.random() < 0.3:
            row = self.world.shard(X)
            start = self.chance.choice((None, *borders[-2:]))
            return self.store.bootstrap(
                self.key, X, RUNS, cursor, run=row.consumer_run or "run", start=start
            )
        return self.store.force_checkpoint(self.key, X, cursor, observer="ops", reason="again")


def doubled(history: History) -> list[str]:
    """Records that were committed twice, without a force between: the invariant I16."""
    rows = history.store.batches(history.key, X, state=None)
    forces = [e.epoch for e in history.store.journal(history.key, shard=X) if e.kind == "force"]
    read = [row for row in rows if row.state in (BatchState.COMMITTED, BatchState.WITHDRAWN)]
    pairs: list[str] = []
    for one, other in itertools.combinations(read, 2):
        (start, end), (next_start, next_end) = (
            (history.log.index(row.start), history.log.index(row.end)) for row in (one, other)
        )
        if max(start, next_start) >= min(end, next_end):
            continue
        both = one.state is other.state is BatchState.COMMITTED
        if both or not any(one.epoch < epoch < other.epoch for epoch in forces):
            pairs.append(f"{one.sequence} and {other.sequence}")
    return pairs


def played(store: LeaseStore, log: str, seed: int, key: str = "stream") -> History:
    """Play a whole history, and check it after each step."""
    history = History(store, GroupKey.parse("group", key), LOGS[log], random.Random(seed))
    before = [(0, 0)]

    def look() -> None:
        assert doubled(history) == [], f"seed {seed}"
        row = history.world.shard(X)
        forces = sum(e.kind == "force" for e in history.world.journal(X))
        place = history._place()
        assert place >= before[-1][0] or forces > before[-1][1], f"seed {seed}: it went back"
        before.append((place, forces))
        assert row.check_point is None or row.check_point in history.log

    history.play(STEPS, look)
    assert verify(store, history.key) == [], f"seed {seed}"
    return history


@cache
def answers_of_the_model(log: str, seed: int) -> list[Any]:
    return played(MemoryStore(), log, seed, f"mixed-{log}-{seed}").answers


@on_databases
@pytest.mark.parametrize("log", LOGS)
@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(seed, marks=pytest.mark.release) for seed in (1, 2, 3))]
)
def test_every_store_commits_each_record_once(store: LeaseStore, log: str, seed: int) -> None:
    key = f"mixed-{log}-{seed}"
    assert played(store, log, seed, key).answers == answers_of_the_model(log, seed)


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 100_000), log=st.sampled_from(list(LOGS)))
def test_runs_and_clients_commit_each_record_once(seed: int, log: str) -> None:
    played(MemoryStore(), log, seed)


def test_the_histories_reach_every_refusal() -> None:
    """The invariant is worth as much as the histories try to break it."""
    text = "".join(str(answers_of_the_model(log, seed)) for log in LOGS for seed in range(4))
    for sentence in ("does not go back to", "before its start", "is inside batch"):
        assert sentence in text, sentence


# -- overlaps that are put in by hand ---------------------------------------------------------


@dataclass
class Rows:
    """The rows of a history, open to being falsified; batches are the committed ones, in order."""

    history: History
    batches: list[Batch]
    journal: list[JournalEntry]
    gaps: list[Gap]

    def earlier(self, cursor: str, by: int = 1) -> str:
        return self.history.log[max(self.history.log.index(cursor) - by, 0)]

    def force_in_place_of(self, run: str, check_point: str) -> None:
        """Put a forced checkpoint where a run had the shard open and did nothing."""
        for place, entry in reversed([*enumerate(self.journal)]):
            if entry.run == run and entry.kind == "open":
                self.journal[place] = replace(entry, kind="force", check_point=check_point)
            elif entry.run == run:
                del self.journal[place]

    def verdict(self) -> set[str]:
        rows = self.history.store.snapshot(self.history.key).shards
        violations = check_history(rows, self.journal, self.batches, self.gaps, ordered=True)
        return {violation.rule for violation in violations}


def start_moved_back(rows: Rows) -> None:
    """The last batch begins before the end of the one before it."""
    last = rows.batches[-1]
    rows.batches[-1] = replace(last, start=rows.earlier(last.start))


def gap_that_leads_back(rows: Rows) -> None:
    """A client's backward save was taken for a gap, and the next run began there."""
    last = rows.batches[-1]
    back = rows.earlier(last.start)
    rows.gaps.append(Gap(X, last.start, back, "read by a client", NOON))
    rows.batches[-1] = replace(last, start=back)


def gap_back_behind_the_last_batch(rows: Rows) -> None:
    """The same before the next run, while the checkpoint is where the ledger ends."""
    end = rows.batches[-1].end
    rows.gaps.append(Gap(X, end, rows.earlier(end), "read by a client", NOON, skipped=False))


def batch_that_ends_before_it_starts(rows: Rows) -> None:
    """A batch leads back, and the next one reads its range again."""
    last = rows.batches[-1]
    back = rows.earlier(last.start)
    led = replace(last, end=back, files=())
    after = replace(last, sequence=last.sequence + 1, start=back, files=())
    rows.batches[-1:] = [led, after]


def force_that_withdrew_nothing(rows: Rows) -> None:
    """A checkpoint was forced back between the batches of two runs, and nothing was withdrawn."""
    back = rows.earlier(rows.batches[-2].start)
    rows.force_in_place_of("first-0", back)
    rows.batches[-2] = replace(rows.batches[-2], start=back)


def force_after_both(rows: Rows) -> None:
    """A force that came later than both batches excuses nothing between them."""
    back = rows.earlier(rows.batches[-2].start)
    rows.force_in_place_of("second-0", rows.batches[-1].end)
    rows.batches[-2] = replace(rows.batches[-2], start=back)


def batch_committed_twice(rows: Rows) -> None:
    """The same range again, in a row of the same number."""
    last = rows.batches[-1]
    rows.batches.append(replace(last, start=last.end, files=()))


OVERLAPS = (
    start_moved_back,
    gap_that_leads_back,
    gap_back_behind_the_last_batch,
    batch_that_ends_before_it_starts,
    force_that_withdrew_nothing,
    force_after_both,
    batch_committed_twice,
)


def steady(log: str, seed: int) -> History:
    """A history with a force, and at its end four batches of two runs, without anything between."""
    chance = random.Random(seed)
    history = History(MemoryStore(), GroupKey.parse("group", "stream"), LOGS[log], chance)
    place = chance.randint(2, 4)
    history.store.force_checkpoint(history.key, X, LOGS[log][place], observer="ops", reason="r")
    number = 0
    for run in ("first", "second"):
        tenure = history.world.open(RUNS, X, run).tenure
        for _ in range(2):
            end = place + chance.randint(3, 6)
            cursors = (LOGS[log][place], LOGS[log][end])
            file = DataFile(f"{run}/{number}", 5, 50)
            history.world.consume(tenure, *cursors, number, files=(file,))
            place, number = end, number + 1
        history.store.close_tenure(tenure, reason="done")
        empty = history.world.open(RUNS, X, f"{run}-0").tenure
        history.store.close_tenure(empty, reason="nothing to read")
    return history


def falsified(history: History, overlap: Callable[[Rows], None]) -> Rows:
    store, key = history.store, history.key
    rows = Rows(history, store.batches(key, X), store.journal(key), store.gaps(key))
    assert rows.verdict() == set()
    overlap(rows)
    return rows


@pytest.mark.parametrize("overlap", OVERLAPS, ids=lambda overlap: overlap.__name__)
@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 100_000), log=st.sampled_from(list(LOGS)))
def test_verify_finds_an_overlap_that_was_inserted_by_hand(
    overlap: Callable[[Rows], None], seed: int, log: str
) -> None:
    assert "ledger" in falsified(steady(log, seed), overlap).verdict()


MUTANTS = {
    "a batch may end before it starts": ("if not in_order(batch.start, batch.end):", "if False:"),
    "a gap may lead back": ("if not in_order(start, end):", "if False:"),
    "a batch may start anywhere": (
        "if batch.start not in self._continuations(former, batch.epoch):",
        "if False:",
    ),
    "a force may lead back": (" and in_order(former.cursor, force.check_point)", ""),
    "a number may come twice": ("if batch.sequence <= former.number:", "if False:"),
}
"""A part of the rule, and its replacement in a mutant."""


@pytest.mark.parametrize("mutant", MUTANTS)
def test_each_part_of_the_rule_is_needed_to_find_overlaps(
    mutant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, (part, instead) = inspect.getsource(history_proof), MUTANTS[mutant]
    assert source.count(part) == 1
    module = ModuleType(f"{history_proof.__name__}_mutant")
    monkeypatch.setitem(sys.modules, module.__name__, module)  # dataclasses look it up
    exec(compile(source.replace(part, instead), module.__name__, "exec"), module.__dict__)
    monkeypatch.setattr(verification, "history_proof", module)
    histories = [(steady(log, seed), each) for log in LOGS for seed in (1, 2) for each in OVERLAPS]
    assert any(not falsified(history, each).verdict() for history, each in histories)
