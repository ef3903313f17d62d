"""A checkpoint goes back only by a recorded force, for all consumers and forms of cursors.

The cursors are those of the sources: decimals, LogHub's with an index within a group, Kinesis' with
the time of the last read. No operation stores a text that is not a cursor.
"""

from __future__ import annotations

import pytest

from dagster_leasehold.lease_store.errors import CheckpointRefused, IntentConflict
from dagster_leasehold.lease_store.rules.verification import verify
from tests.conformance.world import A, World, X

BACK = [
    ("5", "3"),
    ("10", "9"),
    ("9.1", "3"),
    ("9.10", "9.9"),
    ("9+1767225600", "3"),
    ("9+1767225600", "9"),
    ("9+1767225600", "9.7"),
    ("9", "start+1767225600"),
    ("gone", "9"),
]
UNORDERED = ["", "elsewhere", "MTIzNA==", "-5", "9,1", "9.", "٣", "9" * 513]


@pytest.mark.parametrize(("at", "back"), BACK)
def test_a_client_cannot_go_back(world: World, at: str, back: str) -> None:
    world.group()
    world.join(A)
    world.add(X)
    (tenure,) = world.hold(A, X)
    world.store.save_checkpoint(tenure, at)
    with pytest.raises(CheckpointRefused, match="--force"):
        world.store.save_checkpoint(tenure, back)
    assert world.shard(X).check_point == at
    world.store.save_checkpoint(tenure, at)


@pytest.mark.parametrize("skip", [False, True])
@pytest.mark.parametrize(("at", "back"), BACK)
def test_a_gap_cannot_go_back(world: World, at: str, back: str, *, skip: bool) -> None:
    world.group()
    world.join(A)
    world.add(X)
    (tenure,) = world.hold(A, X)
    world.consume(tenure, "start", at)
    with pytest.raises(CheckpointRefused, match="--force"):
        world.store.record_gap(tenure, start=at, end=back, reason="r", skip=skip)
    assert world.shard(X).check_point == at
    assert world.store.gaps(world.key) == []
    assert verify(world.store, world.key) == []


@pytest.mark.parametrize(("at", "back"), BACK)
def test_a_first_gap_cannot_go_back(world: World, at: str, back: str) -> None:
    world.group()
    world.join(A)
    world.add(X)
    (tenure,) = world.hold(A, X)
    with pytest.raises(CheckpointRefused):
        world.store.record_gap(tenure, start=at, end=back, reason="r")
    assert world.shard(X).check_point is None


@pytest.mark.parametrize(("at", "back"), BACK)
def test_a_batch_cannot_go_back(world: World, at: str, back: str) -> None:
    world.group()
    world.join(A)
    world.add(X)
    (tenure,) = world.hold(A, X)
    with pytest.raises(IntentConflict, match="before its start"):
        world.intend(tenure, at, back, 0)
    assert world.store.batches(world.key, X, state=None) == []


@pytest.mark.parametrize(("at", "back"), BACK)
def test_only_a_forced_checkpoint_goes_back(world: World, at: str, back: str) -> None:
    world.group()
    world.join(A)
    world.add(X)
    (tenure,) = world.hold(A, X)
    world.consume(tenure, "start", back)
    world.consume(tenure, back, at, 1)
    world.store.force_checkpoint(world.key, X, back, observer="ops", reason="read again")
    assert world.shard(X).check_point == back
    again = world.open(A, X, "run-2").tenure
    world.consume(again, back, at, 2)
    assert verify(world.store, world.key) == []


@pytest.mark.parametrize("cursor", UNORDERED)
def test_no_operation_stores_a_cursor_without_an_order(world: World, cursor: str) -> None:
    world.group()
    world.join(A)
    world.add(X)
    (tenure,) = world.hold(A, X)
    store = world.store
    for verb in (
        lambda: store.save_checkpoint(tenure, cursor),
        lambda: store.record_gap(tenure, start="0", end=cursor, reason="r"),
        lambda: store.record_gap(tenure, start=cursor, end="5", reason="r"),
        lambda: store.finish_empty(tenure, cursor),
        lambda: world.intend(tenure, "0", cursor, 0),
        lambda: world.intend(tenure, cursor, "5", 0),
        lambda: store.force_checkpoint(world.key, X, cursor, observer="ops", reason="r"),
    ):
        with pytest.raises(CheckpointRefused, match="cannot be compared"):
            verb()
    store.close_tenure(tenure, reason="test")
    with pytest.raises(CheckpointRefused, match="cannot be compared"):
        store.bootstrap(world.key, X, A, cursor, run="run-2")
    assert world.shard(X).check_point is None
    assert store.batches(world.key, X, state=None) == []
    assert store.gaps(world.key) == []


def test_a_cursor_can_be_replaced_by_a_renewed_one_of_the_same_position(world: World) -> None:
    """Kinesis renews a cursor after the last record, so that a loss is noticed."""
    world.group()
    world.join(A)
    world.add(X)
    (tenure,) = world.hold(A, X)
    world.consume(tenure, "start+1", "9+100")
    world.consume(tenure, "9+100", "9+200", 1)
    world.store.record_gap(tenure, start="9+200", end="9+300", reason="r")
    world.store.save_checkpoint(tenure, "9+400")
    assert world.shard(X).check_point == "9+400"


def test_a_client_never_commits_records_of_a_run_again(world: World) -> None:
    """1. A run commits [0, 5). 2. A client opens the shard and saves 3. 3. A run continues."""
    world.group()
    world.join(A)
    world.add(X)
    (run,) = world.hold(A, X)
    world.consume(run, "0", "5")
    world.store.close_tenure(run, reason="done")
    client = world.open(A, X, "client").tenure
    with pytest.raises(CheckpointRefused):
        world.store.record_gap(client, start="5", end="3", reason="read by a client")
    world.store.close_tenure(client, reason="done")
    after = world.open(A, X, "run-2")
    assert after.check_point == "5"
    world.consume(after.tenure, "5", "8", 1)
    ranges = [(batch.start, batch.end) for batch in world.store.batches(world.key, X)]
    assert ranges == [("0", "5"), ("5", "8")]


def test_a_bootstrap_beyond_the_end_goes_back_by_a_journalled_force(world: World) -> None:
    world.group()
    world.join(A)
    world.add(X)
    (tenure,) = world.hold(A, X)
    world.consume(tenure, "0", "10")
    world.store.close_tenure(tenure, reason="done")
    world.store.bootstrap(world.key, X, A, "99", run="run-2", start="10")
    row = world.shard(X)
    assert (row.check_point, row.bootstrap) == ("10", "99")
    (force,) = [entry for entry in world.journal(X) if entry.kind == "force"]
    assert force.check_point == "10"
    assert force.reason == "the settings of a start it at 99, and the log ends at 10"
    assert verify(world.store, world.key) == []
