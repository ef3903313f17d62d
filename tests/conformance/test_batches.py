"""Batches: intents, fenced commits, the end of a shard, outbox and journal."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, timedelta, timezone

import pytest

from dagster_leasehold.lease_store.errors import IntentConflict, UnknownGroup
from dagster_leasehold.lease_store.identifiers import GroupName, ShardId
from dagster_leasehold.lease_store.ledger_rows import BatchState, BatchStatistics, DataFile, Intent
from dagster_leasehold.lease_store.outcomes import Changed, Stale
from dagster_leasehold.lease_store.rules.states import ShardState
from dagster_leasehold.lease_store.shard_rows import ShardListing
from tests.conformance.world import NOON, A, B, World, X, Y, Z, a_commit


@pytest.fixture
def ready(world: World) -> World:
    """Shards x and y held by node a."""
    world.group()
    world.join(A, B)
    world.add(X, Y)
    world.claim(A, X, Y)
    return world


def test_a_commit_makes_all_its_batches_visible_at_once(ready: World) -> None:
    tenure = ready.open(A, X).tenure
    ready.intend(tenure, "0", "5")
    assert ready.store.batches(ready.key) == []
    commit = a_commit(
        tenure,
        "0",
        "5",
        files=(DataFile("x/0.parquet", 4, 99), DataFile("x/q.parquet", 1, 9, quarantine=True)),
        watermark=NOON,
    )
    before = ready.generation()
    assert ready.store.commit([commit]) == {X: Changed()}
    (batch,) = ready.store.batches(ready.key, X)
    assert (batch.batch_id, batch.start, batch.end) == ("x.0", "0", "5")
    assert (batch.epoch, batch.run, batch.holder) == (1, "run-1", A)
    assert (batch.attempt, batch.files) == (commit.attempt, commit.files)
    assert batch.statistics == commit.statistics
    assert batch.committed_at is not None
    shard = ready.shard(X)
    assert (shard.check_point, shard.watermark) == ("5", NOON)
    assert ready.generation() == before
    (event,) = ready.store.pending_events(ready.key)
    assert (event.kind, event.batch_id, event.shard, event.run) == (
        "materialization",
        "x.0",
        X,
        "run-1",
    )
    assert event.payload["start"] == "0"
    assert event.payload["end"] == "5"
    assert event.payload["records"] == 5
    assert event.payload["last_event_time"] == NOON.isoformat()


def test_stored_times_are_read_back_unchanged(ready: World) -> None:
    tokyo = timezone(timedelta(hours=9))
    tenure = ready.open(A, X).tenure
    first, last = NOON.astimezone(tokyo), (NOON + timedelta(microseconds=1)).astimezone(tokyo)
    statistics = BatchStatistics(None, None, 0, 0, first, last)
    ready.consume(tenure, "0", "5", statistics=statistics)
    (batch,) = ready.store.batches(ready.key, X)
    assert batch.statistics == statistics
    assert batch.statistics.first_event_time is not None
    assert batch.statistics.first_event_time.astimezone(UTC) == NOON


def test_a_commit_without_a_watermark_keeps_the_stored_one(ready: World) -> None:
    tenure = ready.open(A, X).tenure
    ready.consume(tenure, "0", "5", watermark=NOON)
    ready.consume(tenure, "5", "6", 1)
    assert ready.shard(X).watermark == NOON


def test_repeating_a_commit_is_harmless(ready: World) -> None:
    tenure = ready.open(A, X).tenure
    ready.intend(tenure, "0", "5")
    commit = a_commit(tenure, "0", "5")
    assert ready.store.commit([commit]) == {X: Changed()}
    assert ready.store.commit([commit]) == {X: Changed()}
    assert len(ready.store.batches(ready.key)) == 1
    assert len(ready.store.pending_events(ready.key)) == 1


def test_repeating_a_finishing_commit_is_harmless(ready: World) -> None:
    tenure = ready.open(A, X).tenure
    ready.intend(tenure, "0", "5")
    commit = a_commit(tenure, "0", "5", finished=True)
    assert ready.store.commit([commit]) == {X: Changed()}
    assert ready.store.commit([commit]) == {X: Changed()}
    assert ready.edges(X) == [1, 3, 8]


def test_another_attempt_at_a_committed_batch_is_refused(ready: World) -> None:
    """Two attempts of one range: only the files of the first one count."""
    tenure = ready.open(A, X).tenure
    ready.consume(tenure, "0", "5")
    with pytest.raises(IntentConflict):
        ready.store.commit([a_commit(tenure, "0", "5", attempt="another")])
    (batch,) = ready.store.batches(ready.key, X)
    assert batch.attempt != "another"


def test_a_lost_shard_leaves_the_others_committed(ready: World) -> None:
    """1. One sweep reads x and y. 2. x is forced elsewhere. 3. y commits, x is left out."""
    first, second = ready.open(A, X).tenure, ready.open(A, Y).tenure
    ready.store.record_intents([Intent(first, 0, "0", "5"), Intent(second, 0, "0", "7")])
    ready.store.force_checkpoint(ready.key, X, "3", observer="ops", reason="r")
    outcomes = ready.store.commit([a_commit(first, "0", "5"), a_commit(second, "0", "7")])
    assert outcomes == {X: Stale(), Y: Changed()}
    assert [batch.shard for batch in ready.store.batches(ready.key)] == [Y]
    assert ready.shard(X).check_point == "3"
    assert ready.shard(Y).check_point == "7"


def test_a_fenced_holder_commits_nothing(ready: World) -> None:
    """1. A pauses. 2. It is evicted; B takes x and commits. 3. A wakes: nothing of it is seen."""
    stale = ready.open(A, X).tenure
    ready.intend(stale, "0", "5")
    ready.store.evict(ready.key, A, 1, observer="b", reason="silent")
    ready.claim(B, X)
    opened = ready.open(B, X, "run-2")
    assert isinstance(ready.consume(opened.tenure, "0", "5"), Changed)
    assert ready.store.commit([a_commit(stale, "0", "5")]) == {X: Stale()}
    assert ready.intend(stale, "5", "9", 1) == Stale()
    (batch,) = ready.store.batches(ready.key, X)
    assert (batch.run, batch.epoch) == ("run-2", 2)


def test_an_intent_survives_its_tenure_and_is_adopted(ready: World) -> None:
    old = ready.open(A, X).tenure
    ready.intend(old, "0", "5")
    ready.store.leave(ready.key, A, "a-1")
    ready.claim(B, X)
    opened = ready.open(B, X, "run-2")
    assert opened.intent is not None
    assert (opened.intent.start, opened.intent.end, opened.intent.batch_id) == ("0", "5", "x.0")
    assert opened.intent.state is BatchState.INTENT
    assert opened.next_sequence == 0
    assert ready.intend(opened.tenure, "0", "5") == Changed((X,))
    (adopted,) = ready.store.batches(ready.key, X, BatchState.INTENT)
    assert (adopted.epoch, adopted.run, adopted.holder) == (2, "run-2", B)
    assert ready.store.commit([a_commit(opened.tenure, "0", "5")]) == {X: Changed()}


def test_recording_an_intent_twice_is_harmless(ready: World) -> None:
    tenure = ready.open(A, X).tenure
    assert ready.intend(tenure, "0", "5") == Changed((X,))
    assert ready.intend(tenure, "0", "5") == Changed((X,))
    assert len(ready.store.batches(ready.key, X, BatchState.INTENT)) == 1


def test_an_intent_is_the_next_range_or_refused(ready: World) -> None:
    tenure = ready.open(A, X).tenure
    with pytest.raises(IntentConflict, match="out of order"):
        ready.intend(tenure, "0", "5", 1)
    ready.intend(tenure, "0", "5")
    with pytest.raises(IntentConflict, match="'0' to '5'"):
        ready.intend(tenure, "0", "6")
    ready.store.commit([a_commit(tenure, "0", "5")])
    with pytest.raises(IntentConflict, match="checkpoint"):
        ready.intend(tenure, "6", "9", 1)
    with pytest.raises(IntentConflict, match="out of order"):
        ready.intend(tenure, "5", "9", 0)


def test_a_refused_intent_leaves_the_others_unrecorded(ready: World) -> None:
    first, second = ready.open(A, X).tenure, ready.open(A, Y).tenure
    with pytest.raises(IntentConflict):
        ready.store.record_intents([Intent(first, 0, "0", "5"), Intent(second, 3, "0", "5")])
    assert ready.store.batches(ready.key, state=None) == []


def test_a_commit_needs_its_intent(ready: World) -> None:
    first, second = ready.open(A, X).tenure, ready.open(A, Y).tenure
    ready.intend(first, "0", "5")
    with pytest.raises(IntentConflict):
        ready.store.commit([a_commit(first, "0", "5"), a_commit(second, "0", "5")])
    with pytest.raises(IntentConflict):
        ready.store.commit([a_commit(first, "0", "6")])
    assert ready.store.batches(ready.key) == []
    assert ready.shard(X).check_point is None


def test_an_intent_of_an_earlier_tenure_must_be_adopted_first(ready: World) -> None:
    old = ready.open(A, X).tenure
    ready.intend(old, "0", "5")
    opened = ready.store.open_tenure(ready.key, X, A, "run-2", replaces="run-1")
    with pytest.raises(IntentConflict):
        ready.store.commit([a_commit(opened.tenure, "0", "5")])  # type: ignore[union-attr]


def test_a_checkpoint_that_moved_makes_the_commit_stale(ready: World) -> None:
    tenure = ready.open(A, X).tenure
    ready.intend(tenure, "0", "5")
    ready.store.save_checkpoint(tenure, "3")
    assert ready.store.commit([a_commit(tenure, "0", "5")]) == {X: Stale()}
    assert ready.shard(X).check_point == "3"


def test_sequences_continue_and_the_ledger_is_in_order(ready: World) -> None:
    tenure = ready.open(A, X).tenure
    for number in range(12):
        ready.consume(tenure, str(number), str(number + 1), number)
    other = ready.open(A, Y).tenure
    ready.consume(other, "0", "1")
    numbers = [(batch.shard, batch.sequence) for batch in ready.store.batches(ready.key)]
    assert numbers == [(X, number) for number in range(12)] + [(Y, 0)]
    ready.store.close_tenure(tenure, reason="r")
    assert ready.open(A, X, "run-2").next_sequence == 12


def test_the_last_parent_frees_the_child_in_the_same_transaction(ready: World) -> None:
    merged, split = ShardId("merged"), ShardId("split")
    ready.add(ShardListing(merged, parents=(X, Y)), ShardListing(split, parents=(X,)))
    first, second = ready.open(A, X).tenure, ready.open(A, Y).tenure
    ready.intend(first, "0", "5")
    assert ready.store.commit([a_commit(first, "0", "5", finished=True)]) == {X: Changed((split,))}
    assert ready.shard(merged).state is ShardState.WAIT
    ready.intend(second, "0", "5")
    before = ready.generation()
    assert ready.store.commit([a_commit(second, "0", "5", finished=True)]) == {
        Y: Changed((merged,))
    }
    assert ready.shard(merged).state is ShardState.NOT_ALLOC
    assert ready.generation() > before
    assert ready.edges(merged) == [1, 2]
    assert ready.edges(X) == [1, 3, 8]
    assert ready.kinds(X)[-2:] == ["close", "edge"]


def test_both_parents_can_end_in_one_commit(ready: World) -> None:
    merged = ShardId("merged")
    ready.add(ShardListing(merged, parents=(X, Y)))
    tenures = [ready.open(A, X).tenure, ready.open(A, Y).tenure]
    ready.store.record_intents([Intent(tenure, 0, "0", "5") for tenure in tenures])
    outcomes = ready.store.commit([a_commit(tenure, "0", "5", finished=True) for tenure in tenures])
    assert outcomes == {X: Changed(), Y: Changed((merged,))}
    assert ready.shard(merged).state is ShardState.NOT_ALLOC


def test_a_finished_shard_refuses_commits(ready: World) -> None:
    tenure = ready.open(A, X).tenure
    ready.consume(tenure, "0", "5", finished=True)
    shard = ready.shard(X)
    assert shard.state is ShardState.OVER
    assert (shard.lease_owner, shard.consumer_owner, shard.consumer_run) == (None, None, "")
    assert shard.check_point == "5"
    (batch,) = ready.store.batches(ready.key, X)
    assert batch.finished
    claims = {X: (A, shard.lease_id)}
    assert ready.store.claim(ready.key, claims, observer="t", reason="r") == {X: Stale()}
    assert ready.intend(tenure, "5", "6", 1) == Stale()


def test_a_call_without_batches_changes_nothing(ready: World) -> None:
    assert ready.store.commit([]) == {}
    assert ready.store.record_intents([]) == {}
    ready.store.mark_delivered(ready.key, [])


def test_a_call_refuses_two_groups_and_repeated_shards(ready: World) -> None:
    tenure = ready.open(A, X).tenure
    with pytest.raises(ValueError, match="once"):
        ready.store.commit([a_commit(tenure, "0", "5"), a_commit(tenure, "0", "5")])
    other = replace(tenure, key=replace(ready.key, group=ready.key.group.__class__("other")))
    with pytest.raises(ValueError, match="one group"):
        ready.store.record_intents([Intent(tenure, 0, "0", "5"), Intent(other, 0, "0", "5")])


def test_events_are_delivered_once_in_order_and_by_run(ready: World) -> None:
    first = ready.open(A, X, "run-1").tenure
    second = ready.open(A, Y, "run-2").tenure
    for number in range(3):
        ready.consume(first, str(number), str(number + 1), number)
    ready.consume(second, "0", "1")
    store, key = ready.store, ready.key
    everything = store.pending_events(key)
    assert [event.batch_id for event in everything] == ["x.0", "x.1", "x.2", "y.0"]
    assert [event.batch_id for event in store.pending_events(key, run="run-2")] == ["y.0"]
    assert [event.batch_id for event in store.pending_events(key, limit=2)] == ["x.0", "x.1"]
    store.mark_delivered(key, [event.sequence for event in everything[:2]])
    store.mark_delivered(key, [event.sequence for event in everything[:2]])
    assert [event.batch_id for event in store.pending_events(key)] == ["x.2", "y.0"]


def test_the_journal_pages_in_order(ready: World) -> None:
    tenure = ready.open(A, X).tenure
    ready.store.close_tenure(tenure, reason="r")
    entries = ready.journal()
    assert [entry.sequence for entry in entries] == sorted({e.sequence for e in entries})
    page = ready.store.journal(ready.key, limit=2)
    rest = ready.store.journal(ready.key, after=page[-1].sequence)
    assert page + rest == entries
    assert {entry.shard for entry in ready.journal(Y)} == {Y}
    assert ready.store.journal(ready.key, shard=Z) == []
    assert all(entry.at.tzinfo is not None for entry in entries)


def test_hostile_text_is_stored_as_text(ready: World) -> None:
    """Quotes, percent signs and backslashes in reasons, attempts and runs are stored unchanged."""
    hostile = "'; DROP TABLE batch; -- %s %(x)s \\ \" `é漢🦆`\n"
    tenure = ready.open(A, X, run=hostile).tenure
    assert isinstance(ready.consume(tenure, "0", "2", attempt=hostile), Changed)
    ready.store.close_tenure(tenure, reason=hostile)
    assert ready.journal(X)[-1].reason == hostile
    (batch,) = ready.store.batches(ready.key, X)
    assert (batch.run, batch.attempt) == (hostile, hostile)


def test_throughput_adds_up_the_newest_committed_batches(ready: World) -> None:
    first, second = ready.open(A, X).tenure, ready.open(A, Y).tenure
    for number in range(4):
        ready.consume(first, str(5 * number), str(5 * number + 5), number)
    unread = BatchStatistics(None, None, 3)
    ready.consume(second, "0", "5", statistics=unread)
    ready.intend(second, "5", "9", 1)
    batches = ready.store.batches(ready.key, X)
    in_x, in_y = ready.store.throughput(ready.key, window=3)
    assert (in_x.shard, in_x.batches, in_x.records) == (X, 3, 15)
    assert (in_x.first_at, in_x.last_at) == (batches[1].committed_at, batches[3].committed_at)
    assert (in_y.shard, in_y.batches, in_y.records) == (Y, 1, 3)
    assert in_y.first_at == in_y.last_at
    ready.store.force_checkpoint(ready.key, X, "10", observer="ops", reason="again")
    in_x, _ = ready.store.throughput(ready.key)
    assert (in_x.batches, in_x.records) == (2, 10)
    with pytest.raises(UnknownGroup):
        ready.store.throughput(replace(ready.key, group=GroupName("another")))
