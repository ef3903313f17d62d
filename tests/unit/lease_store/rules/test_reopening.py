"""Where a checkpoint can be forced to: kept and repeated records meet without overlap."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dagster_leasehold.lease_store.errors import CheckpointRefused
from dagster_leasehold.lease_store.identifiers import GroupKey, NodeName, ShardId
from dagster_leasehold.lease_store.ledger_rows import Batch, BatchState, DataFile
from dagster_leasehold.lease_store.rules.reopening import concerned
from dagster_leasehold.lease_store.rules.states import ShardState
from dagster_leasehold.lease_store.rules.withdrawal import first_withdrawn
from dagster_leasehold.lease_store.shard_rows import ShardLease
from tests.ledger_output import ledger_of

KEY = GroupKey.parse("group", "stream")
X = ShardId("x")


def batch(number: int, start: int, end: int, spans: int = 1) -> Batch:
    files = (DataFile(f"{number}", end - start, 1, batches=spans),)
    state = BatchState.COMMITTED
    return Batch(X, number, str(start), str(end), state, 1, "run", NodeName("a"), files=files)


def border(row: ShardLease, ledger: list[Batch], cursor: str) -> int:
    """The place in the ledger of the first batch that is withdrawn; its length for none."""
    first = first_withdrawn(row, ledger_of(ledger), cursor, key=KEY)
    return len(ledger) if first is None else ledger.index(first)


@st.composite
def ledgers(draw: st.DrawFn) -> list[Batch]:
    """Batches in order, with gaps between some of them."""
    at, batches = draw(st.integers(0, 5)), list[Batch]()
    number = 0
    for _ in range(draw(st.integers(0, 6))):
        # Abandoned and withdrawn batches leave holes between the numbers.
        number += draw(st.sampled_from([1, 1, 1, 4]))
        at += draw(st.sampled_from([0, 0, 0, 3]))
        end = at + draw(st.integers(1, 4))
        batches.append(batch(number, at, end))
        at = end
    return batches


@given(ledgers(), st.integers(0, 40))
def test_exactly_the_records_that_are_read_again_are_withdrawn(
    ledger: list[Batch], cursor: int
) -> None:
    row = ShardLease(X, ShardState.NOT_ALLOC, check_point=ledger[-1].end if ledger else None)
    inside = [each for each in ledger if int(each.start) < cursor < int(each.end)]
    if inside:
        borders = f"'{inside[0].start}', where it starts, or to '{inside[0].end}'"
        with pytest.raises(CheckpointRefused, match=borders):
            border(row, ledger, str(cursor))
        return
    place = border(row, ledger, str(cursor))
    assert all(int(each.end) <= cursor for each in ledger[:place])
    assert all(int(each.start) >= cursor for each in ledger[place:])


@given(ledgers(), st.integers(0, 5), st.integers(0, 40))
def test_a_merged_file_is_kept_or_withdrawn_as_a_whole(
    ledger: list[Batch], first: int, cursor: int
) -> None:
    if first + 2 >= len(ledger):
        return
    alone = ledger[first]
    merged = batch(alone.sequence, int(alone.start), int(alone.end), spans=3)
    covered = [replace(each, files=()) for each in ledger[first + 1 : first + 3]]
    ledger = [*ledger[:first], merged, *covered, *ledger[first + 3 :]]
    row = ShardLease(X, ShardState.NOT_ALLOC, check_point=ledger[-1].end)
    try:
        place = border(row, ledger, str(cursor))
    except CheckpointRefused:
        return
    assert not first < place < first + 3


def test_forcing_the_current_checkpoint_withdraws_nothing() -> None:
    ledger = [batch(0, 0, 5)]
    row = ShardLease(X, ShardState.NOT_ALLOC, check_point="3")
    assert border(row, ledger, "3") == 1
    with pytest.raises(CheckpointRefused, match="inside batch"):
        border(row, ledger, "4")


def test_all_descendants_of_a_finished_shard_are_listed_nearest_first() -> None:
    lineage = {"a": (), "b": ("a",), "c": ("b", "x"), "d": ("a",), "x": ()}
    rows = {
        ShardId(name): ShardLease(
            ShardId(name), ShardState.OVER, parents=tuple(ShardId(each) for each in parents)
        )
        for name, parents in lineage.items()
    }
    assert concerned(rows, ShardId("a")) == ["a", "b", "d", "c"]
    rows[ShardId("a")] = ShardLease(ShardId("a"), ShardState.NOT_ALLOC)
    assert concerned(rows, ShardId("a")) == ["a"]
