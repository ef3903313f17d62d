"""The effect of an edge on a row: every field, and only from the states that have the edge."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dagster_leasehold.lease_store.identifiers import GroupKey, NodeName, ShardId
from dagster_leasehold.lease_store.rules.states import EDGES, ShardState
from dagster_leasehold.lease_store.rules.transitions import (
    Step,
    claimed,
    closed,
    departed,
    finished,
    forced,
    holds,
    opened,
    orphan_freed,
    released,
    transfer_begun,
    transfer_cancelled,
    transfer_completed,
)
from dagster_leasehold.lease_store.shard_rows import ShardLease, Tenure

A, B, C = NodeName("a"), NodeName("b"), NodeName("c")
X = ShardId("x")
FREE = ShardLease(X, ShardState.NOT_ALLOC, lease_id=4, check_point="7", consumer_epoch=2)
HELD = replace(FREE, state=ShardState.ALREADY_ALLOC, lease_owner=A, consumer_owner=A)
OPEN = replace(HELD, consumer_run="run-1", handoff_eta_s=3.0)
MOVING = replace(OPEN, state=ShardState.TRANSFER, lease_owner=B)
OVER = replace(FREE, state=ShardState.OVER)
WAIT = replace(FREE, state=ShardState.WAIT)
EVERY = [WAIT, FREE, HELD, OPEN, MOVING, OVER]

RULES = {
    "claimed": (lambda row: claimed(row, B, "r"), [FREE]),
    "released": (lambda row: released(row, "r"), [HELD, OPEN, MOVING]),
    "transfer_begun": (lambda row: transfer_begun(row, B, "r"), [HELD, OPEN]),
    "transfer_cancelled": (lambda row: transfer_cancelled(row, "r"), [MOVING]),
    "transfer_completed": (lambda row: transfer_completed(row, "r"), [MOVING]),
}


@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize("row", EVERY, ids=lambda row: f"{row.state}{row.consumer_run and '-open'}")
def test_each_rule_applies_exactly_at_its_edges(name: str, row: ShardLease) -> None:
    rule, fitting = RULES[name]
    step: Step | None = rule(row)
    assert (step is not None) == (row in fitting)
    if step:
        check_sound(step)


def check_sound(step: Step) -> None:
    """Check the invariants of every change of ownership."""
    after = step.after
    edges = [note for note in step.notes if note.kind == "edge"]
    assert after.lease_id == step.before.lease_id + len(edges)
    assert after.check_point == step.before.check_point
    assert after.consumer_epoch >= step.before.consumer_epoch
    for note in edges:
        assert note.to_state is not None
        assert EDGES[note.from_state, note.to_state] == note.edge
    if not after.state.held:
        assert (after.lease_owner, after.consumer_owner, after.consumer_run) == (None, None, "")
        assert after.handoff_eta_s is None
    if after.state is ShardState.ALREADY_ALLOC:
        assert after.lease_owner == after.consumer_owner is not None
    if after.state is ShardState.TRANSFER:
        assert after.lease_owner != after.consumer_owner
        assert after.consumer_run
    ended = step.before.consumer_run != "" and after.consumer_run != step.before.consumer_run
    closings = [note for note in step.notes if note.kind == "close"]
    assert len(closings) == ended
    if closings:
        assert (closings[0].run, closings[0].epoch) == (
            step.before.consumer_run,
            step.before.consumer_epoch,
        )


def test_a_transfer_from_a_holder_without_a_run_completes_at_once() -> None:
    step = transfer_begun(HELD, B, "balance")
    assert step is not None
    assert [note.edge for note in step.notes] == [5, 6]
    assert (step.after.consumer_owner, step.after.lease_id) == (B, 6)


def test_a_holder_is_not_given_its_own_shard() -> None:
    assert transfer_begun(OPEN, A, "r") is None


@pytest.mark.parametrize("row", [OPEN, MOVING])
def test_finishing_ends_tenure_and_ownership(row: ShardLease) -> None:
    step = finished(row, "9", "end")
    assert step.after.check_point == "9"
    check_sound(replace(step, after=replace(step.after, check_point=row.check_point)))
    assert [note.kind for note in step.notes] == ["close", "edge"]


def test_opening_raises_the_epoch_by_one() -> None:
    step = opened(HELD, "run-2")
    assert (step.after.consumer_epoch, step.after.consumer_run) == (3, "run-2")
    assert [note.kind for note in step.notes] == ["open"]
    assert [note.kind for note in opened(OPEN, "run-2").notes] == ["close", "open"]


def test_closing_transfers_only_to_a_live_next_node() -> None:
    assert closed(MOVING, [A, B], "r").after.consumer_owner == B
    back = closed(MOVING, [A], "r")
    assert (back.after.consumer_owner, back.after.lease_owner) == (A, A)
    stays = closed(OPEN, [A], "r")
    assert stays.after == replace(OPEN, consumer_run="", handoff_eta_s=None)
    assert stays.after.lease_id == OPEN.lease_id
    check_sound(closed(MOVING, [A, B], "r"))
    check_sound(back)


@pytest.mark.parametrize("row", EVERY, ids=lambda row: f"{row.state}{row.consumer_run and '-open'}")
def test_forcing_starts_a_new_epoch_in_every_state(row: ShardLease) -> None:
    step = forced(row, "3", [A, B], "operator")
    assert (step.after.check_point, step.after.consumer_epoch) == ("3", 3)
    assert step.after.consumer_run == ""
    assert "force" in [note.kind for note in step.notes]
    edges = [note.edge for note in step.notes if note.kind == "edge"]
    assert edges == {ShardState.OVER: [7], ShardState.TRANSFER: [6]}.get(row.state, [])


def test_a_departing_node_releases_its_shards_and_its_transfers() -> None:
    other = replace(HELD, shard=ShardId("y"), lease_owner=C, consumer_owner=C)
    waiting = replace(MOVING, shard=ShardId("z"), lease_owner=A, consumer_owner=B)
    steps = departed([OPEN, other, waiting, FREE, WAIT, OVER], A, "left")
    assert [(step.after.shard, step.after.state) for step in steps] == [
        ("x", ShardState.NOT_ALLOC),
        ("z", ShardState.ALREADY_ALLOC),
    ]
    assert steps[1].after.consumer_owner == B
    assert steps[1].after.consumer_run == "run-1"


@pytest.mark.parametrize(
    ("row", "members", "edge"),
    [
        (HELD, [A], None),
        (HELD, [B], 4),
        (MOVING, [A, B], None),
        (MOVING, [B], 9),
        (MOVING, [A], 6),
        (MOVING, [], 9),
        (replace(MOVING, consumer_run=""), [A, B], 6),
        (FREE, [], None),
        (WAIT, [], None),
        (OVER, [], None),
    ],
)
def test_orphans(row: ShardLease, members: list[NodeName], edge: int | None) -> None:
    step = orphan_freed(row, members)
    assert [note.edge for note in step.notes if note.kind == "edge"] == [edge] if step else not edge


@pytest.mark.parametrize(
    ("row", "current"), [(OPEN, True), (MOVING, True), (HELD, False), (FREE, False), (OVER, False)]
)
def test_a_tenure_is_valid_until_any_part_of_it_changes(row: ShardLease, current: bool) -> None:
    tenure = Tenure(GroupKey.parse("g", "s"), X, A, 2, "run-1")
    assert holds(row, tenure) is current
    assert not holds(row, replace(tenure, epoch=1))
    assert not holds(row, replace(tenure, run="run-2"))
    assert not holds(row, replace(tenure, holder=B))
    assert not holds(None, tenure)
