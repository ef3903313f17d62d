"""Pruning and expiry in any order do not change the verdict of `verify`.

Random histories, valid ones and some with a planted violation before or after the cut. The
violations are written into the rows of the store in memory, past its operations.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dagster_leasehold.lease_store.group_rows import Node
from dagster_leasehold.lease_store.identifiers import GroupKey, NodeName, ShardId
from dagster_leasehold.lease_store.journal_rows import JournalEntry
from dagster_leasehold.lease_store.ledger_rows import (
    Batch,
    BatchRewrite,
    BatchState,
    DataFile,
    Intent,
    RewriteKind,
)
from dagster_leasehold.lease_store.memory_store import MemoryStore
from dagster_leasehold.lease_store.memory_store.rows_in_memory import ByShard
from dagster_leasehold.lease_store.outcomes import Changed, Opened
from dagster_leasehold.lease_store.rules.verification import verify
from dagster_leasehold.lease_store.shard_rows import ShardLease, ShardListing
from tests.conformance.test_histories import Player
from tests.conformance.world import a_commit

KEY = GroupKey.parse("group", "stream")
FAR = datetime(2200, 1, 1, tzinfo=UTC)
STEPS = 80


def verdict(store: MemoryStore) -> set[tuple[str, object]]:
    return {(violation.rule, violation.shard) for violation in verify(store, KEY)}


@dataclass
class Lied:
    """The rows of the group, to be falsified, and before which batches they are cut."""

    shards: dict[ShardId, ShardLease]
    batches: ByShard[ShardId, Batch]
    journal: ByShard[ShardId | None, JournalEntry]
    cut: dict[ShardId | None, int]


def rows_of(store: MemoryStore, cut: dict[ShardId | None, int] | None = None) -> Lied:
    rows = store._groups[KEY]
    return Lied(rows.shards, rows.batches, rows.journal, cut or {})


def cut_of(store: MemoryStore) -> dict[ShardId | None, int]:
    return {summary.shard: summary.proven_until for summary in store.summaries(KEY)}


def compact(store: MemoryStore, chance: random.Random) -> None:
    """Merge the output of some consecutive batches of a shard, as compaction does."""
    shards = sorted({batch.shard for batch in store.batches(KEY)})
    if not shards:
        return
    shard = chance.choice(shards)
    batches = store.batches(KEY, shard)
    first = chance.randrange(len(batches))
    chosen = batches[first : first + chance.randint(1, 6)]
    # Only whole units: the batches of a merged file are replaced together.
    if any(file.batches > 1 for batch in batches for file in batch.files):
        return
    run = f"compaction-{chance.random()}"
    if not isinstance(store.claim_rewrite(KEY, shard, run, RewriteKind.COMPACTION), Changed):
        return
    file = DataFile(f"merged/{run}", 1, 1, batches=len(chosen))
    store.rewrite_batches(
        KEY,
        shard,
        run,
        [
            BatchRewrite(
                batch.sequence, batch.generation, () if number else (file,), batch.statistics
            )
            for number, batch in enumerate(chosen)
        ],
        reason="merged",
    )
    store.release_rewrite(KEY, shard, run)


def deliver(store: MemoryStore) -> None:
    store.mark_delivered(KEY, [event.sequence for event in store.pending_events(KEY)])


def prune(store: MemoryStore, chance: random.Random) -> None:
    """Some portions of some verbs in some order."""
    shards = [lease.shard for lease in store.snapshot(KEY).shards]
    for _ in range(chance.randint(1, 12)):
        keep = chance.randint(1, 4)
        match chance.randrange(5):
            case 0 if shards:
                store.prune_journal(KEY, chance.choice(shards), before=FAR, keep=keep)
            case 1 if shards:
                store.prune_batches(KEY, chance.choice(shards), before=FAR, keep=keep)
            case 2:
                store.prune_journal(KEY, None, before=FAR, keep=keep)
            case 3 if shards:
                last = chance.randrange(8)
                store.expire_batches(KEY, chance.choice(shards), before=FAR, through=last)
            case _:
                store.prune_gaps(KEY, before=FAR)


# -- lies -----------------------------------------------------------------------------------------


def unknown_run(rows: Lied) -> None:
    change_newest(rows, run="run-666")


def another_holder(rows: Lied) -> None:
    change_newest(rows, holder=NodeName("somebody"))


def missing_records(rows: Lied) -> None:
    change_newest(rows, start="from-nowhere")


def stale_epoch(rows: Lied) -> None:
    change_newest(rows, epoch=0)


def missing_between(rows: Lied) -> None:
    """The oldest committed batch of each shard after the cut does not follow its predecessor."""
    oldest: dict[ShardId, Batch] = {}
    for batch in sorted(rows.batches.values(), key=lambda each: each.sequence):
        if batch.state is BatchState.COMMITTED and batch.sequence >= rows.cut.get(batch.shard, 0):
            oldest.setdefault(batch.shard, batch)
    for batch in oldest.values():
        rows.batches[batch.shard, batch.sequence] = replace(batch, end="nowhere")


def change_newest(rows: Lied, **values: object) -> None:
    """Falsify the newest committed batch of each shard, if it is after the cut."""
    newest = {
        batch.shard: batch
        for batch in sorted(rows.batches.values(), key=lambda each: each.sequence)
        if batch.state is BatchState.COMMITTED and batch.sequence >= rows.cut.get(batch.shard, 0)
    }
    for batch in newest.values():
        changed = replace(batch, **values)  # type: ignore[arg-type]
        rows.batches[batch.shard, batch.sequence] = changed


def second_opening(rows: Lied) -> None:
    """Two openings of an old epoch, without an end between."""
    for shard, row in rows.shards.items():
        if row.consumer_epoch:
            last = max(rows.journal.values(), key=lambda each: each.sequence)
            again = replace(
                last, sequence=last.sequence + 1, kind="open", shard=shard, run="twice", epoch=1
            )
            for entry in (again, replace(again, sequence=last.sequence + 2, run="thrice")):
                rows.journal[shard, entry.sequence] = entry


def lost_checkpoint(rows: Lied) -> None:
    for shard, row in rows.shards.items():
        rows.shards[shard] = replace(row, check_point="nowhere")


def higher_epoch(rows: Lied) -> None:
    for shard, row in rows.shards.items():
        rows.shards[shard] = replace(row, consumer_epoch=row.consumer_epoch + 7)


def withdrawal(rows: Lied) -> None:
    change_newest(rows, state=BatchState.WITHDRAWN, epoch=10_000)


LIES = [
    unknown_run,
    another_holder,
    missing_records,
    missing_between,
    stale_epoch,
    second_opening,
    lost_checkpoint,
    higher_epoch,
    withdrawal,
]


def steady(store: MemoryStore, chance: random.Random) -> None:
    """One more shard, which is read by run after run without a hitch."""
    node, shard, number = NodeName("steady"), ShardId("steady"), 0
    store.register(KEY, Node(node, 0, "steady-1"), observer="test")
    store.sync_shards(KEY, [ShardListing(shard)], observer="test")
    store.claim(KEY, {shard: (node, 0)}, observer="test", reason="test")
    for run in range(4):
        opened = store.open_tenure(KEY, shard, node, f"steady-{run}")
        if not isinstance(opened, Opened):
            return  # the history has paused the group
        for _ in range(chance.randint(0, 4)):
            bounds = (str(number), str(number + 1))
            store.record_intents([Intent(opened.tenure, number, *bounds)])
            files = (DataFile(f"steady/{number}", 4, 50),)
            store.commit([a_commit(opened.tenure, *bounds, number, files=files)])
            number += 1
        store.close_tenure(opened.tenure, reason="test")


def played(seed: int, chance: random.Random) -> MemoryStore:
    store = MemoryStore()
    player = Player(store, KEY, seed)
    player.play(STEPS)
    steady(store, chance)
    deliver(store)
    player.publisher.publish_all()
    for _ in range(chance.randint(0, 6)):
        compact(store, chance)
    return store


@settings(max_examples=50, deadline=None)
@given(seed=st.integers(0, 10_000))
def test_a_true_history_stays_true(seed: int) -> None:
    chance = random.Random(seed)
    store = played(seed, chance)
    before = verdict(store)
    for _ in range(4):
        prune(store, chance)
        assert verdict(store) == before


@pytest.mark.parametrize("lie", LIES)
@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 10_000))
def test_pruning_does_not_hide_a_later_violation(lie: Callable[[Lied], None], seed: int) -> None:
    chance = random.Random(seed)
    store = played(seed, chance)
    whole = store.backup()
    prune(store, chance)
    cut, numbers = store.backup(), cut_of(store)
    verdicts: list[set[tuple[str, object]]] = []
    for backup in (whole, cut):
        store.restore(backup)
        lie(rows_of(store, numbers))
        verdicts.append(verdict(store))
    assert verdicts[0] == verdicts[1]


@pytest.mark.parametrize("lie", LIES)
@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 10_000))
def test_pruning_does_not_hide_an_earlier_violation(lie: Callable[[Lied], None], seed: int) -> None:
    chance = random.Random(seed)
    store = played(seed, chance)
    lie(rows_of(store))
    before = verdict(store)
    for _ in range(4):
        prune(store, chance)
        assert verdict(store) == before


def test_the_histories_reach_every_outcome_of_settings() -> None:
    """Rows are merged, entries deleted and violations found; otherwise the tests above prove
    nothing.
    """
    folded = deleted = expired = lied = 0
    for seed in range(40):
        chance = random.Random(seed)
        store = played(seed, chance)
        for _ in range(10):
            prune(store, chance)
        folded += sum(batch.batches > 1 for batch in store.batches(KEY))
        deleted += sum(sum(each.entries.values()) for each in store.summaries(KEY))
        expired += sum(each.expired.batches for each in store.summaries(KEY) if each.expired)
        unknown_run(rows_of(store))
        lied += bool(verdict(store))
    assert folded > 3
    assert deleted > 500
    assert expired > 30
    assert lied > 15
