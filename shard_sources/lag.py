"""The bounds of many shards, and their lag: what is in the log and not yet committed.

A shard for which the source cannot answer hides none of the others.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial

from dagster_leasehold.lease_store.errors import LeaseholdError, SourceRefused, SourceThrottled
from dagster_leasehold.lease_store.identifiers import ShardId
from dagster_leasehold.lease_store.rules.failing_steps import FailingSteps
from dagster_leasehold.lease_store.rules.states import ShardState
from dagster_leasehold.lease_store.shard_rows import ShardLease
from dagster_leasehold.shard_sources.source import ShardBounds, ShardSource, bounds_for


def bounds_of(
    source: ShardSource, cursors: Mapping[ShardId, str | None], steps: FailingSteps
) -> dict[ShardId, ShardBounds]:
    """Return the bounds of shards; an error of one shard is noted in `steps`, and hides no other.

    Args:
        source: the log.
        cursors: the place of the reader of each shard; None where it has not begun.
        steps: of the caller's rounds; a shard that failed is left out until its wait is over.

    Raises:
        SourceUnavailable, SourceRefused: the source does not answer at all.
    """

    def ask(shards: list[ShardId]) -> dict[ShardId, ShardBounds]:
        return bounds_for(source, {shard: cursors[shard] for shard in shards})

    items = {f"asking for the bounds of shard {shard}": shard for shard in cursors}
    answers = steps.attempt_all(items, ask, raises=(SourceRefused, SourceThrottled))
    return {shard: bounds for answer in answers for shard, bounds in answer.items()}


def lags_of(
    source: ShardSource, leases: Iterable[ShardLease]
) -> tuple[dict[ShardId, int | None], str]:
    """Return the unread records of each shard, None where the source cannot tell.

    A source that does not answer is a sentence beside unknown lags, not an error: lag is for
    people to look at. A shard that is over has none, and is not asked for.
    """
    rows = list(leases)
    lags: dict[ShardId, int | None] = {
        lease.shard: 0 if lease.state is ShardState.OVER else None for lease in rows
    }
    read = {row.shard: row.check_point for row in rows if row.state is not ShardState.OVER}
    steps = FailingSteps(lambda: 0.0)
    try:
        bounds = bounds_of(source, read, steps)
    except LeaseholdError as error:
        return lags, str(error)
    for shard, extent in bounds.items():
        cursor = read[shard] or extent.begin
        what = f"counting the unread records of shard {shard}"
        lags[shard] = steps.attempt(what, partial(source.lag, shard, cursor, extent), None)
    return lags, "; ".join(steps.notes)
