"""Pure rules for edges 1 and 2: new shards, and shards whose parents are over."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from dataclasses import fields, replace
from typing import Any

from dagster_leasehold.lease_store.identifiers import ShardId
from dagster_leasehold.lease_store.journal_rows import Note
from dagster_leasehold.lease_store.rules.states import ShardState, first_state, may_start
from dagster_leasehold.lease_store.rules.transitions import Step, edge_note
from dagster_leasehold.lease_store.shard_rows import ShardLease, ShardListing

NEVER_LISTED = "parents that its source names and has never listed"
PARENTS_OVER = "all its parents are over"
UNORDERED = "the group became unordered"


def first_seen(
    listing: ShardListing, *, ordered: bool, states: Mapping[str, ShardState]
) -> tuple[ShardLease, Note]:
    """Edge 1: return the row and the journal entry of a new shard."""
    state = first_state(
        ordered=ordered, parents=listing.parents, states=states, removed=listing.gone_parents
    )
    shard = ShardLease(state=state, **_listed(listing))
    return shard, edge_note(None, shard, "first seen in the source's shard list")


def shards_first_seen(
    new: Iterable[ShardListing],
    shards: Iterable[ShardLease],
    listed: Iterable[ShardId],
    *,
    ordered: bool,
) -> list[tuple[ShardLease, Note]]:
    """Edge 1 for every new shard, by id.

    Args:
        new: the listing of the new shards.
        shards: the group's rows, at least the parents of new shards.
        listed: the listed shards; a new parent counts as unfinished.
    """
    states: dict[str, ShardState] = dict.fromkeys(listed, ShardState.NOT_ALLOC)
    states |= {row.shard: row.state for row in shards}
    by_id = sorted(new, key=lambda entry: entry.shard)
    return [first_seen(entry, ordered=ordered, states=states) for entry in by_id]


def listed_again(
    shard: ShardLease, listing: ShardListing, listed: Container[ShardId]
) -> ShardLease:
    """Return a shard with the lineage and flags of a newer listing of the shards `listed`.

    A source that infers lineage omits parents that it no longer lists. They stay parents here, so
    the shard still starts at its beginning, after the parents that the group has.
    """
    omitted = tuple(
        parent for parent in shard.parents if parent not in listing.parents and parent not in listed
    )
    values = _listed(listing)
    for name in ("parents", "gone_parents"):
        values[name] += omitted
    return replace(shard, **values)


def unlisted_parents(shard: ShardLease, states: Container[str]) -> tuple[ShardId, ...]:
    """Return the parents that the group never had, without `gone_parents`.

    Only an operator can end the wait for them.
    """
    return tuple(
        parent
        for parent in shard.parents
        if parent not in states and parent not in shard.gone_parents
    )


def why_waiting(shard: ShardLease, states: Mapping[str, ShardState]) -> str:
    """Return why a shard waits, and the remedy, as the end of a sentence."""
    unfinished = [
        parent
        for parent in shard.parents
        if states.get(parent, ShardState.OVER) is not ShardState.OVER
    ]
    clauses: list[str] = []
    if unfinished:
        clauses.append(
            f"waits for its parents ({', '.join(unfinished)}) to be consumed to their ends: "
            "consume those first"
        )
    if unlisted := unlisted_parents(shard, states):
        clauses.append(
            f"waits for {NEVER_LISTED} ({', '.join(unlisted)}): let the source list them, or name "
            "them in `gone_parents` where they were removed; or read in any order with "
            "`leasehold group update --unordered`"
        )
    return ". It also ".join(clauses)


def _listed(listing: ShardListing) -> dict[str, Any]:
    return {each.name: getattr(listing, each.name) for each in fields(listing)}


def freed_to_start(shards: Iterable[ShardLease], *, ordered: bool, reason: str) -> list[Step]:
    """Edge 2 for every waiting shard that can start now."""
    rows = list(shards)
    states: dict[str, ShardState] = {row.shard: row.state for row in rows}
    freed = (
        (row, replace(row, state=ShardState.NOT_ALLOC))
        for row in rows
        if row.state is ShardState.WAIT
        and may_start(ordered=ordered, parents=row.parents, states=states, removed=row.gone_parents)
    )
    return [Step(row, after, (edge_note(row, after, reason),)) for row, after in freed]
