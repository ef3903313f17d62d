"""Following the end of a journal: each entry once, in any order of transactions.

Numbers are given out when entries are written, and entries appear when their transaction ends:

1. Transaction A writes entry 10 and continues; B writes entry 11 and commits.
2. A reader sees 11. Were it to continue from there, it would never see 10.
3. A commits.

So a number counts as settled only when one above it was seen so long ago that every transaction
of that time is over; later entries are read again, and the ones seen before are left out.
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
"""Far longer than a transaction can last: its statements and its idle times are limited."""


class JournalTail:
    """Reads the new entries of a group's journal since it was first read.

    Args:
        clock: monotonic seconds.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._settled: int | None = None
        self._seen: set[int] = set()
        self._readings: deque[tuple[float, int]] = deque()

    def read(self, store: Ledger, key: GroupKey) -> Iterator[JournalEntry]:
        """Return the entries since the last reading; none at the first, which begins it."""
        if self._settled is None:
            self.begin(store, key)
            return
        after = self._settle()
        yield from self._unseen(
            (each.sequence, each) for each in store.each_entry(key, after=after)
        )

    def touched(self, store: Ledger, key: GroupKey) -> set[ShardId]:
        """Return the shards with new entries on tenures, once it was begun."""
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
        # A number below the highest was given out before this moment.
        self._readings.append((self._clock(), highest))

    def _settle(self) -> int:
        """Return the number up to which nothing can appear any longer."""
        now_s = self._clock()
        while self._readings and now_s - self._readings[0][0] >= SETTLED_AFTER_S:
            self._settled = self._readings.popleft()[1]
        settled = self._settled or 0
        self._seen = {number for number in self._seen if number > settled}
        return settled
