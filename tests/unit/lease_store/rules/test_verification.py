"""Verification: silent about a true history, and loud about each planted lie."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import pytest

from dagster_leasehold.lease_store.group_rows import Group, Node, Snapshot
from dagster_leasehold.lease_store.identifiers import GroupKey, NodeName, ShardId
from dagster_leasehold.lease_store.journal_rows import Gap, JournalEntry
from dagster_leasehold.lease_store.ledger_rows import (
    Batch,
    BatchCommit,
    BatchState,
    BatchStatistics,
    DataFile,
    Intent,
)
from dagster_leasehold.lease_store.memory_store import MemoryStore
from dagster_leasehold.lease_store.outcomes import Changed, Opened
from dagster_leasehold.lease_store.rules.states import ShardState
from dagster_leasehold.lease_store.rules.verification import Violation, verify
from dagster_leasehold.lease_store.shard_rows import ShardLease, ShardListing, Tenure
from tests.histories import check_history

KEY = GroupKey.parse("group", "stream")
A = NodeName("node-a")
PARENT, CHILD, OTHER = ShardId("0"), ShardId("1"), ShardId("2")


@dataclass
class History:
    """The rows of a group as a store has them, open to being falsified."""

    shards: list[ShardLease]
    journal: list[JournalEntry]
    batches: list[Batch]
    gaps: list[Gap]
    ordered: bool = True

    def check(self) -> list[Violation]:
        return check_history(
            self.shards, self.journal, self.batches, self.gaps, ordered=self.ordered
        )

    def batch(self, shard: ShardId, sequence: int) -> int:
        return next(
            place
            for place, batch in enumerate(self.batches)
            if (batch.shard, batch.sequence) == (shard, sequence)
        )

    def entry(self, kind: str, shard: ShardId, nth: int = 0) -> int:
        places = [
            place
            for place, entry in enumerate(self.journal)
            if entry.kind == kind and entry.shard == shard
        ]
        return places[nth]

    def change_batch(self, place: int, **fields: object) -> None:
        self.batches[place] = replace(self.batches[place], **fields)

    def change_entry(self, place: int, **fields: object) -> None:
        self.journal[place] = replace(self.journal[place], **fields)

    def change_shard(self, shard: ShardId, **fields: object) -> None:
        self.shards = [
            replace(lease, **fields) if lease.shard == shard else lease for lease in self.shards
        ]


def opened(store: MemoryStore, shard: ShardId, run: str) -> Tenure:
    row = next(lease for lease in store.snapshot(KEY).shards if lease.shard == shard)
    if row.state is ShardState.NOT_ALLOC:
        store.claim(KEY, {shard: (A, row.lease_id)}, observer="test", reason="test")
    outcome = store.open_tenure(KEY, shard, A, run)
    assert isinstance(outcome, Opened)
    return outcome.tenure


def commit(
    store: MemoryStore, tenure: Tenure, sequence: int, start: int, end: int, *, last: bool = False
) -> None:
    bounds = {"sequence": sequence, "start": str(start), "end": str(end)}
    store.record_intents([Intent(tenure, **bounds)])
    attempt = f"{tenure.shard}.{sequence}-{tenure.run}"
    outcome = store.commit(
        [
            BatchCommit(
                tenure,
                **bounds,
                attempt=attempt,
                files=(DataFile(f"{attempt}/part.parquet", end - start, 100),),
                statistics=BatchStatistics(records=end - start),
                finished=last,
            )
        ]
    )
    assert isinstance(outcome[tenure.shard], Changed)


def true_store() -> MemoryStore:
    """A parent consumed by two runs until it was over, a child after it, a force, a gap."""
    store = MemoryStore()
    store.create_group(Group(KEY))
    store.register(KEY, Node(A, 0, "first"), observer="test")
    listing = [
        ShardListing(PARENT, read_only=True),
        ShardListing(CHILD, parents=(PARENT,)),
        ShardListing(OTHER),
    ]
    store.sync_shards(KEY, listing, observer="test")

    first = opened(store, PARENT, "run-1")
    commit(store, first, 0, 0, 10)
    commit(store, first, 1, 10, 20)
    store.close_tenure(first, reason="test")
    second = opened(store, PARENT, "run-2")
    commit(store, second, 2, 20, 30, last=True)

    child = opened(store, CHILD, "run-3")
    commit(store, child, 0, 0, 5)
    commit(store, child, 1, 5, 9)

    other = opened(store, OTHER, "run-4")
    commit(store, other, 0, 0, 10)
    store.record_gap(other, start="10", end="15", reason="retention removed them")
    commit(store, other, 1, 15, 20)
    store.force_checkpoint(KEY, OTHER, "10", observer="operator", reason="read again")
    again = opened(store, OTHER, "run-5")
    store.record_gap(again, start="10", end="15", reason="retention removed them")
    commit(store, again, 2, 15, 22)
    store.force_checkpoint(KEY, OTHER, "30", observer="operator", reason="skip")
    commit(store, opened(store, OTHER, "run-6"), 3, 30, 35)
    return store


def true_history(store: MemoryStore | None = None) -> History:
    store = store or true_store()
    snapshot: Snapshot = store.snapshot(KEY)
    return History(
        list(snapshot.shards),
        list(store.journal(KEY)),
        store.batches(KEY, state=None),
        store.gaps(KEY),
    )


def test_a_true_history_proves_the_promises() -> None:
    store = true_store()
    assert true_history(store).check() == []
    assert verify(store, KEY) == []


def second_tenure_before_the_first_ended(history: History) -> None:
    del history.journal[history.entry("close", PARENT)]


def epoch_used_twice(history: History) -> None:
    history.change_entry(history.entry("open", PARENT, 1), epoch=1)
    history.change_batch(history.batch(PARENT, 2), epoch=1)


def row_ahead_of_the_journal(history: History) -> None:
    history.change_shard(CHILD, consumer_epoch=7)


def child_before_its_parent(history: History) -> None:
    over = next(
        place for place, entry in enumerate(history.journal) if entry.to_state is ShardState.OVER
    )
    history.change_entry(over, sequence=10_000)


def gap_in_the_ledger(history: History) -> None:
    history.change_batch(history.batch(PARENT, 1), start="11")


def overlap_in_the_ledger(history: History) -> None:
    history.change_batch(history.batch(PARENT, 1), start="9")


def missing_batch(history: History) -> None:
    del history.batches[history.batch(PARENT, 1)]


def repeated_batch(history: History) -> None:
    again = replace(history.batches[history.batch(PARENT, 1)], files=())
    history.batches.append(again)


def gap_that_was_not_recorded(history: History) -> None:
    history.gaps.clear()


def force_that_was_not_recorded(history: History) -> None:
    del history.journal[history.entry("force", OTHER, 1)]


def withdrawal_that_was_not_recorded(history: History) -> None:
    del history.journal[history.entry("force", OTHER)]


def withdrawal_before_the_forced_checkpoint(history: History) -> None:
    history.change_entry(history.entry("force", OTHER), check_point="16")


def withdrawal_that_was_undone(history: History) -> None:
    history.change_batch(history.batch(OTHER, 1), state=BatchState.COMMITTED)


def checkpoint_moved_back(history: History) -> None:
    history.change_shard(CHILD, check_point="5")


def checkpoint_moved_ahead(history: History) -> None:
    history.change_shard(CHILD, check_point="50")


def checkpoint_lost(history: History) -> None:
    history.change_shard(CHILD, check_point=None)


def batch_of_an_unknown_run(history: History) -> None:
    history.change_batch(history.batch(CHILD, 1), run="run-666")


def batch_of_a_stale_epoch(history: History) -> None:
    history.change_batch(history.batch(PARENT, 2), epoch=1, run="run-1")
    history.change_batch(history.batch(PARENT, 1), epoch=2, run="run-2")


def batch_of_another_node(history: History) -> None:
    history.change_batch(history.batch(CHILD, 1), holder=NodeName("node-b"))


def file_listed_twice(history: History) -> None:
    files = history.batches[history.batch(CHILD, 0)].files
    history.change_batch(history.batch(OTHER, 0), files=files)


def file_beside_the_merged_one(history: History) -> None:
    first = history.batch(CHILD, 0)
    (file,) = history.batches[first].files
    history.change_batch(first, files=(replace(file, batches=2),))


def merged_file_of_batches_that_are_not_there(history: History) -> None:
    last = history.batch(PARENT, 2)
    (file,) = history.batches[last].files
    history.change_batch(last, files=(replace(file, batches=2),))


@pytest.mark.parametrize(
    ("plant", "rule", "shard"),
    [
        (second_tenure_before_the_first_ended, "overlap", PARENT),
        (epoch_used_twice, "epoch", PARENT),
        (row_ahead_of_the_journal, "epoch", CHILD),
        (child_before_its_parent, "order", CHILD),
        (gap_in_the_ledger, "ledger", PARENT),
        (overlap_in_the_ledger, "ledger", PARENT),
        (missing_batch, "ledger", PARENT),
        (repeated_batch, "ledger", PARENT),
        (gap_that_was_not_recorded, "ledger", OTHER),
        (force_that_was_not_recorded, "ledger", OTHER),
        (withdrawal_that_was_not_recorded, "withdrawn", OTHER),
        (withdrawal_before_the_forced_checkpoint, "withdrawn", OTHER),
        (withdrawal_that_was_undone, "ledger", OTHER),
        (checkpoint_moved_back, "checkpoint", CHILD),
        (checkpoint_moved_ahead, "checkpoint", CHILD),
        (checkpoint_lost, "checkpoint", CHILD),
        (batch_of_an_unknown_run, "fence", CHILD),
        (batch_of_a_stale_epoch, "fence", PARENT),
        (batch_of_another_node, "fence", CHILD),
        (file_listed_twice, "files", OTHER),
        (file_beside_the_merged_one, "files", CHILD),
        (merged_file_of_batches_that_are_not_there, "files", PARENT),
    ],
)
def test_each_planted_violation_is_found(
    plant: Callable[[History], None], rule: str, shard: ShardId
) -> None:
    history = true_history()
    plant(history)
    violations = history.check()
    assert (rule, shard) in {(violation.rule, violation.shard) for violation in violations}
    assert all(str(violation).startswith(f"{violation.rule}: shard") for violation in violations)
    assert {violation.shard for violation in violations} == {shard}


def test_a_merged_file_is_no_violation() -> None:
    history = true_history()
    first, second = history.batch(CHILD, 0), history.batch(CHILD, 1)
    (file,) = history.batches[first].files
    bad = DataFile("bad", 1, 10, quarantine=True)
    history.change_batch(first, files=(replace(file, batches=2),))
    history.change_batch(second, files=(bad,))
    assert history.check() == [], "quarantined records lie in files of their own"


def test_the_message_counts_missing_and_duplicated_records() -> None:
    history = true_history()
    missing_batch(history)
    assert str(history.check()[0]) == (
        "ledger: shard 0: batch 2 starts at 20, but batch 0 ended at 10: 10 are missing, and no "
        "gap is recorded"
    )
    history = true_history()
    overlap_in_the_ledger(history)
    assert "1 are committed twice, and no forced checkpoint" in str(history.check()[0])
    history = true_history()
    history.change_batch(history.batch(CHILD, 1), start="later")
    assert "they cannot be ordered" in str(history.check()[-1])
    history = true_history()
    history.change_batch(history.batch(CHILD, 1), start="5.1")
    assert "records are missing, and no gap is recorded" in str(history.check()[0])


def test_an_unordered_group_needs_no_order() -> None:
    history = true_history()
    child_before_its_parent(history)
    history.ordered = False
    assert history.check() == []


def test_order_is_checked_from_the_time_when_the_group_became_ordered() -> None:
    store = MemoryStore()
    store.create_group(Group(KEY))
    store.register(KEY, Node(A, 0, "first"), observer="test")
    store.sync_shards(
        KEY, [ShardListing(PARENT), ShardListing(CHILD, parents=(PARENT,))], observer="test"
    )
    unordered = store.update_group(replace(store.pulse(KEY).group, ordered=False), observer="test")
    opened(store, CHILD, "run-1")
    assert verify(store, KEY) == []
    store.update_group(replace(unordered, ordered=True), observer="test")
    assert verify(store, KEY) == [], "what ran before continues"
    grandchild = ShardListing(OTHER, parents=(CHILD,))
    store.sync_shards(KEY, [grandchild], observer="test")
    history = true_history(store)
    seen = history.entry("edge", OTHER)
    history.change_entry(seen, to_state=ShardState.NOT_ALLOC)
    assert [violation.rule for violation in history.check()] == ["order"]


def test_a_client_without_a_ledger_can_keep_its_checkpoint() -> None:
    store = MemoryStore()
    store.create_group(Group(KEY))
    store.register(KEY, Node(A, 0, "first"), observer="test")
    store.sync_shards(KEY, [ShardListing(OTHER)], observer="test")
    store.save_checkpoint(opened(store, OTHER, "run-1"), "77")
    assert verify(store, KEY) == []


def test_commits_during_verify_are_no_violation() -> None:
    """Every reading finds the shard further on than the last."""
    store = true_store()
    tenure = Tenure(KEY, CHILD, A, 1, "run-3")
    reads = iter(range(2, 100))
    original = store.each_batch

    def growing(*args: object, **fields: object) -> Iterator[Batch]:
        batches = original(*args, **fields)
        sequence = next(reads)
        commit(store, tenure, sequence, 9 + sequence - 2, 10 + sequence - 2)
        return batches

    store.each_batch = growing
    assert verify(store, KEY) == []
