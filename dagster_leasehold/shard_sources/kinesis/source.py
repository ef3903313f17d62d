"""A Kinesis stream as a source: its shards, their bounds, and the ends of batches."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
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
from dagster_leasehold.shard_sources.kinesis.paging import RECORDS_PER_CALL_MAX
from dagster_leasehold.shard_sources.kinesis.reader import KinesisReader
from dagster_leasehold.shard_sources.kinesis.service import CONNECTIONS, KinesisOptions
from dagster_leasehold.shard_sources.kinesis.shard_list import KinesisShard, removed
from dagster_leasehold.shard_sources.kinesis.user_records import UserRecord
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
UNREAD_MAX = 16
"""The most shards whose last page stays in memory."""


class KinesisStream(KinesisReader):
    """A stream of Amazon Kinesis Data Streams; safe for several threads."""

    def __init__(self, options: KinesisOptions, stream: str, folder: Path) -> None:
        super().__init__(options, stream, folder)
        # By shard: the end of its last plan, and the read that continues there.
        self._unread: dict[ShardId, tuple[str, planning.Unread]] = {}
        self._newest = planning.NewestRecords(self._pages)
        self._arrived: dict[ShardId, tuple[str, datetime]] = {}

    def list_shards(self) -> list[ShardListing]:
        """Return all shards that the service lists, with both parents of a merge."""
        shards_by_id = self._shards.all()
        return [shard.listing(shards_by_id.keys()) for shard in shards_by_id.values()]

    def bounds(self, shards: Sequence[ShardId]) -> dict[ShardId, ShardBounds]:
        """Return the bounds of shards, by several reads of each in parallel.

        `bounds_after` needs one read of each.
        """
        return self._of_each(shards, self._bounds)

    def bounds_after(self, cursors: Mapping[ShardId, str]) -> dict[ShardId, ShardBounds]:
        """Return the bounds that readers at these cursors need, by one read of each shard."""

        def check(shard: ShardId, entry: KinesisShard | None) -> ShardBounds:
            cursor = cursors[shard]
            if entry is None:
                return _removed()
            try:
                plan = self.plan(shard, cursor, ONE_RECORD, reads_twice=entry.closed)
            except CursorExpired:
                return _behind(Place.parse(shard, cursor), self._bounds(shard, entry))
            # A shard can be listed as closed before its last records are read.
            finished = entry.closed and (plan.last or plan.end != cursor)
            return ShardBounds(cursor, plan.end, finished)

        return self._of_each(list(cursors), check)

    def times_at(self, cursors: Mapping[ShardId, str]) -> dict[ShardId, datetime]:
        """Return the times when the service received the records at these cursors.

        Usually the shard's last plan has read the record, so its time is cached.
        """

        def read_one(shard: ShardId, entry: KinesisShard | None) -> None:
            if entry is not None:
                self.plan(shard, cursors[shard], ONE_RECORD, reads_twice=False)

        self._of_each([shard for shard in cursors if not self._arrival(shard, cursors)], read_one)
        times = {shard: self._arrival(shard, cursors) for shard in cursors}
        return {shard: time for shard, time in times.items() if time is not None}

    def _arrival(self, shard: ShardId, cursors: Mapping[ShardId, str]) -> datetime | None:
        cursor, arrived = self._arrived.get(shard, ("", None))
        return arrived if cursor == cursors[shard] else None

    def _of_each(
        self, shards: Sequence[ShardId], ask: Callable[[ShardId, KinesisShard | None], Answer]
    ) -> dict[ShardId, Answer]:
        if not shards:
            return {}
        # The list is read first: a shard listed as closed already had its last record.
        shards_by_id = self._shards.all()
        entries = [
            None if removed(shard, shards_by_id) else shards_by_id[shard] for shard in shards
        ]
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
        # If records are possibly removed, the oldest one left was not the shard's first.
        origin = begin if untrimmed else start(entry.created_s or 0)
        return ShardBounds(str(begin), str(end), entry.closed, str(origin))

    def _begin(self, shard: ShardId) -> Place:
        """Return the position of the oldest record, or before all records if there is none."""
        # Each byte counts against the shard's limit, and one record is enough.
        for page in self._pages.oldest(shard, limit=1):
            if page.records:
                return at(page.records[0].number)
            if page.at_tip or page.closed:
                return start(page.searched_s)
        return start(0)

    def cursor_at(self, shard: ShardId, position: Position | datetime) -> str:
        """Return the cursor of the first record at or after a position, or the end.

        A time is compared with when the service received the records.
        """
        if removed(shard, shards_by_id := self._shards.all()):
            return str(GONE)
        if position is Position.BEGIN:
            return str(self._begin(shard))
        if isinstance(position, datetime):
            place = self._newest.first_since(shard, position)
            if place is not None:
                return str(place)
        end = self._newest.end(shard)
        return str(end if end is not None else self._begin(shards_by_id[shard].shard))

    def cursor_after(self, shard: ShardId, number: int, part: int) -> str:
        """Return the cursor after a record, which can be part of a packed one.

        If the record was removed, the result is the record's own, expired cursor.
        """
        place = at(number, part)
        try:
            for item in self._items(shard, place, 1):
                if not isinstance(item, UserRecord):
                    return str(item.end or place)
                # The requested part is omitted if it belongs to another shard.
                return str(item.next_place if item.place == place else item.place)
        except CursorExpired:
            return str(place)
        return str(place)

    def plan(
        self, shard: ShardId, start: str, limits: Limits, *, reads_twice: bool = True
    ) -> PlannedRange:
        """Return the end of a batch, which is found by reading it.

        The records are stored for Spark's workers on this host, and the next plan continues the
        read. With `reads_twice`, only a second read at the tip ends the batch.
        """
        place = Place.parse(shard, start)
        is_stored = limits.records_max >= planning.STORED_RECORDS_MIN
        before, rest = self._unread.pop(shard, ("", None)) if is_stored else ("", None)
        if rest is None or before != start:
            limit = RECORDS_PER_CALL_MAX if is_stored else limits.records_max
            rest = planning.Unread(self._items(shard, place, limit))
        writer = self._ranges.writer(shard) if is_stored else None
        batch = planning.Batch(limits, place, writer, reads_twice)
        try:
            continues = planning.fill(batch, rest)
            if writer is not None and batch.records:
                writer.keep(start, str(batch.end))
        except LogNotFound:
            if removed(shard, self._shards.all()):
                raise removed_error(shard) from None
            raise
        finally:
            if writer is not None:
                writer.drop()
        if batch.first_arrived is not None:
            self._arrived[shard] = (start, batch.first_arrived)
        if continues and is_stored:
            self._unread[shard] = (str(batch.end), rest)
            for oldest in list(self._unread)[:-UNREAD_MAX]:
                self._unread.pop(oldest, None)
        if batch.end.order == place.order and not batch.last:
            batch.end = planning.renewed(place, rest.page, self._shards.retention_s())
        return batch.plan()

    def lag(self, shard: ShardId, cursor: str, bounds: ShardBounds) -> int | None:
        """Return 0 at the end, otherwise None: the service does not count records."""
        if bounds.removed:
            return removed_lag(cursor)
        here, end = Place.parse(shard, cursor), Place.parse(shard, bounds.end)
        return 0 if here.order >= end.order else None


def _behind(lost: Place, bounds: ShardBounds) -> ShardBounds:
    """Return the bounds for a reader whose cursor has expired.

    An empty shard begins before all records, which is behind a reader that was at a record. So its
    bounds move to the end of that record.
    """
    begin = Place.parse("", bounds.begin)
    if begin.side is not Side.START or lost.side not in (Side.AT, Side.AFTER):
        return bounds
    place = str(after(lost.number, begin.sure_s))
    return replace(bounds, begin=place, end=place)


def _removed() -> ShardBounds:
    return removed_bounds(str(start(0)))


def _open(options: KinesisOptions, place: StreamPlace) -> KinesisStream:
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
