"""The ledger as it was at one moment, shard by shard, though it is read in pages.

Consumption goes on beside a reader, and so do runs that swap files. No batch joins below the number
at which a shard's ledger ended. Its version tells if files were swapped meanwhile, and then the
shard is read once more. So of a batch that is being replayed or merged
a reader sees all old files, or all new ones. The old ones stay readable for as long as vacuum lets
what was swapped out lie.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from datetime import datetime
from typing import TypeVar

from dagster_leasehold.assets.errors import OutputUnreadable
from dagster_leasehold.assets.output.units import Unit, each_unit
from dagster_leasehold.lease_store.identifiers import GroupKey, ShardId
from dagster_leasehold.lease_store.ledger_rows import Batch, LedgerHead
from dagster_leasehold.lease_store.roles.ledger import Ledger
from dagster_leasehold.lease_store.rules.assignment_plan import rank_key
from dagster_leasehold.lease_store.rules.withdrawal import NUMBERS_END
from dagster_leasehold.lease_store.shard_summary import Expired

READINGS_MAX = 10
SHARDS_NAMED_MAX = 8

Value = TypeVar("Value")
Heads = Mapping[ShardId, LedgerHead]


def at_one_moment(
    store: Ledger,
    key: GroupKey,
    shards: Collection[ShardId] | None,
    read: Callable[[Heads], Iterable[tuple[ShardId, Value]]],
) -> tuple[dict[ShardId, list[Value]], Heads]:
    """Read values of shards, all values of one shard as they were at one moment.

    Args:
        store: the lease store.
        key: the group.
        shards: only these; None is all.
        read: gives values of the shards whose heads it gets, from batches below their numbers.

    Returns:
        The values by shard, in order of shards, and the heads that they belong to.

    Raises:
        OutputUnreadable: a shard's output changed each time that it was read.
    """
    values: dict[ShardId, list[Value]] = {}
    heads = moving = store.heads(key, shards)
    for _ in range(READINGS_MAX):
        if not moving:
            return {shard: values[shard] for shard in sorted(values)}, heads
        values |= {shard: [] for shard in moving}
        unreadable: OutputUnreadable | None = None
        try:
            for shard, value in read(moving):
                values[shard].append(value)
        except OutputUnreadable as error:
            # Rows of two moments need not fit together.
            unreadable = error
        now = store.heads(key, list(moving))
        moved = {s: now[s] for s in moving if s in now and now[s].version != heads[s].version}
        if unreadable is not None:
            if not moved:
                raise unreadable
            # What was not read before the error is read now.
            moved = {shard: now[shard] for shard in moving if shard in now}
        moving = moved
        heads |= moving
    raise OutputUnreadable(
        f"The output of shard {next(iter(moving))} of {key} was replaced each of {READINGS_MAX} "
        "times that it was listed: try again when replays and compactions of it are over."
    )


def expired_output(
    store: Ledger, key: GroupKey, shards: Collection[ShardId] | None = None
) -> dict[ShardId, Expired]:
    """Return what has expired of those of some shards, or of all, that have lost output."""
    alone = next(iter(shards)) if shards is not None and len(shards) == 1 else None
    return {
        summary.shard: summary.expired
        for summary in store.summaries(key, alone)
        if summary.shard is not None
        and summary.expired is not None
        and (shards is None or summary.shard in shards)
    }


def output_begins(key: GroupKey, shard: ShardId, expired: Expired) -> str:
    """Return the sentence that says where committed output of a shard begins."""
    return (
        f"Committed output of shard {shard} of {key} begins at cursor {expired.begin} "
        f"(batch {expired.first_number}): {expired.batches:,} batches before it, with "
        f"{expired.records:,} records, have expired."
    )


def where_output_begins(key: GroupKey, expired: Mapping[ShardId, Expired]) -> list[str]:
    """Return a sentence for each shard that has lost output, by rank; of many, the first ones."""
    shards = sorted(expired, key=rank_key)
    lines = [output_begins(key, shard, expired[shard]) for shard in shards[:SHARDS_NAMED_MAX]]
    more = len(shards) - len(lines)
    return [*lines, f"{more} more shards have lost output, too."] if more else lines


def refuse_expired_times(
    store: Ledger, key: GroupKey, since: datetime | None, until: datetime | None
) -> None:
    """Refuse to read event times of which records may have expired.

    Raises:
        OutputUnreadable: they may have.
    """
    for shard, expired in expired_output(store, key).items():
        if expired.may_hold(since, until):
            raise OutputUnreadable(
                f"{output_begins(key, shard, expired)} They may have held records of the event "
                f"times from {since} to {until}, which cannot be read whole any more."
            )


def each_committed(store: Ledger, key: GroupKey, heads: Heads) -> Iterator[Batch]:
    """Yield the committed batches below the heads of shards, by shard and number."""
    for shard, head in heads.items():
        yield from store.each_batch(key, shard, numbers=range(head.next_number))


def units_of(store: Ledger, key: GroupKey, shard: ShardId, numbers: range) -> Iterator[Unit]:
    """Yield the units of a shard that hold any of some committed batches, by number.

    A unit that begins before the first of them is looked for backwards, no further than to the
    next file of output.
    """
    before = _carrier(store, key, shard, numbers.start)
    first = before.sequence if before is not None else numbers.start
    rows = store.each_batch(key, shard, numbers=range(first, NUMBERS_END))
    for unit in each_unit(rows):
        if unit[0].sequence >= numbers.stop:
            return
        yield unit


def _carrier(store: Ledger, key: GroupKey, shard: ShardId, number: int) -> Batch | None:
    """Return the row before a number that holds that batch, itself or in its file, or None."""
    first = next(store.each_batch(key, shard, numbers=range(number, number + 1)), None)
    if number == 0 or (first is not None and _lists_output(first)):
        return None
    own: Batch | None = None
    passed = 0
    for row in store.each_batch(key, shard, numbers=range(number), newest_first=True):
        if row.last >= number:
            own = row
        else:
            passed += row.batches
            if max((file.batches for file in row.files), default=1) > passed:
                return row
        if _lists_output(row):
            break
    return own


def _lists_output(batch: Batch) -> bool:
    return any(not file.quarantine for file in batch.files)
