from __future__ import annotations

from collections.abc import Container

from dagster_leasehold.lease_store.identifiers import ShardId
from dagster_leasehold.lease_store.rules.lineage import listed_again
from dagster_leasehold.lease_store.rules.states import ShardState
from dagster_leasehold.lease_store.shard_rows import ShardLease, ShardListing

CHILD, LISTED, FORGOTTEN = ShardId("2"), ShardId("0"), ShardId("1")


class Names(Container[ShardId]):
    """A list so long that it may be asked, but not read from its beginning to its end."""

    def __contains__(self, shard: object) -> bool:
        return shard in (CHILD, LISTED)


def test_a_parent_that_the_source_forgot_stays_and_the_list_is_not_read_for_it() -> None:
    """A hundred thousand shards that each read such a list would take minutes of every tick."""
    shard = ShardLease(CHILD, ShardState.WAIT, parents=(LISTED, FORGOTTEN))
    again = listed_again(shard, ShardListing(CHILD), Names())
    assert (again.parents, again.gone_parents) == ((FORGOTTEN,), (FORGOTTEN,))
