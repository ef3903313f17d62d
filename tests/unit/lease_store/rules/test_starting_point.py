"""Where reading of a shard begins."""

from __future__ import annotations

from dagster_leasehold.lease_store.identifiers import NodeName, ShardId
from dagster_leasehold.lease_store.ledger_rows import Batch, BatchState
from dagster_leasehold.lease_store.rules.starting_point import (
    Bootstrap,
    first_position,
    may_bootstrap,
    resumption,
)
from dagster_leasehold.lease_store.rules.states import ShardState
from dagster_leasehold.lease_store.shard_rows import ShardLease

ZERO, A, B = ShardId("0"), NodeName("a"), NodeName("b")


def test_a_shard_continues_at_its_checkpoint_or_at_its_first_intent() -> None:
    intent = Batch(ZERO, 0, "7", "9", BatchState.INTENT, epoch=1, run="run", holder=A)
    assert resumption(None, None) is None
    assert resumption("5", None) == "5"
    assert resumption(None, intent) == "7"


def test_a_child_starts_at_its_first_record_for_any_initial_position() -> None:
    assert first_position("end", child=True) is None
    assert first_position("end", child=False) == "end"


def test_a_bootstrap_cursor_that_the_log_has_leaves_no_gap() -> None:
    assert Bootstrap("5", "5").gap == ""
    removed = Bootstrap("5", "8")
    assert (removed.start, removed.gap) == ("5", "the log has no record at 5: reading begins at 8")


def test_a_bootstrap_cursor_behind_the_end_of_the_log_starts_at_the_end() -> None:
    beyond = Bootstrap("99", "10")
    assert (beyond.start, beyond.readable) == ("10", "10")
    assert beyond.gap == "the log has no record at 99: reading begins at 10"


def test_a_bootstrap_cursor_takes_effect_once_for_the_holder_and_beside_no_other_run() -> None:
    held = ShardLease(ZERO, ShardState.ALREADY_ALLOC, lease_owner=A, consumer_owner=A)
    assert may_bootstrap(held, A, "5", "run")
    assert not may_bootstrap(held, B, "5", "run")
    open_elsewhere = ShardLease(
        ZERO, ShardState.ALREADY_ALLOC, lease_owner=A, consumer_owner=A, consumer_run="other"
    )
    assert not may_bootstrap(open_elsewhere, A, "5", "run")
    applied = ShardLease(
        ZERO, ShardState.ALREADY_ALLOC, lease_owner=A, consumer_owner=A, bootstrap="5"
    )
    assert not may_bootstrap(applied, A, "5", "run")
