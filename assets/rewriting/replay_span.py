"""The span of a replay: the committed batches between two bounds, as cursors or times."""

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
from dagster_leasehold.lease_store.rules.ledger import is_before
from dagster_leasehold.lease_store.rules.withdrawal import Ledger, number_behind
from dagster_leasehold.lease_store.shard_summary import Expired
from dagster_leasehold.lease_store.times import parse_time
from dagster_leasehold.shard_sources.source import Position

Bound = str | datetime | None


@dataclass(frozen=True, slots=True)
class ReplaySpan:
    """The batches that hold records from `start` on and before `end`; None is no bound.

    With `quarantined`, only those of them that have records in quarantine.

    A time is compared with the event times of a batch's records; a batch without known event times
    is replayed.
    """

    start: Bound = None
    end: Bound = None
    quarantined: bool = False

    @classmethod
    def parse(cls, start: str | None, end: str | None, *, quarantined: bool = False) -> Self:
        """Return the span of `begin`, `end`, cursors or ISO 8601 times; UTC without an offset.

        Raises:
            RewriteRefused: it ends before it starts.
        """
        if start == Position.END or end == Position.BEGIN:
            raise RewriteRefused(
                "A replay from the end or to the begin holds nothing: leave the bound out, or "
                "give a cursor or an ISO 8601 time."
            )
        span = cls(_bound(start, Position.BEGIN), _bound(end, Position.END), quarantined)
        if isinstance(span.start, datetime) and isinstance(span.end, datetime):
            empty = span.end <= span.start
        else:
            texts = (span.start, span.end)
            numbers = [int(t) for t in texts if isinstance(t, str) and t.isdecimal()]
            empty = len(numbers) == 2 and numbers[1] <= numbers[0]
        if empty:
            raise RewriteRefused(f"The replay ends at {end}, before it starts at {start}.")
        return span

    def check_expired(self, shard: ShardId, expired: Expired) -> bool:
        """Return True if records that the span names may have expired, which times cannot tell.

        Raises:
            RewriteRefused: the span starts or ends at a cursor that has expired.
        """
        for cursor in (self.start, self.end):
            if isinstance(cursor, str) and is_before(cursor, expired.begin):
                raise RewriteRefused(
                    f"{shown(cursor)} lies before the committed output of shard {shard}, which "
                    f"begins at {expired.begin}: what lay before has expired and cannot be "
                    f"replayed. Replay from {expired.begin} on."
                )
        since = self.start if isinstance(self.start, datetime) else None
        until = self.end if isinstance(self.end, datetime) else None
        open_start = self.start is None or since is not None
        return open_start and expired.may_hold(since, until)

    def first_number(self, ledger: Ledger) -> int:
        """Return the number of a batch before which a shard's ledger holds nothing of the span."""
        match self.start:
            case str() as cursor if cursor.isdecimal():
                return number_behind(ledger, cursor)
            case _:
                return 0

    def chosen(self, units: Iterable[Unit]) -> list[Unit]:
        """Return the units of which any batch is in the span: batches merged together go together.

        Args:
            units: of one shard in order, from `first_number` on; no more than needed are taken.

        Raises:
            RewriteRefused: a cursor is none of this shard's ledger.
        """
        chosen_units: list[Unit] = []
        sides = _Sides(self)
        for unit in units:
            inside = [sides.take(batch) and self._wanted(batch) for batch in unit]
            if any(inside):
                chosen_units.append(unit)
            if sides.over:
                break
        sides.check()
        return chosen_units

    def _wanted(self, batch: Batch) -> bool:
        return not self.quarantined or batch.statistics.quarantined > 0


class _Sides:
    """The two bounds of a span, batch after batch of a shard.

    Cursors that are no numbers cannot be compared: they stand where a batch starts, or at the end.
    """

    def __init__(self, span: ReplaySpan) -> None:
        self._span = span
        self._met: set[str] = set()
        self._last: Batch | None = None
        self._numbered = True
        self.over = False
        """No later batch can be in the span."""

    def take(self, batch: Batch) -> bool:
        """Take in the next batch; return True if it is inside."""
        self._last = batch
        self._numbered = batch.start.isdecimal() and batch.end.isdecimal()
        if batch.start in (self._span.start, self._span.end):
            self._met.add(batch.start)
        return self._after_start(batch) and self._before_end(batch)

    def _after_start(self, batch: Batch) -> bool:
        match self._span.start:
            case None:
                return True
            case datetime() as time:
                last = batch.statistics.last_event_time
                return last is None or last >= time
            case str() as cursor:
                if self._comparable(cursor):
                    return int(batch.end) > int(cursor)
                return cursor in self._met

    def _before_end(self, batch: Batch) -> bool:
        match self._span.end:
            case None:
                return True
            case datetime() as time:
                first = batch.statistics.first_event_time
                return first is None or first < time
            case str() as cursor:
                if self._comparable(cursor):
                    inside = int(batch.start) < int(cursor)
                else:
                    inside = cursor not in self._met
                self.over = not inside and self._start_is_met()
                return inside

    def _start_is_met(self) -> bool:
        start = self._span.start
        return not isinstance(start, str) or self._comparable(start) or start in self._met

    def _comparable(self, cursor: str) -> bool:
        return cursor.isdecimal() and self._numbered

    def check(self) -> None:
        """Refuse cursors that are neither start nor end of a batch.

        Raises:
            RewriteRefused: one is.
        """
        for cursor in (self._span.start, self._span.end):
            if not isinstance(cursor, str) or self._comparable(cursor) or cursor in self._met:
                continue
            if self._last is None or self._last.end != cursor:
                raise RewriteRefused(
                    f"{shown(cursor)} is neither an ISO 8601 time nor the start of a committed "
                    "batch: see the ledger for those."
                )


def _bound(text: str | None, unbounded: Position) -> Bound:
    if text is None or text == unbounded:
        return None
    return parse_time(text) or text
