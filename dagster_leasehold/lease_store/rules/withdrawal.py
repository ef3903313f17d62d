"""The first batch that a forced checkpoint withdraws, found by a binary search of the ledger."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from dagster_leasehold.lease_store.errors import CheckpointRefused, shown
from dagster_leasehold.lease_store.identifiers import GroupKey
from dagster_leasehold.lease_store.ledger_rows import Batch
from dagster_leasehold.lease_store.rules.cursors import is_before
from dagster_leasehold.lease_store.shard_rows import ShardLease

NUMBERS_END = 2**62
ALL_NUMBERS = range(NUMBERS_END)


class Ledger(Protocol):
    """Reads the committed batches of one shard."""

    def __call__(self, *, numbers: range, newest_first: bool) -> Iterator[Batch]:
        """Yield the batches with these numbers, oldest or newest first."""
        ...


def first_since(ledger: Ledger, number: int) -> Batch | None:
    """Return the first committed batch with this number or a higher one."""
    return next(ledger(numbers=range(number, NUMBERS_END), newest_first=False), None)


def last_before(ledger: Ledger, number: int = NUMBERS_END) -> Batch | None:
    """Return the last committed batch with a lower number."""
    return next(ledger(numbers=range(number), newest_first=True), None)


def first_withdrawn(
    row: ShardLease, ledger: Ledger, cursor: str, *, key: GroupKey, begin: str | None = None
) -> Batch | None:
    """Return the first committed batch after a new checkpoint, or None.

    `begin` is the cursor where committed output begins, if earlier output has expired.


    Raises:
        CheckpointRefused: the cursor is inside a batch, between batches that share a file, or
            before `begin`.
    """
    if cursor == row.check_point:
        return None
    if begin is not None and is_before(cursor, begin):
        raise CheckpointRefused(
            f"Committed output of shard {shown(row.shard)} of group {key} begins at "
            f"{shown(begin)}: earlier output has expired, and would be committed a second time "
            f"from {shown(cursor)} on. Set the checkpoint to {shown(begin)} or later."
        )
    border = first_after(ledger, cursor)
    if border is None:
        return None
    if is_before(border.start, cursor):
        raise CheckpointRefused(
            f"{shown(cursor)} is inside batch {border.batch_id} of group {key}, which is withdrawn "
            f"as a whole. Set the checkpoint to {shown(border.start)}, where it starts, or to "
            f"{shown(border.end)}, where it ends."
        )
    _check_whole_files(ledger, border, cursor, key)
    return border


def number_after(ledger: Ledger, cursor: str) -> int:
    """Return the number of the first batch after a cursor, or `NUMBERS_END`."""
    border = first_after(ledger, cursor)
    return NUMBERS_END if border is None else border.sequence


def first_after(ledger: Ledger, cursor: str) -> Batch | None:
    """Return the first batch that ends after a cursor, or starts at it (an empty one)."""

    def follows(batch: Batch) -> bool:
        return batch.start == cursor or is_before(cursor, batch.end)

    first, last = first_since(ledger, 0), last_before(ledger)
    if first is None or last is None or not follows(last):
        return None
    low, border = first.sequence, last
    while low < border.sequence:
        middle = (low + border.sequence) // 2
        candidate = last_before(ledger, middle + 1)
        if candidate is not None and candidate.sequence >= low and follows(candidate):
            border = candidate
        else:
            low = middle + 1
    return border


def _check_whole_files(ledger: Ledger, border: Batch, cursor: str, key: GroupKey) -> None:
    """Raise CheckpointRefused if a border divides a merged file."""
    before = 0
    for batch in ledger(numbers=range(border.sequence), newest_first=True):
        before += batch.batches
        together = max((file.batches for file in batch.files), default=0)
        if together > before:
            last = border
            for last in ledger(numbers=range(border.sequence, NUMBERS_END), newest_first=False):
                before += last.batches
                if before >= together:
                    break
            raise CheckpointRefused(
                f"{shown(cursor)} is between batches {batch.batch_id} and {last.batch_id} of group "
                f"{key}, whose output was merged into one file. Set the checkpoint to "
                f"{shown(batch.start)}, where the first one starts, or to {shown(last.end)}, where "
                "the last one ends."
            )
        # A merged file has no quarantined records, so a quarantine file does not end the search.
        if any(not file.quarantine for file in batch.files):
            return
