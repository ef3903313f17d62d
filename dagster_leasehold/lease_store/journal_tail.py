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
from collections.abc import Callable, Iterator

from dagster_leasehold.lease_store.identifiers import GroupKey
from dagster_leasehold.lease_store.journal_rows import JournalEntry
from dagster_leasehold.lease_store.roles.ledger import Ledger

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
            newest = store.journal(key, limit=1, newest=True)
            self._settled = newest[0].sequence if newest else 0
            return
        self._settle()
        highest = self._settled
        for entry in store.each_entry(key, after=self._settled):
            highest = entry.sequence
            if entry.sequence not in self._seen:
                self._seen.add(entry.sequence)
                yield entry
        # A number below the highest was given out before this moment.
        self._readings.append((self._clock(), highest))

    def _settle(self) -> None:
        now_s = self._clock()
        while self._readings and now_s - self._readings[0][0] >= SETTLED_AFTER_S:
            self._settled = self._readings.popleft()[1]
        self._seen = {number for number in self._seen if number > (self._settled or 0)}
