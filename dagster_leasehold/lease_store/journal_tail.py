"""Follows the end of a journal; yields each entry once, even if transactions overlap.

An entry is numbered when it is written, and visible when its transaction ends:

1. Transaction A writes entry 10 and continues. B writes entry 11 and commits.
2. A reader reads 11. If it continued from there, it would never read 10.
3. A commits.

So after a higher number has appeared, entries are read again until all transactions that were in
flight then have ended. Entries that were read before are skipped.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

from dagster_leasehold.lease_store.identifiers import GroupKey, ShardId
from dagster_leasehold.lease_store.journal_rows import JournalEntry
from dagster_leasehold.lease_store.roles.ledger import Ledger

Value = TypeVar("Value")
SETTLED_AFTER_S = 120.0
"""Far longer than any transaction, because statements and idle times are limited."""


class JournalTail:
    """Reads the new entries of a group's journal since the first read."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._settled: int | None = None
        self._seen: set[int] = set()
        self._readings: deque[tuple[float, int]] = deque()

    def read(self, store: Ledger, key: GroupKey) -> Iterator[JournalEntry]:
        """Yield the entries since the last call, and none at the first call."""
        if self._settled is None:
            self.begin(store, key)
            return
        after = self._settle()
        yield from self._unseen(
            (each.sequence, each) for each in store.each_entry(key, after=after)
        )

    def touched(self, store: Ledger, key: GroupKey) -> set[ShardId]:
        """Return the shards with new entries on tenures; call `begin` first."""
        return set(self._unseen(store.touched(key, self._settle())))

    def begin(self, store: Ledger, key: GroupKey) -> None:
        """Follow the journal from here on."""
        newest = store.journal(key, limit=1, newest=True)
        self._settled = newest[0].sequence if newest else 0

    def _unseen(self, numbered: Iterable[tuple[int, Value]]) -> Iterator[Value]:
        highest = self._settled or 0
        for number, value in numbered:
            highest = max(highest, number)
            if number not in self._seen:
                self._seen.add(number)
                yield value
        # Every lower number was assigned before now.
        self._readings.append((self._clock(), highest))

    def _settle(self) -> int:
        """Return the number up to which no further entry can appear."""
        now_s = self._clock()
        while self._readings and now_s - self._readings[0][0] >= SETTLED_AFTER_S:
            self._settled = self._readings.popleft()[1]
        settled = self._settled or 0
        self._seen = {number for number in self._seen if number > settled}
        return settled
