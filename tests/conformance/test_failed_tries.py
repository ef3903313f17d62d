"""Failed tries at a checkpoint: counted across tenures, and what they imply for the next
records.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from dagster_leasehold.lease_store.errors import LeaseLost, UnknownShard
from dagster_leasehold.lease_store.ledger_rows import BatchState
from dagster_leasehold.lease_store.outcomes import Changed, Opened, Stale
from dagster_leasehold.lease_store.rules.isolation import Suspicion
from tests.conformance.world import NOON, A, B, World, X, a_commit

SUSPECTED = Suspicion(failure="it hangs", records=8, remaining=8)


@pytest.fixture
def ready(world: World) -> World:
    """Shard x held by node a, not open."""
    world.group()
    world.join(A, B)
    world.add(X)
    world.claim(A, X)
    return world


def reopened(world: World, run: str, ended: str) -> Opened:
    opened = world.store.open_tenure(world.key, X, A, run, replaces=ended)
    assert isinstance(opened, Opened)
    return opened


def test_tenures_that_failed_at_a_range_are_counted(ready: World) -> None:
    first = ready.open(A, X, "run-1")
    assert (first.failures, first.suspicion) == (0, None)
    ready.intend(first.tenure, "0", "8")
    ready.store.close_tenure(first.tenure, reason="it hangs", attempt_failed=True)
    second = ready.open(A, X, "run-2")
    assert (second.failures, second.suspicion) == (1, Suspicion(failure="it hangs"))
    ready.intend(second.tenure, "0", "8")
    killed = reopened(ready, "run-3", "run-2")
    assert killed.failures == 2
    assert killed.intent is not None


def test_failures_unrelated_to_records_are_not_counted(ready: World) -> None:
    for number in range(3):
        opened = ready.open(A, X, f"run-{number}")
        assert opened.failures == 0
        ready.intend(opened.tenure, "0", "8")
        assert ready.store.close_tenures([opened.tenure], reason="the source is away") == {X}
    assert ready.shard(X).tries == 0


def test_a_shard_keeps_its_last_error_until_the_next_commit(ready: World) -> None:
    for number, attempt_failed in enumerate((False, True)):
        at = NOON + timedelta(minutes=number)
        error = f"The source is away ({number})."
        tenure = ready.open(A, X, f"run-{number}").tenure
        ready.intend(tenure, "0", "8")
        ready.store.close_tenure(tenure, reason=error, attempt_failed=attempt_failed, failed_at=at)
        suspicion = ready.store.progress(ready.key, [A])[X].suspicion
        assert suspicion is not None
        assert (suspicion.error, suspicion.error_at) == (error, at)
        assert suspicion == ready.shard(X).suspicion
        assert not suspicion.isolating
    tenure = ready.open(A, X, "run-2").tenure
    assert ready.shard(X).suspicion is not None, "a run that begins has fixed nothing yet"
    assert isinstance(ready.consume(tenure, "0", "8"), Changed)
    assert ready.shard(X).suspicion is None


def test_shards_that_fail_together_keep_one_error(ready: World) -> None:
    tenure = ready.open(A, X).tenure
    closed = ready.store.close_tenures([tenure], reason="It is away.", failed_at=NOON)
    assert closed == {X}
    suspicion = ready.shard(X).suspicion
    assert suspicion == Suspicion(error="It is away.", error_at=NOON)
    assert ready.shard(X).tries == 0


def test_runs_that_are_killed_without_a_range_are_not_counted(ready: World) -> None:
    ready.open(A, X, "run-0")
    for number in range(1, 4):
        assert reopened(ready, f"run-{number}", f"run-{number - 1}").failures == 0


def test_a_run_that_is_killed_before_it_starts_the_range_is_not_counted(ready: World) -> None:
    """Goal: where nodes die while they start, no record is blamed for it."""
    ready.intend(ready.open(A, X, "run-0").tenure, "0", "8")
    for number in range(1, 4):
        assert reopened(ready, f"run-{number}", f"run-{number - 1}").failures == 1
    ready.store.close_tenure(reopened(ready, "grave", "run-3").tenure, reason="it ended")
    assert ready.open(A, X, "run-4").failures == 1


def test_a_dead_run_counts_as_a_try_and_its_cleanup_does_not(ready: World) -> None:
    """Goal: a killed run is one failed try, even if another process closes its tenure in a
    transfer.
    """
    ready.intend(ready.open(A, X, "run-1").tenure, "0", "8")
    ready.store.close_tenure(reopened(ready, "grave", "run-1").tenure, reason="it ended")
    ready.intend(ready.open(A, X, "run-2").tenure, "0", "8")
    ready.transfer(X, B)
    assert ready.store.open_tenure(ready.key, X, A, "run-3", replaces="run-2").consumer_owner == B
    assert ready.open(B, X, "run-4").failures == 2


def test_a_smaller_range_replaces_an_abandoned_one_under_the_next_number(ready: World) -> None:
    tenure = ready.open(A, X).tenure
    ready.intend(tenure, "0", "8")
    ready.store.suspect(tenure, SUSPECTED, abandon=True)
    ready.store.suspect(tenure, SUSPECTED, abandon=True)
    assert [batch.state for batch in ready.store.batches(ready.key, X)] == []
    assert isinstance(ready.intend(tenure, "0", "4", sequence=1), Changed)
    again = reopened(ready, "run-2", "run-1")
    assert (again.failures, again.suspicion) == (1, SUSPECTED)
    assert again.intent is not None
    assert (again.intent.sequence, again.intent.end) == (1, "4")
    assert again.intent.state is BatchState.INTENT


def test_a_suspicion_can_keep_its_range(ready: World) -> None:
    tenure = ready.open(A, X).tenure
    ready.intend(tenure, "0", "1")
    alone = replace(SUSPECTED, records=1, alone=True)
    ready.store.suspect(tenure, alone, abandon=False)
    again = reopened(ready, "run-2", "run-1")
    assert (again.failures, again.suspicion) == (1, alone)
    assert again.intent is not None
    assert again.intent.sequence == 0
    ready.intend(again.tenure, "0", "1")
    ready.store.suspect(again.tenure, replace(alone, holds_shard=True), abandon=False)
    assert reopened(ready, "run-3", "run-2").failures == 2


def test_the_tries_of_a_single_suspected_record_are_counted_from_zero(ready: World) -> None:
    """Goal: a record in whose company two runs died is not blamed for it."""
    ready.intend(ready.open(A, X, "run-1").tenure, "0", "1")
    ready.intend(reopened(ready, "run-2", "run-1").tenure, "0", "1")
    third = reopened(ready, "run-3", "run-2")
    assert third.failures == 2
    ready.intend(third.tenure, "0", "1")
    ready.store.suspect(third.tenure, SUSPECTED.within(1, alone=True), abandon=False)
    assert reopened(ready, "run-4", "run-3").failures == 1


def test_a_commit_stores_the_remaining_suspicion_and_resets_the_tries(ready: World) -> None:
    tenure = ready.open(A, X).tenure
    ready.intend(tenure, "0", "4")
    rest = SUSPECTED.after(4)
    assert ready.store.commit([replace(a_commit(tenure, "0", "4", 0), suspicion=rest)])[X]
    assert (ready.shard(X).tries, ready.shard(X).suspicion) == (1, rest)
    assert ready.store.progress(ready.key, [A])[X].blocked
    assert isinstance(ready.consume(tenure, "4", "8", sequence=1), Changed)
    assert ready.shard(X).suspicion is None
    ready.store.close_tenure(tenure, reason="caught up")
    assert ready.shard(X).tries == 0
    assert not ready.store.progress(ready.key, [A])[X].blocked


def test_a_checkpoint_moved_without_a_commit_ends_the_suspicion(ready: World) -> None:
    tenure = ready.open(A, X).tenure
    ready.store.suspect(tenure, SUSPECTED, abandon=True)
    ready.store.record_gap(tenure, start="0", end="3", reason="it is gone")
    assert ready.shard(X).suspicion is None
    ready.store.suspect(tenure, SUSPECTED, abandon=True)
    ready.store.save_checkpoint(tenure, "5")
    assert ready.shard(X).suspicion is None
    ready.store.suspect(tenure, SUSPECTED, abandon=True)
    ready.store.force_checkpoint(ready.key, X, "9", observer="ops", reason="test")
    assert (ready.shard(X).tries, ready.shard(X).suspicion) == (0, None)


def test_a_stale_holder_cannot_store_a_suspicion(ready: World) -> None:
    old = ready.open(A, X, "run-1").tenure
    reopened(ready, "run-2", "run-1")
    with pytest.raises(LeaseLost, match="tenure 1"):
        ready.store.suspect(old, SUSPECTED, abandon=True)
    assert ready.shard(X).suspicion is None


def test_an_operator_can_quarantine_the_record_that_holds_a_shard(ready: World) -> None:
    tenure = ready.open(A, X).tenure
    ready.consume(tenure, "0", "4")

    def skip(cursor: str) -> object:
        return ready.store.skip_record(ready.key, X, cursor, observer="ops")

    ready.store.suspect(tenure, SUSPECTED, abandon=False)
    assert skip("4") == Stale(), "it is not held yet"
    ready.store.suspect(tenure, replace(SUSPECTED, alone=True, holds_shard=True), abandon=False)
    assert skip("3") == Stale(), "it is held at 4"
    assert skip("4") == Changed((X,))
    suspicion = ready.shard(X).suspicion
    assert suspicion is not None
    assert suspicion.skip
    entry = ready.journal(X)[-1]
    assert (entry.kind, entry.observer, entry.check_point) == ("ack", "ops", "4")
    with pytest.raises(UnknownShard):
        ready.store.skip_record(ready.key, X.__class__("none"), "4", observer="ops")
