"""Committed output that has expired: the rows that are deleted and kept, and the consequences."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from dagster_leasehold.lease_store.errors import CheckpointRefused
from dagster_leasehold.lease_store.ledger_rows import BatchState, DataFile, Intent, RewriteKind
from dagster_leasehold.lease_store.outcomes import Changed
from dagster_leasehold.lease_store.rules.reopening import Reopening
from dagster_leasehold.lease_store.rules.verification import verify
from dagster_leasehold.lease_store.shard_rows import ShardListing, Tenure
from dagster_leasehold.lease_store.shard_summary import End, Expired
from tests.conformance.test_retention import consumed, deliver, ledger, merge, prune_all, summary
from tests.conformance.world import A, World, X, Y

FAR = datetime(2200, 1, 1, tzinfo=UTC)
LONG_AGO = datetime(1999, 1, 1, tzinfo=UTC)
ALL = 2**62


def expire(world: World, *, before: datetime = FAR, through: int = ALL) -> int:
    """Portion by portion, as far as rows may go; the number of rows that went."""
    gone = 0
    while (
        portion := world.store.expire_batches(world.key, X, before=before, through=through)
    ).more:
        gone += portion.rows
    return gone


def numbers(world: World) -> list[int]:
    return [row.sequence for row in ledger(world)]


def expired(world: World) -> Expired:
    lost = summary(world).expired
    assert lost is not None
    return lost


def test_the_oldest_rows_expire_and_the_newest_stays(world: World) -> None:
    consumed(world, 5)
    totals = world.store.totals(world.key)
    head = world.store.heads(world.key)[X]
    assert [row.sequence for row in world.store.expirable(world.key, X, before=FAR)] == [0, 1, 2, 3]
    assert expire(world, through=2) == 3
    assert numbers(world) == [3, 4]
    assert world.store.ledger_rows(world.key) == 2
    assert expired(world).last == End(2, "3", 3)
    assert expire(world) == 1
    assert numbers(world) == [4]
    lost = expired(world)
    assert (lost.begin, lost.first_number, lost.batches) == ("4", 4, 4)
    assert lost.records == sum(each.records for each in totals) // 5 * 4
    assert verify(world.store, world.key) == [], "the proof continues from the summary"
    assert world.store.totals(world.key) == totals, "what was ever committed never falls"
    after = world.store.heads(world.key)[X]
    assert after.version > head.version, "a reader who is under way looks again"
    assert (after.next_number, after.check_point) == (head.next_number, head.check_point)
    assert expire(world) == 0
    tenure = world.open(A, X, "run-next").tenure
    world.consume(tenure, "5", "9", 5)
    deliver(world)
    assert expire(world) == 1
    assert expired(world).begin == "5"
    assert verify(world.store, world.key) == []


def test_young_output_does_not_expire(world: World) -> None:
    consumed(world, 3)
    assert world.store.expirable(world.key, X, before=LONG_AGO) == []
    assert expire(world, before=LONG_AGO) == 0
    assert summary_of(world) == []


def summary_of(world: World) -> list[Expired]:
    return [each.expired for each in world.store.summaries(world.key) if each.expired]


def test_batches_that_share_a_file_expire_together(world: World) -> None:
    consumed(world, 6)
    merge(world, 1, 3)
    assert expire(world, through=2) == 1, "batch 1 and 2 lie in one file with batch 3"
    assert numbers(world) == [1, 2, 3, 4, 5]
    assert expire(world, through=3) == 3
    assert numbers(world) == [4, 5]
    assert verify(world.store, world.key) == []


def test_no_batch_in_the_file_of_the_newest_batch_expires(world: World) -> None:
    consumed(world, 4)
    merge(world, 2, 3)
    assert expire(world) == 2
    assert numbers(world) == [2, 3]
    assert verify(world.store, world.key) == []


def test_merged_rows_expire(world: World) -> None:
    consumed(world, 6)
    merge(world, 0, 2)
    prune_all(world)
    assert numbers(world) == [0, 3, 4, 5]
    assert expire(world) == 3
    assert expired(world).batches == 5
    assert prune_all(world) == 0
    assert verify(world.store, world.key) == []


def test_a_merged_file_with_more_rows_than_a_page_expires(world: World) -> None:
    consumed(world, 230, per_tenure=115)
    merge(world, 0, 219)
    assert expire(world) == 229
    assert verify(world.store, world.key) == []


def test_rows_expire_in_portions_that_never_divide_a_file(world: World) -> None:
    """The model takes as many rows at once as a database."""
    consumed(world, 230, per_tenure=115)
    merge(world, 150, 219)
    ripe = world.store.expirable(world.key, X, before=FAR)
    assert [row.sequence for row in ripe] == [*range(150)]
    portion = world.store.expire_batches(world.key, X, before=FAR, through=ALL)
    assert portion.rows == 150
    portion = world.store.expire_batches(world.key, X, before=FAR, through=ALL)
    assert portion.rows == 79
    assert verify(world.store, world.key) == []


def test_claimed_and_unreported_batches_do_not_expire(world: World) -> None:
    consumed(world, 3)
    claimed = world.store.claim_rewrite(world.key, X, "replay", RewriteKind.REPLAY)
    assert isinstance(claimed, Changed)
    assert world.store.expirable(world.key, X, before=FAR) == []
    assert expire(world) == 0
    world.store.release_rewrite(world.key, X, "replay")
    tenure = world.open(A, X, "run-next").tenure
    world.consume(tenure, "3", "4", 3)
    world.consume(tenure, "4", "5", 4)
    assert expire(world) == 3, "batch 3 has an event that somebody waits for"
    deliver(world)
    assert expire(world) == 1


def test_abandoned_and_withdrawn_rows_expire_with_their_neighbours(world: World) -> None:
    consumed(world, 3)
    world.store.force_checkpoint(world.key, X, "1", observer="ops", reason="again")
    tenure = world.open(A, X, "run-a").tenure
    world.store.record_intents([Intent(tenure, 3, "1", "2")])
    world.store.force_checkpoint(world.key, X, "1", observer="ops", reason="give it up")
    tenure = world.open(A, X, "run-b").tenure
    world.consume(tenure, "1", "5", 4)
    world.consume(tenure, "5", "6", 5)
    deliver(world)
    assert expire(world) == 5
    assert [row.sequence for row in ledger(world, None)] == [5]
    assert verify(world.store, world.key) == []


def test_a_forced_checkpoint_cannot_go_back_before_the_remaining_output(world: World) -> None:
    consumed(world, 4)
    assert expire(world, through=1) == 2
    with pytest.raises(CheckpointRefused, match=r"begins at '2': earlier output has expired"):
        world.store.force_checkpoint(world.key, X, "1", observer="ops", reason="again")
    world.store.force_checkpoint(world.key, X, "2", observer="ops", reason="again")
    assert numbers(world) == []
    with pytest.raises(CheckpointRefused, match="has expired"):
        world.store.force_checkpoint(world.key, X, "0", observer="ops", reason="further")
    tenure = world.open(A, X, "run-again").tenure
    world.consume(tenure, "2", "4", 4)
    assert verify(world.store, world.key) == []


def test_a_bootstrap_before_expired_output_is_refused(world: World) -> None:
    """Reopening its parent would send it back to its start, whose records were committed once."""
    world.group()
    world.join(A)
    world.store.sync_shards(
        world.key, [ShardListing(Y, read_only=True), ShardListing(X, (Y,))], observer="source"
    )
    world.claim(A, Y)
    parent = world.open(A, Y, "parent").tenure
    world.consume(parent, "0", "1", 0, finished=True)
    world.claim(A, X)
    child = world.open(A, X, "child").tenure
    world.consume(child, "0", "1", 0)
    world.consume(child, "1", "2", 1)
    deliver(world)
    assert expire(world) == 1
    with pytest.raises(CheckpointRefused, match=r"'x' .* cannot be read again with shard 'y'"):
        world.store.force_checkpoint(
            world.key, Y, "0", observer="ops", reason="again", reopen=Reopening.CASCADE
        )
    world.store.force_checkpoint(
        world.key, Y, "0", observer="ops", reason="again", reopen=Reopening.ACCEPT
    )
    assert numbers(world) == [1]


def test_a_violation_of_an_expired_row_stays_reported(world: World) -> None:
    """A gap that was not recorded is found when its row expires, and in every later verdict."""
    consumed(world, 2)
    tenure = world.open(A, X, "run-gap").tenure
    world.store.record_gap(tenure, start="2", end="7", reason="lost", skip=True)
    world.consume(tenure, "7", "8", 2)
    world.consume(tenure, "8", "9", 3)
    deliver(world)
    assert verify(world.store, world.key) == []
    assert expire(world) == 3
    assert verify(world.store, world.key) == [], "the gap was recorded"


def test_event_times_of_expired_output_are_stored(world: World) -> None:
    world.group()
    world.join(A)
    world.add(X)
    world.claim(A, X)
    tenure = world.open(A, X, "run").tenure
    times = [datetime(2020, 1, day, tzinfo=UTC) for day in (3, 1, 2)]
    for number, at in enumerate(times):
        file = DataFile(f"{number}", 1, 1, first_event_time=at, last_event_time=at)
        world.consume(tenure, str(number), str(number + 1), number, files=(file,))
    deliver(world)
    expire(world)
    lost, day = expired(world), timedelta(days=1)
    assert (lost.events_since, lost.events_until) == (times[1], times[0])
    assert lost.may_hold(times[1], times[1] + day)
    assert lost.may_hold(None, None)
    assert not lost.may_hold(times[1] - day, times[1])
    assert not lost.may_hold(times[0] + day, None)


def test_expiry_ignores_event_times_in_the_future(world: World) -> None:
    tenure = held(world)
    future = datetime(2099, 1, 1, tzinfo=UTC)
    file = DataFile("0", 1, 1, first_event_time=LONG_AGO, last_event_time=future)
    world.consume(tenure, "0", "1", 0, files=(file,))
    world.consume(tenure, "1", "2", 1)
    deliver(world)
    expire(world)
    until = expired(world).events_until
    assert until is not None
    assert until < future


def held(world: World) -> Tenure:
    world.group()
    world.join(A)
    world.add(X)
    world.claim(A, X)
    return world.open(A, X, "run").tenure


def test_a_shard_without_batches_expires_nothing(world: World) -> None:
    held(world)
    assert world.store.expirable(world.key, X, before=FAR) == []
    assert expire(world) == 0
    assert ledger(world, BatchState.COMMITTED) == []
