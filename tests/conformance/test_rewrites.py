"""Replacing committed output: one rewriter per shard, all of a swap or nothing, live beside it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dagster_leasehold.lease_store.errors import UnknownShard
from dagster_leasehold.lease_store.ledger_rows import (
    BatchRewrite,
    BatchStatistics,
    Compacted,
    DataFile,
    RewriteKind,
)
from dagster_leasehold.lease_store.outcomes import Changed, RewriteByOther, Stale
from dagster_leasehold.lease_store.rules.verification import verify
from dagster_leasehold.lease_store.shard_rows import Tenure
from tests.conformance.test_races import at_once
from tests.conformance.world import NOON, A, World, X, Y, Z

REPLAY, COMPACTION = RewriteKind.REPLAY, RewriteKind.COMPACTION


@pytest.fixture
def tenure(world: World) -> Tenure:
    """Shard x open, with three committed batches and a fourth intended."""
    world.group()
    world.join(A)
    world.add(X, Y)
    (tenure,) = world.hold(A, X)
    for number in range(3):
        files = (DataFile(f"old/{number}", 5, 50),)
        world.consume(tenure, str(number), str(number + 1), number, files=files)
    world.intend(tenure, "3", "4", 3)
    return tenure


def claim(
    world: World, run: str, kind: RewriteKind = REPLAY, replaces: str | None = None
) -> Changed | RewriteByOther:
    return world.store.claim_rewrite(world.key, X, run, kind, replaces=replaces)


def rewrite(sequence: int, generation: int = 0) -> BatchRewrite:
    files = (DataFile(f"new/{sequence}-{generation}", 4, 40), DataFile("bad", 1, 2, True, 3))
    return BatchRewrite(sequence, generation, files, BatchStatistics(5, 50, 4, 1, NOON, NOON))


def swap(world: World, run: str, *rewrites: BatchRewrite) -> Changed | Stale:
    return world.store.rewrite_batches(world.key, X, run, rewrites, reason="because")


def paths(world: World) -> list[str]:
    return [batch.files[0].path for batch in world.store.batches(world.key, X)]


def test_one_rewriter_per_shard(world: World, tenure: Tenure) -> None:
    del tenure
    assert claim(world, "run-1") == Changed((X,))
    assert claim(world, "run-1") == Changed((X,)), "a repeated call is harmless"
    refused = claim(world, "run-2", COMPACTION)
    assert isinstance(refused, RewriteByOther)
    assert (refused.claim.shard, refused.claim.run, refused.claim.kind) == (X, "run-1", REPLAY)
    assert isinstance(claim(world, "run-2", replaces="run-0"), RewriteByOther)
    assert world.store.claim_rewrite(world.key, Y, "run-2", REPLAY) == Changed((Y,))
    assert [(c.shard, c.run) for c in world.store.rewrites(world.key)] == [
        (X, "run-1"),
        (Y, "run-2"),
    ]
    assert world.store.release_rewrite(world.key, X, "run-2") == Stale()
    assert world.store.release_rewrite(world.key, X, "run-1") == Changed((X,))
    assert world.store.release_rewrite(world.key, X, "run-1") == Stale()
    assert claim(world, "run-3", COMPACTION) == Changed((X,))
    assert [(c.run, c.kind) for c in world.store.rewrites(world.key)][:1] == [("run-3", COMPACTION)]


def test_a_dead_rewriter_is_replaced_and_fenced(world: World, tenure: Tenure) -> None:
    """1. run-1 claims and stops; 2. run-2 replaces it; 3. run-1 wakes up and swaps."""
    del tenure
    claim(world, "run-1")
    assert claim(world, "run-2", replaces="run-1") == Changed((X,))
    assert swap(world, "run-1", rewrite(0)) == Stale()
    assert world.store.release_rewrite(world.key, X, "run-1") == Stale()
    assert swap(world, "run-2", rewrite(0)) == Changed((X,))
    assert paths(world) == ["new/0-0", "old/1", "old/2"]


def test_a_swap_refuses_a_batch_that_was_replaced_under_the_same_number(
    world: World, tenure: Tenure
) -> None:
    """A fail-over has lost it while a replay was under way, and it was committed once more."""
    del tenure
    claim(world, "run-1")
    batch = world.store.batches(world.key, X)[0]
    assert swap(world, "run-1", replace(rewrite(0), attempt="before the fail-over")) == Stale()
    assert paths(world) == ["old/0", "old/1", "old/2"]
    assert swap(world, "run-1", replace(rewrite(0), attempt=batch.attempt)) == Changed((X,))


def test_a_swap_replaces_only_output(world: World, tenure: Tenure) -> None:
    before = world.store.batches(world.key, X)
    lease, generation = world.shard(X), world.generation()
    claim(world, "run-1")
    assert swap(world, "run-1", rewrite(0), rewrite(1)) == Changed((X,))
    after = world.store.batches(world.key, X)
    assert (
        after
        == [
            replace(
                batch,
                generation=1,
                files=rewrite(batch.sequence).files,
                statistics=rewrite(batch.sequence).statistics,
            )
            for batch in before[:2]
        ]
        + before[2:]
    )
    assert world.shard(X) == lease, "neither checkpoint nor tenure moves"
    assert world.generation() == generation
    entry = world.journal(X)[-1]
    assert (entry.kind, entry.run, entry.reason) == ("rewrite", "run-1", "because")
    assert len(world.store.pending_events(world.key)) == 3, "what was told is not told again"
    assert isinstance(world.consume(tenure, "3", "4", 3), Changed), (
        "consumption continues beside it"
    )


@pytest.mark.parametrize("wrong", [rewrite(1, 7), rewrite(3), rewrite(9)])
def test_a_swap_is_atomic(world: World, tenure: Tenure, wrong: BatchRewrite) -> None:
    """If one batch has changed, is only intended, or is unknown, all batches stay as they are."""
    del tenure
    claim(world, "run-1")
    assert swap(world, "run-1", rewrite(0), wrong, rewrite(2)) == Stale()
    assert paths(world) == ["old/0", "old/1", "old/2"]
    assert "rewrite" not in world.kinds(X)
    assert swap(world, "run-1", rewrite(0), rewrite(2)) == Changed((X,))
    assert swap(world, "run-1", rewrite(0, 1)) == Changed((X,))
    assert paths(world) == ["new/0-1", "old/1", "new/2-0"]


def test_a_swap_needs_a_claim(world: World, tenure: Tenure) -> None:
    del tenure
    assert swap(world, "run-1", rewrite(0)) == Stale()
    claim(world, "run-1")
    world.store.release_rewrite(world.key, X, "run-1")
    assert swap(world, "run-1", rewrite(0)) == Stale()
    assert paths(world) == ["old/0", "old/1", "old/2"]


def test_the_progress_of_compaction_is_stored_under_the_claim(world: World, tenure: Tenure) -> None:
    """It outlives the claim, and a run that lost the claim cannot change it."""
    del tenure
    store, key = world.store, world.key
    assert store.compacted(key) == {}
    assert store.note_compacted(key, X, "run-1", Compacted(1, 2)) == Stale()
    claim(world, "run-1", COMPACTION)
    assert store.note_compacted(key, X, "run-1", Compacted(1, 2)) == Changed((X,))
    assert store.note_compacted(key, X, "run-1", Compacted(1, 2)) == Changed((X,))
    store.release_rewrite(key, X, "run-1")
    claim(world, "run-2", REPLAY)
    assert store.note_compacted(key, X, "run-1", Compacted(3, 3)) == Stale()
    assert store.compacted(key) == {X: Compacted(1, 2)}
    assert store.note_compacted(key, X, "run-2", Compacted(3, 3)) == Changed((X,))
    assert store.compacted(key) == {X: Compacted(3, 3)}


def test_a_recreated_group_has_no_progress_of_compaction(world: World, tenure: Tenure) -> None:
    del tenure
    claim(world, "run-1", COMPACTION)
    world.store.note_compacted(world.key, X, "run-1", Compacted(1, 2))
    world.store.delete_group(world.key, force=True)
    world.incarnations.clear()
    world.group()
    assert world.store.compacted(world.key) == {}


def test_unknown_shards_are_refused(world: World, tenure: Tenure) -> None:
    del tenure
    with pytest.raises(UnknownShard):
        world.store.claim_rewrite(world.key, Z, "run-1", REPLAY)
    with pytest.raises(UnknownShard):
        world.store.rewrite_batches(world.key, Z, "run-1", [], reason="r")


def test_verify_finds_no_violation_after_swaps(world: World, tenure: Tenure) -> None:
    del tenure
    claim(world, "run-1")
    merged = (DataFile("merged", 9, 9, False, 2),)
    swap(world, "run-1", replace(rewrite(1), files=merged), replace(rewrite(2), files=()))
    assert world.store.batches(world.key, X)[1].files == merged
    assert verify(world.store, world.key) == []
    world.store.delete_group(world.key, force=True)
    world.incarnations.clear()
    world.group()
    assert world.store.rewrites(world.key) == []


def test_one_of_several_concurrent_claims_wins(world: World, tenure: Tenure) -> None:
    del tenure
    runs = [f"run-{number}" for number in range(4)]
    answers = at_once(*(lambda run=run: claim(world, run) for run in runs))
    winners = [run for run, got in zip(runs, answers, strict=True) if isinstance(got, Changed)]
    assert winners == [held.run for held in world.store.rewrites(world.key)]
    assert len(winners) == 1


def test_swaps_and_commits_do_not_block_each_other(world: World, tenure: Tenure) -> None:
    """Method: one thread commits batches, another swaps the output of those it finds."""
    claim(world, "run-1")
    last = 15

    def consume() -> int:
        done = [world.consume(tenure, "3", "4", 3)]
        done += [world.consume(tenure, str(n), str(n + 1), n) for n in range(4, last)]
        return sum(isinstance(outcome, Changed) for outcome in done)

    def swap_all() -> int:
        done = 0
        for _ in range(10):
            batches = world.store.batches(world.key, X)
            made = [rewrite(batch.sequence, batch.generation) for batch in batches]
            unique = [
                replace(each, files=(DataFile(f"{each.sequence}-{each.generation}", 4, 40),))
                for each in made
            ]
            done += isinstance(swap(world, "run-1", *unique), Changed)
        return done

    assert at_once(consume, swap_all) == [last - 3, 10]
    assert world.shard(X).check_point == str(last)
    assert world.store.batches(world.key, X)[0].generation == 10
    assert verify(world.store, world.key) == []
