"""Who has which shard when a plan is made, sorted by what planning may do with it."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from dagster_leasehold.lease_store.identifiers import NodeName
from dagster_leasehold.lease_store.rules.assignment_plan import rank_key
from dagster_leasehold.lease_store.rules.states import ShardState
from dagster_leasehold.lease_store.shard_rows import ShardLease


@dataclass(frozen=True, slots=True)
class Holdings:
    """The shards that count, sorted by what planning may do with them.

    Attributes:
        kept: per taker, the shards that are its own now.
        returning: shards in transfer to a node that takes none: they go back to their holder.
        free: nobody's; to be claimed.
        homeless: held by a live node that takes no runs; to be transferred away.
    """

    kept: dict[NodeName, list[ShardLease]]
    returning: list[ShardLease]
    free: list[ShardLease]
    homeless: list[ShardLease]


def holdings_of(
    shards: Sequence[ShardLease], takers: Sequence[NodeName], live: Collection[NodeName]
) -> Holdings:
    """Sort shards by their owners: `takers` take runs, `live` nodes are not judged dead."""
    holdings = Holdings({node: [] for node in takers}, [], [], [])
    for lease in sorted(shards, key=lambda lease: rank_key(lease.shard)):
        owner, holder = lease.lease_owner, lease.consumer_owner
        in_transfer = lease.state is ShardState.TRANSFER
        if not lease.state.held or owner is None or holder not in live:
            holdings.free.append(lease)
        elif owner in holdings.kept:
            holdings.kept[owner].append(lease)
        elif in_transfer and holder is not None and holder in holdings.kept:
            holdings.returning.append(lease)
            holdings.kept[holder].append(lease)
        elif owner in live:
            holdings.homeless.append(lease)
        else:
            holdings.free.append(lease)
    return holdings
