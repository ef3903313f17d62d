"""The recent history of a group: holdings, moves, runs and rates from journal and ledger."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from dagster_leasehold.lease_store.identifiers import NodeName, ShardId
from dagster_leasehold.lease_store.journal_rows import JournalEntry
from dagster_leasehold.lease_store.ledger_rows import Batch, BatchState, BatchStatistics
from dagster_leasehold.lease_store.rules.states import ShardState
from dagster_leasehold.orchestration.group_history import (
    Holding,
    Move,
    holders_before,
    holdings_over_time,
    moves,
    points,
    runs,
)

BEGIN = datetime(2026, 1, 2, tzinfo=UTC)
A, B = NodeName("a"), NodeName("b")
HELD, MOVING, FREE = ShardState.ALREADY_ALLOC, ShardState.TRANSFER, ShardState.NOT_ALLOC
SECOND = timedelta(seconds=1)


def edge(at: int, to: ShardState, owner: NodeName | None, shard: str = "0") -> JournalEntry:
    moment = BEGIN + timedelta(seconds=at)
    return JournalEntry(
        "edge", "why", ShardId(shard), to_state=to, to_owner=owner,
        sequence=at, observer="test", at=moment,
    )  # fmt: skip


def stretch(begin: int, end: int, node: NodeName, shard: str = "0") -> Holding:
    second = timedelta(seconds=1)
    return Holding(ShardId(shard), node, BEGIN + begin * second, BEGIN + end * second)


@pytest.mark.parametrize(
    ("journal", "expected"),
    [
        ([edge(1, HELD, A)], [stretch(1, 9, A)]),
        ([edge(1, HELD, A), edge(4, FREE, None)], [stretch(1, 4, A)]),
        (
            [edge(1, HELD, A), edge(3, MOVING, B), edge(5, HELD, B)],
            [stretch(1, 5, A), stretch(5, 9, B)],
        ),
        ([edge(1, HELD, A), edge(3, MOVING, B), edge(5, HELD, A)], [stretch(1, 9, A)]),
        (
            [edge(1, HELD, A, "10"), edge(2, HELD, B, "9")],
            [stretch(2, 9, B, "9"), stretch(1, 9, A, "10")],
        ),
    ],
    ids=["held", "freed", "transferred", "given back", "by shard"],
)
def test_the_history_of_holders_is_read_from_the_journal(
    journal: list[JournalEntry], expected: list[Holding]
) -> None:
    assert holdings_over_time(journal, BEGIN + timedelta(seconds=9)) == expected


def test_the_newest_part_of_a_long_journal_starts_with_the_holders() -> None:
    zero, one, two = (ShardId(text) for text in "012")
    journal = [
        replace(edge(3, MOVING, A, "0"), from_state=HELD, from_owner=A),
        replace(edge(4, FREE, None, "0"), from_state=MOVING, from_owner=A),
        replace(edge(5, HELD, B, "1"), from_state=FREE),
    ]
    holders = holders_before(journal, {one: B, two: B})
    assert holders == {zero: A, two: B}
    assert holdings_over_time(journal, BEGIN + timedelta(seconds=9), first_holders=holders) == [
        stretch(3, 4, A, "0"),
        stretch(5, 9, B, "1"),
        stretch(3, 9, B, "2"),
    ]


def test_a_move_lasts_from_the_transfer_or_the_release_to_the_next_holder() -> None:
    journal = [
        edge(1, HELD, A),
        replace(edge(3, MOVING, B), from_owner=A, edge=5),
        replace(edge(5, HELD, B), edge=6),
        replace(edge(7, FREE, None), from_owner=B, edge=4),
        replace(edge(9, HELD, A), edge=3),
        replace(edge(11, MOVING, B), from_owner=A, edge=5),
    ]
    zero = ShardId("0")
    assert moves(journal) == [
        Move(zero, BEGIN + 3 * SECOND, BEGIN + 5 * SECOND, A, B, planned=True),
        Move(zero, BEGIN + 7 * SECOND, BEGIN + 9 * SECOND, B, A, planned=False),
    ]
    assert [move.seconds for move in moves(journal)] == [2.0, 2.0]


def test_a_finished_shard_has_no_move() -> None:
    journal = [
        replace(edge(3, MOVING, B), from_owner=A, edge=5),
        replace(edge(4, ShardState.OVER, None), from_owner=A, edge=8),
        replace(edge(6, HELD, B), edge=3),
    ]
    assert moves(journal) == []


def committed(at: float, records: int, run: str = "r", shard: str = "0", age: float = 2) -> Batch:
    moment = BEGIN + at * SECOND
    statistics = BatchStatistics(
        records, 0, records, first_event_time=moment - age * SECOND, last_event_time=moment
    )
    return Batch(
        ShardId(shard), int(at), "0", "1", BatchState.COMMITTED, 1, run, A,
        statistics=statistics, committed_at=moment,
    )  # fmt: skip


def test_a_run_lists_its_opened_shards_and_committed_batches() -> None:
    opened = JournalEntry(
        "open", "why", ShardId("1"), to_owner=B, run="s", sequence=1, observer="b", at=BEGIN
    )
    (first, second) = runs([opened], [committed(3, 10), committed(9, 5, shard="2")])
    assert (first.run, first.node, first.shards, first.records) == ("s", B, {"1"}, 0)
    assert (second.run, second.node, second.shards) == ("r", A, {"0", "2"})
    assert (second.batches, second.records) == (2, 15)
    assert (second.begin, second.end) == (BEGIN + 3 * SECOND, BEGIN + 9 * SECOND)


def test_rates_and_delays_are_those_of_equal_spans() -> None:
    batches = [committed(0, 30), committed(4, 10, age=9), committed(20, 40)]
    spans = points(batches, buckets=4)
    assert [(point.records, point.rate, point.delay_s) for point in spans] == [
        (40, 8.0, 9.0),
        (0, 0.0, None),
        (0, 0.0, None),
        (40, 8.0, 2.0),
    ]
    assert sum(point.records for point in points(batches)) == 80
    assert points([]) == []
