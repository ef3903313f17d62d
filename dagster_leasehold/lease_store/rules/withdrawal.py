"""The border of a forced checkpoint in a shard's ledger; batches after it are withdrawn.

The ledger is asked for single rows, by number: for as many as the logarithm of its length.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Protocol

from dagster_leasehold.lease_store.identifiers import GroupKey
from dagster_leasehold.lease_store.ledger_rows import Batch, BatchState
from dagster_leasehold.lease_store.rules import refusals
from dagster_leasehold.lease_store.rules.cursors import is_before
from dagster_leasehold.lease_store.shard_rows import ShardLease

NUMBERS_END = 2**62
ALL_NUMBERS = range(NUMBERS_END)


class Ledger(Protocol):
    """The committed batches of one shard, as `Ledger.each_batch` gives them."""

    def __call__(self, *, numbers: range, newest_first: bool) -> Iterator[Batch]:
        """Those with numbers of a range, from the first or from the newest on."""
        ...


def ledger_of(batches: Sequence[Batch]) -> Ledger:
    """Return a ledger of the committed batches of a shard that are given in order."""

    def look(*, numbers: range, newest_first: bool) -> Iterator[Batch]:
        order = reversed(batches) if newest_first else batches
        return (batch for batch in order if batch.sequence in numbers)

    return look


def withdrawal(batch: Batch) -> Batch:
    """A committed batch as it is once its range is to be read again.

    The generation rises, so that a rewriter that was about to replace its output comes too late.
    """
    return replace(batch, state=BatchState.WITHDRAWN, generation=batch.generation + 1)


def first_since(ledger: Ledger, number: int) -> Batch | None:
    """The first committed batch with this number or a higher one."""
    return next(ledger(numbers=range(number, NUMBERS_END), newest_first=False), None)


def last_before(ledger: Ledger, number: int = NUMBERS_END) -> Batch | None:
    """The last committed batch with a lower number."""
    return next(ledger(numbers=range(number), newest_first=True), None)


def first_withdrawn(
    row: ShardLease, ledger: Ledger, cursor: str, *, key: GroupKey, begin: str | None = None
) -> Batch | None:
    """The first committed batch that lies behind a new checkpoint; None where none does.

    `begin` is the cursor where committed output begins since what lay before has expired.

    Raises:
        CheckpointRefused: the cursor is inside a batch, inside of what several batches share a
            file for, or before what has not expired.
    """
    if cursor == row.check_point:
        return None
    if begin is not None and is_before(cursor, begin):
        raise refusals.output_expired(key, row.shard, cursor, begin)
    border = first_behind(ledger, cursor)
    if border is None:
        return None
    if is_before(border.start, cursor):
        raise refusals.batch_divided(key, border, cursor)
    _check_whole_files(ledger, border, cursor, key)
    return border


def number_behind(ledger: Ledger, cursor: str) -> int:
    """The number of the first committed batch that ends behind a cursor, or starts at it.

    The end of all numbers where no batch does.
    """
    border = first_behind(ledger, cursor)
    return NUMBERS_END if border is None else border.sequence


def first_behind(ledger: Ledger, cursor: str) -> Batch | None:
    """The first batch that ends behind a cursor, or starts at it: an empty one can do that."""

    def behind(batch: Batch) -> bool:
        return batch.start == cursor or is_before(cursor, batch.end)

    first, last = first_since(ledger, 0), last_before(ledger)
    if first is None or last is None or not behind(last):
        return None
    low, border = first.sequence, last
    while low < border.sequence:
        middle = (low + border.sequence) // 2
        candidate = last_before(ledger, middle + 1)
        if candidate is not None and candidate.sequence >= low and behind(candidate):
            border = candidate
        else:
            low = middle + 1
    return border


def _check_whole_files(ledger: Ledger, border: Batch, cursor: str, key: GroupKey) -> None:
    """Refuse a border that lies inside of what several batches share a file for.

    Raises:
        CheckpointRefused: it does.
    """
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
            raise refusals.batch_border_inside_file(key, batch, last, cursor)
        # Quarantined records lie in files of their own, also within a merged file's batches.
        if any(not file.quarantine for file in batch.files):
            return
