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
from dagster_leasehold.lease_store.rules.cursors import in_order, is_before, place_of
from dagster_leasehold.lease_store.rules.withdrawal import Ledger, number_behind
from dagster_leasehold.lease_store.shard_summary import Expired
from dagster_leasehold.lease_store.times import parse_time
from dagster_leasehold.shard_sources.source import Position

Bound = str | datetime | None


@dataclass(frozen=True, slots=True)
class ReplaySpan:
    """The batches that hold records from `start` on and before `end`; None is no bound.

    With `quarantined`, only batches with records in quarantine.

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
        """Return True if records that the span names might have expired, which times cannot tell.

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
            case str() as cursor:
                return number_behind(ledger, cursor)
            case _:
                return 0

    def chosen(self, units: Iterable[Unit]) -> list[Unit]:
        """Return the units with a batch in the span: merged batches go together.

        Args:
            units: of one shard in order, from `first_number` on; no more than needed are taken.

        Raises:
            RewriteRefused: a bound is no cursor.
        """
        chosen_units: list[Unit] = []
        self._check_cursors()
        for unit in units:
            if any(self._holds(batch) and self._wanted(batch) for batch in unit):
                chosen_units.append(unit)
            if isinstance(self.end, str) and not is_before(unit[-1].end, self.end):
                break
        return chosen_units

    def _check_cursors(self) -> None:
        for cursor in (self.start, self.end):
            if isinstance(cursor, str) and place_of(cursor) is None:
                raise RewriteRefused(
                    f"{shown(cursor)} is neither an ISO 8601 time nor a cursor: see the ledger for "
                    "the cursors of a shard."
                )

    def _holds(self, batch: Batch) -> bool:
        """Return True if a batch can hold records between the two bounds."""
        statistics = batch.statistics
        match self.start:
            case datetime() as since:
                last = statistics.last_event_time
                behind = last is None or last >= since
            case str() as cursor:
                behind = is_before(cursor, batch.end)
            case None:
                behind = True
        match self.end:
            case datetime() as until:
                first = statistics.first_event_time
                return behind and (first is None or first < until)
            case str() as cursor:
                return behind and is_before(batch.start, cursor)
            case None:
                return behind

    def _wanted(self, batch: Batch) -> bool:
        return not self.quarantined or batch.statistics.quarantined > 0


def _bound(text: str | None, unbounded: Position) -> Bound:
    if text is None or text == unbounded:
        return None
    return parse_time(text) or text
