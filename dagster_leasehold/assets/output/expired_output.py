"""Expired output: where the remaining output of a shard begins."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import datetime

from dagster_leasehold.assets.errors import OutputUnreadable
from dagster_leasehold.lease_store.identifiers import GroupKey, ShardId
from dagster_leasehold.lease_store.roles.ledger import Ledger
from dagster_leasehold.lease_store.rules.assignment_plan import rank_key
from dagster_leasehold.lease_store.shard_summary import Expired

SHARDS_NAMED_MAX = 8


def expired_output(
    store: Ledger, key: GroupKey, shards: Collection[ShardId] | None = None
) -> dict[ShardId, Expired]:
    """Return the expired output of some shards, or of all shards with expired output."""
    alone = next(iter(shards)) if shards is not None and len(shards) == 1 else None
    return {
        summary.shard: summary.expired
        for summary in store.summaries(key, alone)
        if summary.shard is not None
        and summary.expired is not None
        and (shards is None or summary.shard in shards)
    }


def output_begins(key: GroupKey, shard: ShardId, expired: Expired) -> str:
    """Return a sentence on where the remaining output of a shard begins."""
    return (
        f"Committed output of shard {shard} of {key} begins at cursor {expired.begin} "
        f"(batch {expired.first_number}): {expired.batches:,} batches before it, with "
        f"{expired.records:,} records, have expired."
    )


def where_output_begins(key: GroupKey, expired: Mapping[ShardId, Expired]) -> list[str]:
    """Return a sentence for each shard with expired output, up to a limit."""
    shards = sorted(expired, key=rank_key)
    lines = [output_begins(key, shard, expired[shard]) for shard in shards[:SHARDS_NAMED_MAX]]
    more = len(shards) - len(lines)
    return [*lines, f"{more} more shards have lost output, too."] if more else lines


def refuse_expired_times(
    store: Ledger, key: GroupKey, since: datetime | None, until: datetime | None
) -> None:
    """Check that no output with these event times has expired.

    Raises:
        OutputUnreadable: some of it may have expired.
    """
    for shard, expired in expired_output(store, key).items():
        if expired.may_hold(since, until):
            raise OutputUnreadable(
                f"{output_begins(key, shard, expired)} They may include records with event times "
                f"from {since} to {until}, so this range cannot be read completely."
            )
