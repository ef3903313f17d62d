"""Which committed batches a replay is asked for: from and to, as cursors or times."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Self

from assets.rewriting import Unit
from lease_store.errors import RewriteRefused, shown
from lease_store.records import Batch
from shard_sources.positions import parse_time
from shard_sources.source import Position

Bound = str | datetime | None


@dataclass(frozen=True, slots=True)
class ReplaySpan:
    """The batches that hold records from `start` on and before `end`; None is no bound.

    With `quarantined`, only those of them that have records in quarantine.

    A time is compared with the event times that were seen when a batch was read; a batch of which
    they are not known is replayed.
    """

    start: Bound = None
    end: Bound = None
    quarantined: bool = False

    @classmethod
    def parse(cls, start: str | None, end: str | None, *, quarantined: bool = False) -> Self:
        """The span that `begin`, `end`, cursors or ISO 8601 times mean; UTC without an offset.

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

    def chosen(self, units: Sequence[Unit]) -> list[Unit]:
        """The units of which any batch is in the span: batches merged together go together.

        Raises:
            RewriteRefused: a cursor is none of this shard's ledger.
        """
        batches = [batch for unit in units for batch in unit]
        inside = self._after_start(batches) & self._before_end(batches)
        if self.quarantined:
            inside &= {batch.sequence for batch in batches if batch.statistics.quarantined}
        return [unit for unit in units if any(batch.sequence in inside for batch in unit)]

    def _after_start(self, batches: Sequence[Batch]) -> set[int]:
        match self.start:
            case None:
                return {batch.sequence for batch in batches}
            case datetime() as time:
                last = {batch.sequence: batch.statistics.last_event_time for batch in batches}
                return {number for number, at in last.items() if at is None or at >= time}
            case str() as cursor:
                if _numbered(cursor, batches):
                    return {b.sequence for b in batches if int(b.end) > int(cursor)}
                return {batch.sequence for batch in batches[_index(cursor, batches) :]}

    def _before_end(self, batches: Sequence[Batch]) -> set[int]:
        match self.end:
            case None:
                return {batch.sequence for batch in batches}
            case datetime() as time:
                first = {batch.sequence: batch.statistics.first_event_time for batch in batches}
                return {number for number, at in first.items() if at is None or at < time}
            case str() as cursor:
                if _numbered(cursor, batches):
                    return {b.sequence for b in batches if int(b.start) < int(cursor)}
                return {batch.sequence for batch in batches[: _index(cursor, batches)]}


def _bound(text: str | None, unbounded: Position) -> Bound:
    if text is None or text == unbounded:
        return None
    return parse_time(text) or text


def _numbered(cursor: str, batches: Sequence[Batch]) -> bool:
    """Whether cursors of this shard are numbers, which can be compared."""
    return cursor.isdecimal() and all(
        batch.start.isdecimal() and batch.end.isdecimal() for batch in batches
    )


def _index(cursor: str, batches: Sequence[Batch]) -> int:
    """Where a cursor that cannot be compared stands: between two batches."""
    for index, batch in enumerate(batches):
        if batch.start == cursor:
            return index
    if batches and batches[-1].end == cursor:
        return len(batches)
    raise RewriteRefused(
        f"{shown(cursor)} is neither an ISO 8601 time nor the start of a committed batch: see "
        "the ledger for those."
    )
