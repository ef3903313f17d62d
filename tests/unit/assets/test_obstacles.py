"""The reason why a shard makes no progress, by the rows alone."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

import pytest

from dagster_leasehold.assets.obstacles import ObstacleKind, last_error, live_nodes, obstacle
from dagster_leasehold.lease_store.group_rows import Group, Node, Snapshot
from dagster_leasehold.lease_store.identifiers import GroupKey, NodeName, ShardId
from dagster_leasehold.lease_store.rules.isolation import Suspicion
from dagster_leasehold.lease_store.rules.refusals import gap_held
from dagster_leasehold.lease_store.rules.states import ShardState
from dagster_leasehold.lease_store.shard_rows import ShardLease
from dagster_leasehold.lease_store.sql_store.mapping import dumped, loaded

KEY = GroupKey.parse("default", "orders")
A, B = NodeName("a"), NodeName("b")
NOON = datetime(2026, 3, 29, 12, tzinfo=UTC)
ROW = ShardLease(
    ShardId("3"), ShardState.ALREADY_ALLOC, lease_owner=A, consumer_owner=A, check_point="40"
)
LIVE = {A: True}
HELD = replace(Suspicion(failure="It hangs.").within(1, alone=True), holds_shard=True)


def failed(error: str, suspicion: Suspicion | None = None) -> ShardLease:
    return replace(ROW, suspicion=(suspicion or Suspicion()).failed(error, NOON))


@pytest.mark.parametrize(
    ("row", "nodes", "source_error", "kind", "words"),
    [
        (
            failed("The transform of orders raised ValueError: no price."),
            LIVE,
            "",
            ObstacleKind.RUN,
            "The last run of shard 3 of orders/default failed, and the next one retries: The "
            "transform of orders raised ValueError: no price.",
        ),
        (
            failed(str(gap_held(KEY, ShardId("3"), "40", "50"))),
            LIVE,
            "",
            ObstacleKind.RUN,
            "Accept the loss with `leasehold gap ack orders 3`",
        ),
        (
            replace(ROW, suspicion=HELD),
            LIVE,
            "",
            ObstacleKind.RECORD,
            "Shard 3 of orders/default is held at cursor 40, because the record there stops every "
            "run (It hangs).",
        ),
        (
            ROW,
            LIVE,
            "The topic refuses the credentials.",
            ObstacleKind.SOURCE,
            "Shard 3 of orders/default cannot be read, because its source does not answer: The "
            "topic refuses the credentials.",
        ),
        (
            ROW,
            {},
            "",
            ObstacleKind.NODE,
            "Shard 3 of orders/default is not read, because no node of the group is alive.",
        ),
        (ROW, {A: False, B: False}, "", ObstacleKind.NODE, "because no live node takes runs."),
        (ROW, {B: True}, "", ObstacleKind.NODE, "because its node a is not alive."),
        (ROW, {A: False, B: True}, "", ObstacleKind.NODE, "because its node a takes no runs."),
        (
            replace(ROW, state=ShardState.NOT_ALLOC, consumer_owner=None),
            LIVE,
            "",
            ObstacleKind.NODE,
            "because no node holds it. See `leasehold plan --explain`.",
        ),
        (
            replace(ROW, tries=2, consumer_run="run-2"),
            LIVE,
            "",
            ObstacleKind.RUN,
            "The run died without an error message, as if it was killed.",
        ),
    ],
    ids=[
        "a transform raises",
        "a gap is held",
        "a record is held",
        "the source refuses",
        "no node is alive",
        "no node takes runs",
        "its node is dead",
        "its node takes no runs",
        "it is unassigned",
        "its run was killed",
    ],
)
def test_each_obstacle_is_one_sentence(
    row: ShardLease, nodes: dict[NodeName, bool], source_error: str, kind: ObstacleKind, words: str
) -> None:
    reason = obstacle(KEY, row, nodes=nodes, source_error=source_error)
    assert reason is not None
    assert reason.kind is kind
    assert words in reason.sentence
    assert "\n" not in reason.sentence


@pytest.mark.parametrize(
    "row",
    [
        ROW,
        replace(ROW, tries=1, consumer_run="run-1"),
        replace(ROW, state=ShardState.WAIT, consumer_owner=None),
        replace(ROW, state=ShardState.OVER, consumer_owner=None),
    ],
    ids=["idle", "open in its first run", "waits for its parents", "over"],
)
def test_a_shard_without_an_obstacle_has_none(row: ShardLease) -> None:
    assert obstacle(KEY, row, nodes=LIVE) is None


def test_an_earlier_error_of_a_caught_up_shard_is_no_obstacle() -> None:
    row = failed("Run 7 ended without closing it.")
    assert obstacle(KEY, row, nodes=LIVE, unread=False, source_error="away") is None
    assert last_error(row) == "Run 7 ended without closing it."
    assert obstacle(KEY, replace(row, suspicion=HELD), nodes=LIVE, unread=False) is not None


def test_a_current_obstacle_is_named_before_an_earlier_error() -> None:
    row = failed("The transform raised.")
    reason = obstacle(KEY, row, nodes=LIVE, source_error="It refuses.")
    assert reason is not None
    assert reason.kind is ObstacleKind.SOURCE


def test_an_error_is_stored_with_its_time_and_does_not_grow() -> None:
    suspicion = HELD.failed("x" * 5_000, NOON)
    assert loaded("suspicion", dumped("suspicion", suspicion)) == suspicion
    assert len(suspicion.error) == 1_000
    assert suspicion.after(1) is None
    left = replace(suspicion, remaining=3, records=0).after(1)
    assert left is not None
    assert left.error == "", "a commit is progress"


def test_a_node_is_alive_that_has_beaten_within_the_timeout() -> None:
    nodes = (Node(A, 1, "a-1"), Node(B, 1, "b-1", accepts_runs=False), Node(NodeName("c"), 1, ""))
    snapshot = Snapshot(Group(KEY, timeout_s=20.0), nodes, ())
    assert live_nodes(snapshot, {A: 20.0, B: 3.0}) == {A: True, B: False}
    assert live_nodes(snapshot, {A: 20.1, B: 20.1}) == {}
