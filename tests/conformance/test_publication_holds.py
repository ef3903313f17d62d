"""Held publications: a shard's batches stay unpublished, and no other shard is affected."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from dagster_leasehold.lease_store.identifiers import ShardId
from dagster_leasehold.lease_store.ledger_rows import (
    BatchRewrite,
    BatchStatistics,
    DataFile,
    PublicationHold,
)
from dagster_leasehold.lease_store.outcomes import Changed, LockOver, Settled, Stale
from dagster_leasehold.lease_store.publication_rows import HoldChange
from dagster_leasehold.lease_store.shard_rows import Tenure
from tests.conformance.published import Publisher, until
from tests.conformance.test_retention import deliver
from tests.conformance.world import A, B, World, X, Y

AT = datetime(2026, 1, 2, tzinfo=UTC)


@pytest.fixture
def tenures(world: World) -> list[Tenure]:
    """Nodes a and b alive; a holds x and y, with three committed batches each."""
    world.group()
    world.join(A, B)
    world.add(X, Y)
    tenures = world.hold(A, X, Y)
    for tenure in tenures:
        commit(world, tenure, 0, 1, 2)
    return tenures


def commit(world: World, tenure: Tenure, *numbers: int) -> None:
    for n in numbers:
        files = (DataFile(f"{tenure.shard}/{n}", 4, 50),)
        statistics = BatchStatistics(records=4, written=4)
        world.consume(tenure, str(n), str(n + 1), n, files=files, statistics=statistics)


def hold_from(number: int) -> PublicationHold:
    return PublicationHold(number, number, "amounts", "an amount is negative", AT)


def hold(publisher: Publisher, shard: ShardId, number: int) -> Settled | LockOver:
    version = publisher.world.store.heads(publisher.world.key, [shard])[shard].version
    change = HoldChange(shard, version, hold_from(number))
    return publisher.world.store.hold_publication(publisher.own, [change])


def waiting(world: World) -> dict[ShardId, list[int]]:
    backlog = world.store.unpublished(world.key)
    return {each.shard: [batch.sequence for batch in each.batches] for each in backlog}


def test_a_hold_keeps_batches_of_its_shard_from_publication(
    world: World, tenures: list[Tenure]
) -> None:
    a = Publisher(world)
    a.start()
    planned = a.plan()
    assert hold(a, X, 1) == Settled()
    assert a.commit(planned) == Stale(), "it was planned before the hold"
    assert waiting(world) == {X: [0], Y: [0, 1, 2]}
    a.publish()
    commit(world, tenures[0], 3)
    commit(world, tenures[1], 3)
    assert waiting(world) == {Y: [3]}
    # Another node takes over, and obeys the hold.
    b = Publisher(world, B)
    world.store.release_publish_lock(a.own)
    b.take()
    b.publish()
    assert (until(world, X), until(world, Y)) == (1, 4)
    (output,) = world.store.held_output(world.key)
    assert (output.shard, output.hold) == (X, hold_from(1))
    assert (output.lag.batches, output.lag.records) == (3, 12)
    assert world.store.publication_lag(world.key) == []
    (first,) = world.store.held_batches(world.key, limit=5)
    assert [batch.sequence for batch in first.batches] == [1]


def test_held_shards_do_not_hide_others(world: World, tenures: list[Tenure]) -> None:
    a = Publisher(world)
    a.start()
    hold(a, X, 0)
    commit(world, tenures[0], 3, 4, 5)
    assert [each.shard for each in world.store.unpublished(world.key, limit=1)] == [Y]


def test_an_override_publishes_what_is_committed(world: World, tenures: list[Tenure]) -> None:
    a = Publisher(world)
    a.start()
    assert world.store.override_hold(world.key, X, observer="me", reason="known") == Stale()
    hold(a, X, 1)
    outcome = world.store.override_hold(world.key, X, observer="me", reason="known")
    assert outcome == Changed((X,))
    assert waiting(world)[X] == [0, 1, 2]
    (own,) = [each for each in world.store.unpublished(world.key) if each.shard == X]
    assert (own.unchecked_until, own.hold) == (3, None)
    kinds = [
        (entry.kind, entry.observer)
        for entry in world.store.each_entry(world.key)
        if entry.shard == X
    ][-2:]
    assert kinds == [("hold", "a"), ("override", "me")]


def test_a_repeated_hold_is_journalled_once(world: World, tenures: list[Tenure]) -> None:
    a = Publisher(world)
    a.start()
    hold(a, X, 1)
    hold(a, X, 1)
    kinds = [entry.kind for entry in world.store.each_entry(world.key)]
    assert kinds.count("hold") == 1


def test_a_publisher_without_the_lock_sets_no_hold(world: World, tenures: list[Tenure]) -> None:
    a = Publisher(world)
    first = a.start()
    a.take()
    a.lock = first
    assert hold(a, X, 1) == LockOver()
    assert world.store.held_output(world.key) == []


def test_a_hold_of_a_changed_ledger_is_not_set(world: World, tenures: list[Tenure]) -> None:
    a = Publisher(world)
    a.start()
    change = HoldChange(X, 7, hold_from(1))
    assert world.store.hold_publication(a.own, [change]) == Settled()
    assert world.store.held_output(world.key) == []


@pytest.mark.parametrize(("checkpoint", "held_batches"), [("1", 0), ("2", 1)])
def test_a_withdrawn_batch_ends_its_hold(
    world: World, tenures: list[Tenure], checkpoint: str, held_batches: int
) -> None:
    a = Publisher(world)
    a.start()
    hold(a, X, 1)
    world.store.force_checkpoint(world.key, X, checkpoint, observer="me", reason="again")
    assert sum(each.lag.batches for each in world.store.held_output(world.key)) == held_batches


def test_a_rewritten_batch_is_checked_again(world: World, tenures: list[Tenure]) -> None:
    a = Publisher(world)
    a.start()
    hold(a, X, 1)
    new = BatchRewrite(1, 0, (DataFile("x/new", 3, 40),), BatchStatistics(records=4, written=3))
    outcome = world.store.rewrite_unpublished(a.own, X, new, "one record to quarantine")
    assert outcome == Changed((X,))
    assert waiting(world)[X] == [0, 1, 2]
    a.publish()
    assert a.files == a.committed()
    again = BatchRewrite(1, 1, (), BatchStatistics())
    assert world.store.rewrite_unpublished(a.own, X, again, "published") == Stale()


def test_held_batches_do_not_expire(world: World, tenures: list[Tenure]) -> None:
    a = Publisher(world)
    a.start()
    hold(a, X, 1)
    a.publish()
    deliver(world)
    later = datetime.now(UTC) + timedelta(days=3_000)
    portion = world.store.expire_batches(world.key, X, before=later, through=10)
    assert portion.rows == 1
    numbers = [batch.sequence for batch in world.store.each_batch(world.key, X)]
    assert numbers == [1, 2]
