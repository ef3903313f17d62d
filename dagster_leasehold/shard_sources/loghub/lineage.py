"""The parents of shards, derived from hash ranges because the service does not list them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dagster_leasehold.lease_store.identifiers import ShardId
from dagster_leasehold.lease_store.shard_rows import ShardListing


@dataclass(frozen=True, slots=True)
class ListedShard:
    """A shard as the service lists it; `[begin, end)` are hashes of 32 hexadecimal digits."""

    number: int
    begin: str
    end: str
    read_only: bool


def with_parents(shards: Sequence[ListedShard]) -> list[ShardListing]:
    """Return the shards in order of creation, each with its parents.

    Shards are numbered in order of creation, and each hash belongs to one shard at a time. So the
    parents of a new shard are the previous shards of its range: one at a split, two at a merge,
    none at first. Removed parents are not listed.
    """
    owners: list[tuple[str, str, int]] = []
    listing: list[ShardListing] = []
    for shard in sorted(shards, key=lambda each: each.number):
        parents: list[int] = []
        remaining: list[tuple[str, str, int]] = []
        for begin, end, owner in owners:
            if begin >= shard.end or end <= shard.begin:
                remaining.append((begin, end, owner))
                continue
            parents.append(owner)
            if begin < shard.begin:
                remaining.append((begin, shard.begin, owner))
            if end > shard.end:
                remaining.append((shard.end, end, owner))
        owners = [*remaining, (shard.begin, shard.end, shard.number)]
        listing.append(
            ShardListing(
                shard=ShardId(str(shard.number)),
                parents=tuple(ShardId(str(parent)) for parent in sorted(set(parents))),
                hash_begin=shard.begin,
                hash_end=shard.end,
                read_only=shard.read_only,
            )
        )
    return listing
