"""The measure of a rolling update: times without an owner or a run, read from a journal."""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta

from dagster_leasehold.lease_store.identifiers import ShardId
from dagster_leasehold.lease_store.journal_rows import JournalEntry
from dagster_leasehold.lease_store.rules.states import ShardState
from tests.acceptance.ownership import seconds_without_owner, seconds_without_run

FREE, HELD, MOVING = ShardState.NOT_ALLOC, ShardState.ALREADY_ALLOC, ShardState.TRANSFER
S, T = ShardId("0"), ShardId("1")


def journal(*rows: tuple[float, ShardId, str | ShardState]) -> list[JournalEntry]:
    """Return entries of given seconds: edges into a state, or of another kind."""
    began = datetime(2026, 1, 1, tzinfo=UTC)
    return [
        JournalEntry(
            "edge" if isinstance(what, ShardState) else what,
            "",
            shard,
            to_state=what if isinstance(what, ShardState) else None,
            sequence=number,
            observer="test",
            at=began + timedelta(seconds=second),
        )
        for number, (second, shard, what) in enumerate(rows)
    ]


def test_ownership_times_count_freed_shards_and_not_transfers() -> None:
    entries = journal(
        (0, S, MOVING), (9, S, HELD), (10, T, FREE), (12, T, HELD), (20, T, FREE), (27.9, T, HELD)
    )
    assert seconds_without_owner(entries) == {S: 0.0, T: 7.9}


def test_a_shard_without_an_owner_at_the_end_counts_as_unowned_forever() -> None:
    entries = journal((0, S, FREE), (1, S, HELD), (2, S, FREE), (3, T, MOVING))
    assert seconds_without_owner(entries) == {S: math.inf, T: 0.0}


def test_the_time_between_two_runs_is_measured() -> None:
    entries = journal(
        (0, S, "close"), (0, S, HELD), (6.5, S, "open"), (20, S, "close"), (21, S, "open")
    )
    assert seconds_without_run(entries) == {S: 6.5}
