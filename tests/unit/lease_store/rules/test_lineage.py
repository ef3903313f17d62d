from __future__ import annotations

from collections.abc import Container

from dagster_leasehold.lease_store.identifiers import ShardId
from dagster_leasehold.lease_store.rules.lineage import listed_again, why_waiting
from dagster_leasehold.lease_store.rules.states import ShardState
from dagster_leasehold.lease_store.shard_rows import ShardLease, ShardListing

CHILD, LISTED, FORGOTTEN = ShardId("2"), ShardId("0"), ShardId("1")


class Names(Container[ShardId]):
    """A list so long that it can be queried, but not read completely."""

    def __contains__(self, shard: object) -> bool:
        return shard in (CHILD, LISTED)


def test_a_parent_that_the_source_removed_stays_without_reading_the_list() -> None:
    """A hundred thousand shards that each read such a list would take minutes of every tick."""
    shard = ShardLease(CHILD, ShardState.WAIT, parents=(LISTED, FORGOTTEN))
    again = listed_again(shard, ShardListing(CHILD), Names())
    assert (again.parents, again.gone_parents) == ((FORGOTTEN,), (FORGOTTEN,))


def test_the_message_of_a_waiting_shard_names_its_parents_and_what_to_do() -> None:
    shard = ShardLease(CHILD, ShardState.WAIT, parents=(LISTED, FORGOTTEN))
    reading = {LISTED: ShardState.ALREADY_ALLOC, FORGOTTEN: ShardState.OVER}
    assert why_waiting(shard, reading) == (
        "waits for its parents (0) to be consumed to their ends: consume those first"
    )
    assert why_waiting(shard, {LISTED: ShardState.OVER}) == (
        "waits for parents that its source names and has never listed (1): let the source list "
        "them, or name them in `gone_parents` where they were removed; or read in any order with "
        "`leasehold group update --unordered`"
    )
    both = why_waiting(shard, {LISTED: ShardState.NOT_ALLOC})
    assert "(0)" in both
    assert "never listed (1)" in both


def test_a_child_does_not_wait_for_a_removed_parent() -> None:
    shard = ShardLease(
        CHILD, ShardState.WAIT, parents=(LISTED, FORGOTTEN), gone_parents=(FORGOTTEN,)
    )
    assert FORGOTTEN not in why_waiting(shard, {LISTED: ShardState.NOT_ALLOC})
    reopened = {LISTED: ShardState.OVER, FORGOTTEN: ShardState.NOT_ALLOC}
    assert "(1) to be consumed" in why_waiting(shard, reopened)
