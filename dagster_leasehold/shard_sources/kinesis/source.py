"""A Kinesis stream as a source: its shards, their bounds, and the ends of batches."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import TypeVar

from dagster_leasehold.lease_store.errors import CursorExpired, LogNotFound
from dagster_leasehold.lease_store.identifiers import ShardId
from dagster_leasehold.lease_store.shard_rows import ShardListing
from dagster_leasehold.shard_sources.kinesis import planning
from dagster_leasehold.shard_sources.kinesis.cursors import GONE, Place, Side, after, at, start
from dagster_leasehold.shard_sources.kinesis.options import KinesisOptions
from dagster_leasehold.shard_sources.kinesis.paging import RECORDS_PER_CALL_MAX
from dagster_leasehold.shard_sources.kinesis.reader import KinesisReader
from dagster_leasehold.shard_sources.kinesis.service import CONNECTIONS
from dagster_leasehold.shard_sources.kinesis.shard_list import KinesisShard, removed
from dagster_leasehold.shard_sources.positions import removed_bounds, removed_error, removed_lag
from dagster_leasehold.shard_sources.registry import SourceKind, StreamPlace
from dagster_leasehold.shard_sources.source import (
    Limits,
    PlannedRange,
    Position,
    ShardBounds,
    ShardReader,
)

Answer = TypeVar("Answer")
ONE_RECORD = Limits(records_max=1)


class KinesisStream(KinesisReader):
    """A stream of Amazon Kinesis Data Streams; calls can come from many threads."""

    def __init__(self, options: KinesisOptions, stream: str, folder: Path) -> None:
        super().__init__(options, stream, folder)
        self._ahead = planning.ReadAhead()
        self._newest = planning.NewestRecords(self._pages)
        self._arrived: dict[ShardId, tuple[str, datetime]] = {}

    def list_shards(self) -> list[ShardListing]:
        """All shards that the stream still knows, with both parents of a merge."""
        listed = self._shards.listed()
        return [shard.listing(listed.keys()) for shard in listed.values()]

    def bounds(self, shards: Sequence[ShardId]) -> dict[ShardId, ShardBounds]:
        """The bounds of these shards: the oldest record and the newest, which must be searched.

        Several calls a shard, for many shards at a time; `bounds_after` needs one.
        """
        return self._of_each(shards, self._bounds)

    def bounds_after(self, cursors: Mapping[ShardId, str]) -> dict[ShardId, ShardBounds]:
        """Bounds as far as readers that stand at these cursors need them, by one read a shard."""

        def look(shard: ShardId, entry: KinesisShard | None) -> ShardBounds:
            cursor = cursors[shard]
            if entry is None:
                return _removed()
            try:
                planned = self.plan(shard, cursor, ONE_RECORD, looks_again=entry.closed)
            except CursorExpired:
                return _behind(Place.parse(shard, cursor), self._bounds(shard, entry))
            # That a closed shard has been read to its end, only the service can say.
            finished = entry.closed and (planned.last or planned.end != cursor)
            return ShardBounds(cursor, planned.end, finished)

        return self._of_each(list(cursors), look)

    def times_at(self, cursors: Mapping[ShardId, str]) -> dict[ShardId, datetime]:
        """The times when the service took the first records at these cursors.

        Each was read when the shard was last planned or looked at, as a rule: then nothing is asked
        again. How far a page ends behind the tip tells less: 0 for the page of the last record.
        """

        def look(shard: ShardId, entry: KinesisShard | None) -> None:
            if entry is not None:
                self.plan(shard, cursors[shard], ONE_RECORD, looks_again=False)

        self._of_each([shard for shard in cursors if not self._arrival(shard, cursors)], look)
        times = {shard: self._arrival(shard, cursors) for shard in cursors}
        return {shard: time for shard, time in times.items() if time is not None}

    def _arrival(self, shard: ShardId, cursors: Mapping[ShardId, str]) -> datetime | None:
        cursor, arrived = self._arrived.get(shard, ("", None))
        return arrived if cursor == cursors[shard] else None

    def _of_each(
        self, shards: Sequence[ShardId], ask: Callable[[ShardId, KinesisShard | None], Answer]
    ) -> dict[ShardId, Answer]:
        """Ask for each shard, several at a time."""
        if not shards:
            return {}
        # The list first: a shard that it calls closed had its last record before that.
        listed = self._shards.listed()
        entries = [None if removed(shard, listed) else listed[shard] for shard in shards]
        with ThreadPoolExecutor(CONNECTIONS, thread_name_prefix="kinesis") as threads:
            return dict(zip(shards, threads.map(ask, shards, entries), strict=True))

    def _bounds(self, shard: ShardId, entry: KinesisShard | None) -> ShardBounds:
        if entry is None:
            return _removed()
        begin = self._begin(shard)
        end = self._newest.end(shard)
        untrimmed = self._shards.untrimmed(entry)
        if begin.side is Side.START or end is None:
            return ShardBounds(str(begin), str(begin), entry.closed, str(begin))
        # Where records might have been removed, the first one that is left is not the first.
        origin = begin if untrimmed else start(entry.created_s or 0)
        return ShardBounds(str(begin), str(end), entry.closed, str(origin))

    def _begin(self, shard: ShardId) -> Place:
        """At the oldest record; before all records where there is none."""
        # One record is enough, and each read counts against the shard's pace.
        for page in self._pages.oldest(shard, limit=1):
            if page.records:
                return at(page.records[0].number)
            if page.at_tip or page.closed:
                return start(page.searched_s)
        return start(0)

    def cursor_at(self, shard: ShardId, position: Position | datetime) -> str:
        """The cursor of the first record at or after a position; the end if there is none.

        Times mean when the service took the records.
        """
        if removed(shard, listed := self._shards.listed()):
            return str(GONE)
        if position is Position.BEGIN:
            return str(self._begin(shard))
        if isinstance(position, datetime):
            place = self._newest.first_since(shard, position)
            if place is not None:
                return str(place)
        end = self._newest.end(shard)
        return str(end if end is not None else self._begin(listed[shard].shard))

    def cursor_after(self, shard: ShardId, number: int, part: int) -> str:
        """Return the cursor of the record that follows one of those packed under a number.

        Where the record itself was removed, it is that record's own cursor, which has expired.
        """
        place = at(number, part)
        try:
            for step in self._steps(shard, place, 1):
                if step.record is None:
                    return str(step.reached)
                # Parts of other shards are left out: the one that was asked for can be none.
                same = step.record.place == place
                return str(step.record.following if same else step.record.place)
        except CursorExpired:
            return str(place)
        return str(place)

    def plan(
        self, shard: ShardId, start: str, limits: Limits, *, looks_again: bool = True
    ) -> PlannedRange:
        """Find the end of a batch that starts at `start`, by reading it.

        The records are kept for Spark's workers on this host, and for the next plan. With
        `looks_again`, a shard that seems to hold no more is read once more.
        """
        place = Place.parse(shard, start)
        keeps = limits.records_max >= planning.KEPT_FROM_RECORDS
        rest = self._ahead.take(shard, start) if keeps else None
        if rest is None:
            rest = planning.Unread(
                self._steps(shard, place, RECORDS_PER_CALL_MAX if keeps else limits.records_max)
            )
        writer = self._planned.writer(shard) if keeps else None
        batch = planning.Batch(shard, limits, place, writer, looks_again)
        try:
            goes_on = planning.fill(batch, rest)
            batch.flush()
        except LogNotFound:
            if removed(shard, self._shards.listed()):
                raise removed_error(shard) from None
            raise
        else:
            if writer is not None and batch.records:
                writer.keep(start, str(batch.reached))
        finally:
            if writer is not None:
                writer.drop()
        if batch.first_arrived is not None:
            self._arrived[shard] = (start, batch.first_arrived)
        if goes_on and keeps:
            self._ahead.keep(shard, str(batch.reached), rest)
        if batch.reached.order == place.order and not batch.last:
            batch.reached = planning.renewed(place, rest.page, self._shards.retention_s())
        return batch.planned()

    def _steps(self, shard: ShardId, place: Place, limit: int) -> Iterator[planning.Step]:
        for page in self._pages.from_place(shard, place, limit=limit):
            for user in self._users(shard, page):
                if user.place.order >= place.order:
                    yield planning.Step(user.following, user)
            reached = page.records[-1].following if page.records else place
            yield planning.Step(reached, page=page)

    def lag(self, shard: ShardId, cursor: str, bounds: ShardBounds) -> int | None:
        """0 at the end, otherwise None: the service does not count records."""
        if bounds.removed:
            return removed_lag(cursor)
        here, end = Place.parse(shard, cursor), Place.parse(shard, bounds.end)
        return 0 if here.order >= end.order else None


def _behind(lost: Place, bounds: ShardBounds) -> ShardBounds:
    """Return the bounds for a reader whose cursor has expired.

    Where no record is left, the shard begins before all records: for a reader that was at one of
    them, that is behind it.
    """
    begin = Place.parse("", bounds.begin)
    if begin.side is not Side.START or lost.side not in (Side.AT, Side.AFTER):
        return bounds
    place = str(after(lost.number, begin.sure_s))
    return replace(bounds, begin=place, end=place)


def _removed() -> ShardBounds:
    return removed_bounds(str(start(0)))


def _open(options: KinesisOptions, place: StreamPlace) -> KinesisStream:
    """Return the stream; where there is none, the first call that needs it says so."""
    return KinesisStream(options, options.stream or place.stream, place.folder)


def _reader(options: Mapping[str, str]) -> ShardReader:
    parsed = KinesisOptions.model_validate_json(options["options"])
    return KinesisReader(parsed, options["stream"], Path(options["folder"]))


KIND = SourceKind(
    KinesisOptions,
    _open,
    _reader,
    library="boto3",
    install="pip install 'dagster-leasehold[kinesis]'",
)
