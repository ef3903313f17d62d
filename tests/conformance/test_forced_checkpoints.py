"""Forced checkpoints: withdrawn batches, refusals, and the reopening of a finished shard."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dagster_leasehold.lease_store.errors import CheckpointRefused, LeaseLost, UnknownShard
from dagster_leasehold.lease_store.identifiers import ShardId
from dagster_leasehold.lease_store.ledger_rows import BatchState, DataFile
from dagster_leasehold.lease_store.outcomes import Changed, Stale
from dagster_leasehold.lease_store.rules.reopening import Reopening
from dagster_leasehold.lease_store.rules.states import ShardState
from dagster_leasehold.lease_store.rules.verification import verify
from dagster_leasehold.lease_store.shard_rows import ShardListing, Tenure
from tests.conformance.world import A, B, World, X, Y, Z, a_commit
from tests.histories import check_history

W = ShardId("w")


@pytest.fixture
def read(world: World) -> Tenure:
    """Shard x, held by node a in an open run, with batches [0, 5), [5, 9), [9, 12)."""
    world.group()
    world.join(A, B)
    world.add(X)
    (tenure,) = world.hold(A, X)
    for number, (start, end) in enumerate([("0", "5"), ("5", "9"), ("9", "12")]):
        consume(world, tenure, start, end, number)
    return tenure


def consume(
    world: World, tenure: Tenure, start: str, end: str, number: int, **more: object
) -> None:
    path = f"{world.key}/{tenure.shard}/{number}-{tenure.epoch}.parquet"
    files = more.pop("files", (DataFile(path, 5, 123),))
    assert isinstance(world.consume(tenure, start, end, number, files=files, **more), Changed)


def force(
    world: World, shard: ShardId, cursor: str, reopen: Reopening = Reopening.REFUSE
) -> Changed:
    return world.store.force_checkpoint(
        world.key, shard, cursor, observer="ops", reason="again", reopen=reopen
    )


def ranges(world: World, shard: ShardId) -> list[tuple[str, str]]:
    return [(batch.start, batch.end) for batch in world.store.batches(world.key, shard)]


def test_a_forced_checkpoint_withdraws_the_batches_after_it(world: World, read: Tenure) -> None:
    """Read again, each record is in committed output once."""
    assert force(world, X, "5") == Changed((X,))
    assert ranges(world, X) == [("0", "5")]
    whole = world.store.batches(world.key, X, state=None)
    assert [(batch.state, batch.generation) for batch in whole] == [
        (BatchState.COMMITTED, 0),
        (BatchState.WITHDRAWN, 1),
        (BatchState.WITHDRAWN, 1),
    ]
    with pytest.raises(LeaseLost):
        world.store.save_checkpoint(read, "12")
    opened = world.open(A, X, "run-2")
    assert (opened.check_point, opened.next_sequence, opened.intent) == ("5", 3, None)
    consume(world, opened.tenure, "5", "12", 3)
    assert ranges(world, X) == [("0", "5"), ("5", "12")]
    assert world.journal(X)[-2].reason == "again; batches 1 to 2 are withdrawn"
    assert verify(world.store, world.key) == []


@pytest.mark.parametrize(("cursor", "left"), [("0", 0), ("9", 2), ("12", 3), ("15", 3)])
def test_a_checkpoint_can_be_forced_to_every_batch_boundary(
    world: World, read: Tenure, cursor: str, left: int
) -> None:
    assert force(world, X, cursor) == Changed((X,))
    assert len(ranges(world, X)) == left
    assert world.shard(X).check_point == cursor
    tenure = world.open(A, X, "run-2").tenure
    consume(world, tenure, cursor, "20", 3)
    assert verify(world.store, world.key) == []


def test_a_checkpoint_inside_a_batch_is_refused(world: World, read: Tenure) -> None:
    before = (world.shard(X), world.generation(), world.kinds())
    with pytest.raises(CheckpointRefused, match=r"inside batch x\.1 .* '5', .* '9'"):
        force(world, X, "7")
    assert (world.shard(X), world.generation(), world.kinds()) == before
    assert len(ranges(world, X)) == 3


def test_a_checkpoint_inside_a_recorded_gap_divides_no_batch(world: World, read: Tenure) -> None:
    world.store.record_gap(read, start="12", end="20", reason="retention")
    consume(world, read, "20", "25", 3)
    force(world, X, "15")
    assert ranges(world, X)[-1] == ("9", "12")
    consume(world, world.open(A, X, "run-2").tenure, "15", "25", 4)
    assert verify(world.store, world.key) == []


def test_a_cursor_before_the_first_batch_withdraws_everything(world: World) -> None:
    world.group(initial_position="end")
    world.join(A)
    world.add(X)
    (tenure,) = world.hold(A, X)
    consume(world, tenure, "100", "105", 0)
    force(world, X, "40")
    assert ranges(world, X) == []
    consume(world, world.open(A, X, "run-2").tenure, "40", "110", 1)
    assert verify(world.store, world.key) == []


@pytest.mark.parametrize(
    ("cursors", "inside"),
    [
        (("9", "10.2", "10.10"), "10"),
        (("start+1", "9+1767225600", "10+1767225700"), "9.4"),
        (("9", "10", "gone"), "11"),
    ],
)
def test_cursors_of_every_source_are_ordered(
    world: World, cursors: tuple[str, str, str], inside: str
) -> None:
    world.group()
    world.join(A)
    world.add(X)
    (tenure,) = world.hold(A, X)
    first, second, third = cursors
    consume(world, tenure, first, second, 0)
    consume(world, tenure, second, third, 1)
    with pytest.raises(CheckpointRefused, match="is inside batch"):
        force(world, X, inside)
    force(world, X, third)
    assert len(ranges(world, X)) == 2
    force(world, X, second)
    assert ranges(world, X) == [(first, second)]


def test_a_checkpoint_between_batches_of_one_file_is_refused(world: World) -> None:
    world.group()
    world.join(A)
    world.add(X)
    (tenure,) = world.hold(A, X)
    consume(world, tenure, "0", "5", 0)
    consume(world, tenure, "5", "9", 1, files=(DataFile("merged", 9, 9, batches=2),))
    consume(world, tenure, "9", "12", 2, files=())
    consume(world, tenure, "12", "15", 3)
    with pytest.raises(CheckpointRefused, match=r"between batches x\.1 and x\.2 .* '5', .* '12'"):
        force(world, X, "9")
    force(world, X, "12")
    assert len(ranges(world, X)) == 3
    force(world, X, "5")
    assert ranges(world, X) == [("0", "5")]


def test_a_commit_after_a_forced_checkpoint_is_refused(world: World, read: Tenure) -> None:
    """1. A intends [12, 14). 2. An operator goes back to 5. 3. A's commit changes nothing."""
    world.intend(read, "12", "14", 3)
    force(world, X, "5")
    (intent,) = [
        batch
        for batch in world.store.batches(world.key, X, state=None)
        if batch.state is BatchState.ABANDONED
    ]
    assert intent.start == "12"
    assert world.store.commit([a_commit(read, "12", "14", 3)]) == {X: Stale()}
    assert world.shard(X).check_point == "5"


# -- reopening ------------------------------------------------------------------------------------


@pytest.fixture(params=[True, False], ids=["ordered", "unordered"])
def family(world: World, request: pytest.FixtureRequest) -> World:
    """x is over; its child y was read and is over; y's child z is being read; w is unassigned."""
    world.group(ordered=request.param)
    world.join(A, B)
    world.add(
        ShardListing(X, read_only=True),
        ShardListing(Y, parents=(X,), read_only=True),
        ShardListing(Z, parents=(Y,)),
        ShardListing(W, parents=(X,)),
    )
    (tenure,) = world.hold(A, X)
    consume(world, tenure, "0", "5", 0)
    consume(world, tenure, "5", "9", 1, finished=True)
    (tenure,) = world.hold(A, Y)
    consume(world, tenure, "0", "7", 0, finished=True)
    (tenure,) = world.hold(B, Z)
    consume(world, tenure, "0", "3", 0)
    world.intend(tenure, "3", "4", 1)
    return world


def test_reopening_is_refused_if_children_were_read(family: World) -> None:
    before = (family.generation(), family.kinds(), family.shard(Z))
    with pytest.raises(CheckpointRefused, match=r"'x' .* were read \(y, z\)\. .* cascade"):
        force(family, X, "5")
    assert (family.generation(), family.kinds(), family.shard(Z)) == before
    assert family.shard(X).state is ShardState.OVER
    assert len(family.store.batches(family.key)) == 4


@pytest.mark.parametrize("reopen", Reopening)
def test_a_finished_shard_that_is_forced_to_its_end_stays_finished(
    family: World, reopen: Reopening
) -> None:
    """No record is left to read again, so the shard is not reopened, and no child waits again."""
    before = (family.generation(), family.kinds(), family.store.snapshot(family.key).shards)
    assert force(family, X, "9", reopen) == Changed()
    assert (family.generation(), family.kinds()) == before[:2]
    assert family.store.snapshot(family.key).shards == before[2]
    assert verify(family.store, family.key) == []


def test_cascade_resets_the_children(family: World) -> None:
    ordered = family.store.pulse(family.key).group.ordered
    stale = Tenure(family.key, Z, B, 1, "run-1")
    changed = force(family, X, "5", Reopening.CASCADE)
    assert set(changed.shards) == ({X, Y, Z, W} if ordered else {X, Y, Z})
    assert [(batch.shard, batch.start) for batch in family.store.batches(family.key)] == [(X, "0")]
    assert family.shard(X).state is ShardState.NOT_ALLOC
    for shard in (Y, Z):
        row = family.shard(shard)
        assert (row.check_point, row.consumer_run) == (None, "")
        assert row.consumer_epoch == 2
    states = [family.shard(shard).state for shard in (Y, Z, W)]
    if ordered:
        assert states == [ShardState.WAIT] * 3
        assert family.edges(Y)[-2:] == [7, 10]
        assert family.edges(Z)[-2:] == [4, 10]
        assert family.edges(W)[-1:] == [10]
    else:
        assert states == [ShardState.NOT_ALLOC, ShardState.ALREADY_ALLOC, ShardState.NOT_ALLOC]
        assert family.shard(Z).consumer_owner == B
    with pytest.raises(LeaseLost):
        family.store.save_checkpoint(stale, "4")
    assert not family.store.review([stale])[Z].current
    assert verify(family.store, family.key) == []


def test_after_a_cascade_parents_and_children_are_read_again_in_order(family: World) -> None:
    force(family, X, "0", Reopening.CASCADE)
    (tenure,) = hold_again(family, X)
    consume(family, tenure, "0", "9", 2, finished=True)
    (tenure,) = hold_again(family, Y)
    consume(family, tenure, "0", "7", 1, finished=True)
    (tenure,) = hold_again(family, Z)
    consume(family, tenure, "0", "6", 2)
    assert {shard: ranges(family, shard) for shard in (X, Y, Z)} == {
        X: [("0", "9")],
        Y: [("0", "7")],
        Z: [("0", "6")],
    }
    assert verify(family.store, family.key) == []


def hold_again(world: World, shard: ShardId) -> list[Tenure]:
    if world.shard(shard).state is ShardState.NOT_ALLOC:
        world.claim(A, shard)
    owner = world.shard(shard).consumer_owner
    assert owner is not None
    return [world.open(owner, shard, f"again-{shard}").tenure]


def test_accept_reopens_only_the_parent_and_journals_it(family: World) -> None:
    family.claim(A, W)
    untouched = [family.shard(shard) for shard in (Y, Z, W)]
    assert force(family, X, "5", Reopening.ACCEPT) == Changed((X,))
    assert [family.shard(shard) for shard in (Y, Z, W)] == untouched
    assert ranges(family, X) == [("0", "5")]
    assert [(entry.shard, entry.check_point) for entry in family.journal() if entry.kind == "accept"
    ] == [(W, "5"), (Y, "5")]  # fmt: skip
    family.open(A, W, "run-2")
    family.claim(A, X)
    consume(family, family.open(A, X, "run-3").tenure, "5", "9", 2, finished=True)
    assert verify(family.store, family.key) == []


def test_verify_reports_a_broken_order_that_was_not_accepted(world: World) -> None:
    """The same reopening, with the record of the choice taken away."""
    world.group()
    world.join(A, B)
    world.add(ShardListing(X, read_only=True), ShardListing(Y, parents=(X,)))
    consume(world, world.hold(A, X)[0], "0", "5", 0, finished=True)
    (tenure,) = world.hold(B, Y)
    consume(world, tenure, "0", "3", 0)
    world.store.close_tenure(tenure, reason="test")
    force(world, X, "0", Reopening.ACCEPT)
    world.open(B, Y, "run-2")
    assert verify(world.store, world.key) == []
    journal = [entry for entry in world.journal() if entry.kind != "accept"]
    shards = world.store.snapshot(world.key).shards
    batches = world.store.batches(world.key, state=None)
    violations = check_history(shards, journal, batches, [], ordered=True)
    assert [(violation.rule, violation.shard) for violation in violations] == [("order", Y)]


def test_unread_children_of_a_reopened_parent_wait_again(world: World) -> None:
    world.group()
    world.join(A, B)
    world.add(ShardListing(X, read_only=True), *(ShardListing(s, parents=(X,)) for s in (Y, Z)))
    consume(world, world.hold(A, X)[0], "0", "5", 0, finished=True)
    world.claim(B, Y)
    changed = force(world, X, "0")
    assert changed.shards[0] == X
    assert [world.shard(shard).state for shard in (X, Y, Z)] == [
        ShardState.NOT_ALLOC,
        ShardState.WAIT,
        ShardState.WAIT,
    ]
    assert world.edges(Y) == [1, 2, 3, 4, 10]
    assert world.store.free_orphans(world.key, observer="test") == Changed()
    world.claim(A, X)
    consume(world, world.open(A, X, "run-2").tenure, "0", "5", 1, finished=True)
    assert world.shard(Y).state is world.shard(Z).state is ShardState.NOT_ALLOC
    assert verify(world.store, world.key) == []


def test_a_merged_child_waits_only_for_its_reopened_parent(world: World) -> None:
    world.group()
    world.join(A)
    world.add(
        ShardListing(X, read_only=True),
        ShardListing(Y, read_only=True),
        ShardListing(Z, parents=(X, Y)),
    )
    for tenure in world.hold(A, X, Y):
        consume(world, tenure, "0", "5", 0, finished=True)
    consume(world, world.hold(A, Z)[0], "0", "2", 0)
    force(world, Y, "0", Reopening.CASCADE)
    assert ranges(world, X) == [("0", "5")]
    assert world.shard(Z).state is ShardState.WAIT
    world.claim(A, Y)
    consume(world, world.open(A, Y, "run-2").tenure, "0", "5", 1, finished=True)
    assert world.shard(Z).state is ShardState.NOT_ALLOC
    assert verify(world.store, world.key) == []


def test_a_child_in_transfer_is_fenced_and_waits(world: World) -> None:
    world.group()
    world.join(A, B)
    world.add(ShardListing(X, read_only=True), ShardListing(Y, parents=(X,)))
    consume(world, world.hold(A, X)[0], "0", "5", 0, finished=True)
    (tenure,) = world.hold(A, Y)
    consume(world, tenure, "0", "3", 0)
    world.transfer(Y, B)
    assert world.shard(Y).state is ShardState.TRANSFER
    force(world, X, "0", Reopening.CASCADE)
    row = world.shard(Y)
    assert (row.state, row.lease_owner, row.consumer_owner) == (ShardState.WAIT, None, None)
    assert world.edges(Y)[-2:] == [9, 10]
    assert not world.store.review([tenure])[Y].current
    assert verify(world.store, world.key) == []


def test_an_unknown_shard_is_refused(world: World) -> None:
    world.group()
    with pytest.raises(UnknownShard, match="'x'"):
        force(world, X, "0", Reopening.CASCADE)


def test_the_order_of_a_group_can_change_between_reopenings(world: World) -> None:
    """Reopened while the group was unordered: the child continues after it became ordered."""
    group = world.group(ordered=False)
    world.join(A, B)
    world.add(ShardListing(X, read_only=True), ShardListing(Y, parents=(X,)))
    consume(world, world.hold(A, X)[0], "0", "5", 0, finished=True)
    world.claim(B, Y)
    force(world, X, "0")
    assert world.shard(Y).state is ShardState.ALREADY_ALLOC
    world.store.update_group(replace(group, ordered=True), observer="test")
    world.open(B, Y, "run-2")
    assert verify(world.store, world.key) == []
