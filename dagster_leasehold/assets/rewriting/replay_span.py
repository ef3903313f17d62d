"""The span of a replay: the committed batches between two bounds, each a cursor or a time."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Self

from dagster_leasehold.assets.errors import RewriteRefused
from dagster_leasehold.assets.output.units import Unit
from dagster_leasehold.lease_store.errors import shown
from dagster_leasehold.lease_store.identifiers import ShardId
from dagster_leasehold.lease_store.ledger_rows import Batch
from dagster_leasehold.lease_store.rules.cursors import in_order, is_before, place_of
from dagster_leasehold.lease_store.rules.withdrawal import Ledger, number_after
from dagster_leasehold.lease_store.shard_summary import Expired
from dagster_leasehold.lease_store.times import parse_time
from dagster_leasehold.shard_sources.source import Position

Bound = str | datetime | None


@dataclass(frozen=True, slots=True)
class ReplaySpan:
    """The batches with records from `start` on and before `end`; None means no bound.

    With `quarantined`, only batches with records in quarantine. A time is compared with the event
    times of a batch; batches with unknown event times belong to the span.
    """

    start: Bound = None
    end: Bound = None
    quarantined: bool = False

    @classmethod
    def parse(cls, start: str | None, end: str | None, *, quarantined: bool = False) -> Self:
        """Return the span between two texts: `begin`, `end`, a cursor or an ISO 8601 time.

        A time without an offset is in UTC.

        Raises:
            RewriteRefused: it ends before it starts.
        """
        if start == Position.END or end == Position.BEGIN:
            raise RewriteRefused(
                "A replay from the end or up to the begin has no batches: omit the bound, or give "
                "a cursor or an ISO 8601 time."
            )
        span = cls(_bound(start, Position.BEGIN), _bound(end, Position.END), quarantined)
        empty = False
        match (span.start, span.end):
            case (datetime() as since, datetime() as until):
                empty = until <= since
            case (str() as first, str() as last):
                empty = in_order(last, first)
            case _:
                pass
        if empty:
            raise RewriteRefused(f"The replay ends at {end}, before it starts at {start}.")
        return span

    def check_expired(self, shard: ShardId, expired: Expired) -> bool:
        """Return True if records of the span may have expired.

        Raises:
            RewriteRefused: the span starts or ends at a cursor that has expired.
        """
        for cursor in (self.start, self.end):
            if isinstance(cursor, str) and is_before(cursor, expired.begin):
                raise RewriteRefused(
                    f"{shown(cursor)} is before the committed output of shard {shard}, which "
                    f"begins at {expired.begin}: earlier output has expired and cannot be "
                    f"replayed. Replay from {expired.begin} on."
                )
        since = self.start if isinstance(self.start, datetime) else None
        until = self.end if isinstance(self.end, datetime) else None
        open_start = self.start is None or since is not None
        return open_start and expired.may_hold(since, until)

    def first_number(self, ledger: Ledger) -> int:
        """Return the number of the first batch of a shard that may belong to the span."""
        return number_after(ledger, self.start) if isinstance(self.start, str) else 0

    def select(self, units: Iterable[Unit]) -> list[Unit]:
        """Return the units with a batch in the span.

        Args:
            units: the units of one shard in order, from `first_number` on; they are read up to the
                end of the span.

        Raises:
            RewriteRefused: a bound is not a cursor.
        """
        selection: list[Unit] = []
        self._check_cursors()
        for unit in units:
            if any(self._includes(batch) for batch in unit):
                selection.append(unit)
            if isinstance(self.end, str) and not is_before(unit[-1].end, self.end):
                break
        return selection

    def _check_cursors(self) -> None:
        for cursor in (self.start, self.end):
            if isinstance(cursor, str) and place_of(cursor) is None:
                raise RewriteRefused(
                    f"{shown(cursor)} is neither an ISO 8601 time nor a cursor: see the ledger for "
                    "the cursors of a shard."
                )

    def _includes(self, batch: Batch) -> bool:
        """Return True if a batch may have records between the two bounds."""
        statistics = batch.statistics
        if self.quarantined and not statistics.quarantined:
            return False
        match self.start:
            case datetime() as since:
                last = statistics.last_event_time
                reaches_start = last is None or last >= since
            case str() as cursor:
                reaches_start = is_before(cursor, batch.end)
            case None:
                reaches_start = True
        match self.end:
            case datetime() as until:
                first = statistics.first_event_time
                return reaches_start and (first is None or first < until)
            case str() as cursor:
                return reaches_start and is_before(batch.start, cursor)
            case None:
                return reaches_start


def _bound(text: str | None, unbounded: Position) -> Bound:
    if text is None or text == unbounded:
        return None
    return parse_time(text) or text
