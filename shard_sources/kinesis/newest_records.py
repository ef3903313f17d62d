"""The newest record of a shard, which no call of the service tells: searched back from now."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

from dagster_leasehold.shard_sources.kinesis.cursors import Place, at
from dagster_leasehold.shard_sources.kinesis.paging import Page, ShardPages, StoredRecord

FIRST_WINDOW = timedelta(seconds=10)
WINDOW_GROWTH = 8
CLOCK_STEP = timedelta(seconds=1)
"""The service's answers tell its clock in whole seconds."""
WINDOWS = 6
"""The last one looks back almost four days; after it, the whole shard is read."""


class NewestRecords:
    """A search for the newest records of shards.

    Args:
        pages: of the stream.
    """

    def __init__(self, pages: ShardPages) -> None:
        self._pages = pages

    def end(self, shard: str) -> Place | None:
        """The place after the newest record; None for a shard that holds none.

        Windows that reach back further and further are read until one holds records: an idle
        shard costs a few empty reads, a busy one its last seconds.
        """
        now = self._now(shard)
        window = FIRST_WINDOW
        for _ in range(WINDOWS):
            newest = _newest(self._pages.since(shard, now - window), now)
            if newest is not None:
                return newest.following
            window *= WINDOW_GROWTH
        newest = _newest(self._pages.oldest(shard), now)
        return newest.following if newest is not None else None

    def first_since(self, shard: str, time: datetime) -> Place | None:
        """At the first record that the service took at a time or later; None if there is none."""
        now = self._now(shard)
        if time > now + CLOCK_STEP:
            return None
        # A time after its own clock's is refused by the service.
        for page in self._pages.since(shard, min(time, now)):
            for record in page.records:
                # The service may round the time that it is asked for.
                if record.arrived >= time:
                    return at(record.number)
            if page.at_tip and not page.records:
                return None
        return None

    def _now(self, shard: str) -> datetime:
        """The service's clock."""
        now = self._pages.service_now(shard)
        return now if now is not None else datetime.now(UTC)


def _newest(pages: Iterator[Page], now: datetime) -> StoredRecord | None:
    """The last record up to the tip, or up to a time."""
    newest: StoredRecord | None = None
    for page in pages:
        newest = page.records[-1] if page.records else newest
        if not page.records and page.at_tip:
            return newest
        if newest is not None and newest.arrived > now + CLOCK_STEP:
            return newest
    return newest
