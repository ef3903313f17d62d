"""A logstore as a source: exact ranges over a service that sends whole LogGroups.

The service's cursors number LogGroups one by one: a pull of n groups moves the cursor by n. Each
pull is checked for that. Where it does not hold, either retention has removed groups that were
asked for (the service goes on with those that are left, and does not say so), or the numbers have
holes; then groups are pulled one at a time, so that each one's cursor is known.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from dagster_leasehold.lease_store.errors import (
    CursorExpired,
    CursorInvalid,
    LogCorrupt,
    UnknownShard,
    shown,
)
from dagster_leasehold.lease_store.identifiers import ShardId
from dagster_leasehold.lease_store.shard_rows import ShardListing
from dagster_leasehold.shard_sources.loghub.credentials import FoundCredentials
from dagster_leasehold.shard_sources.loghub.cursors import GroupCursor
from dagster_leasehold.shard_sources.loghub.kind import SOURCE_NAME, LogHubOptions
from dagster_leasehold.shard_sources.loghub.lineage import ListedShard, with_parents
from dagster_leasehold.shard_sources.loghub.records import Fields, RecordColumns
from dagster_leasehold.shard_sources.removed_shards import (
    GONE,
    removed_bounds,
    removed_error,
    removed_lag,
    removed_plan,
    was_removed,
)
from dagster_leasehold.shard_sources.source import (
    Limits,
    PlannedRange,
    Position,
    ReadRange,
    ShardBounds,
)

if TYPE_CHECKING:
    import pyarrow as pa

    from dagster_leasehold.shard_sources.loghub.client import LogHubClient

_YIELD_RECORDS = 8192
_YIELD_BYTES = 4 * 1024 * 1024
_BOUNDS_AT_ONCE = 8
_SHARD_DIGITS_MAX = 9


@dataclass(frozen=True, slots=True)
class PlacedGroup:
    """A LogGroup, the number of the cursor before it, and of the one after it."""

    number: int
    group: Any
    following: int


class LogHubReader:
    """Reads ranges of a logstore; what a Spark worker needs of it.

    Args:
        options: which logstore, and how its records are made.
    """

    def __init__(self, options: LogHubOptions) -> None:
        self.options = options
        self._fields = Fields(options.value_field, options.key_field)
        self._credentials = FoundCredentials(options.credentials_uri)
        self._of_thread = threading.local()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.options.project}/{self.options.logstore})"

    @property
    def client(self) -> LogHubClient:
        """The client of this thread: the SDK's session is not for several."""
        from dagster_leasehold.shard_sources.loghub.client import LogHubClient

        made: LogHubClient | None = getattr(self._of_thread, "client", None)
        if made is None:
            made = self._of_thread.client = LogHubClient(self.options, self._credentials)
        return made

    def number_of(self, shard: ShardId) -> str:
        """The service's name of a shard: a number.

        Raises:
            UnknownShard: it is none.
        """
        if shard.isdecimal() and len(shard) <= _SHARD_DIGITS_MAX and str(int(shard)) == shard:
            return str(shard)
        raise UnknownShard(f"Logstore {self.options.logstore} has no shard {shown(shard)}.")

    def removed(self, shard: ShardId, listed: Sequence[ListedShard]) -> bool:
        """Whether retention has removed a shard as a whole.

        Raises:
            UnknownShard: it is no shard of a logstore.
        """
        return was_removed(int(self.number_of(shard)), (each.number for each in listed))

    def read(self, range_: ReadRange) -> Iterator[pa.RecordBatch]:
        """The records of a range, in order, in batches of `record_schema()`.

        Raises:
            CursorExpired: retention has removed the start of the range.
            CursorInvalid: the range is not within the shard.
            LogCorrupt: what the service sent cannot be read, or ends before the range.
            SourceUnavailable, SourceThrottled, SourceRefused: see `ShardReader.read`.
        """
        self.number_of(range_.shard)
        if range_.start == range_.end == GONE:
            return
        start = GroupCursor.parse(range_.shard, range_.start)
        end = GroupCursor.parse(range_.shard, range_.end)
        columns = RecordColumns(range_.shard, self._fields)
        for placed in self._range(range_.shard, start, end):
            first = start.index if placed.number == start.group else 0
            stop = end.index if placed.number == end.group else None
            self._check_index(range_.shard, placed, max(first, stop or 0))
            columns.add(placed.group, placed.number, first, stop)
            if len(columns.cursors) >= _YIELD_RECORDS or columns.bytes >= _YIELD_BYTES:
                yield columns.batch()
                columns = RecordColumns(range_.shard, self._fields)
        if columns.cursors:
            yield columns.batch()

    def _range(self, shard: ShardId, start: GroupCursor, end: GroupCursor) -> Iterator[PlacedGroup]:
        """All groups that hold records of a range.

        Raises:
            LogCorrupt: the log ends before the range does.
        """
        if start >= end:
            # Nothing to read, but a place that the shard never had is still a mistake.
            self._check_within(shard, start.group)
            return
        reached = start.group
        for placed in self.groups(shard, start.group, end.group):
            reached = placed.following
            yield placed
        if reached < end.group:
            raise self._ends_early(shard, end)
        if end.index:
            for placed in self.groups(shard, end.group, None, count=1):
                yield placed
                return
            raise self._ends_early(shard, end)

    def groups(
        self, shard: ShardId, start: int, end: int | None, count: int | None = None
    ) -> Iterator[PlacedGroup]:
        """The LogGroups from a cursor's number up to another, or as far as the log goes.

        Args:
            shard: which one.
            start: the number in the first cursor.
            end: the number in the cursor to stop at; None goes to the end of the log.
            count: the most groups of one pull.

        Raises:
            CursorExpired: retention has removed the start.
            CursorInvalid: it lies after the end of the shard.
        """
        from dagster_leasehold.shard_sources.loghub.client import GROUPS_MAX

        count = min(count or GROUPS_MAX, GROUPS_MAX)
        stop = None if end is None else GroupCursor(end).service
        at = start
        while end is None or at < end:
            pulled = self._pull(shard, at, stop, count)
            following = GroupCursor.from_service(shard, pulled.next_cursor).group
            found = len(pulled.groups)
            if not found:
                self._check_within(shard, at)
                if following <= at:
                    return
            elif following - at == found:
                for number, group in enumerate(pulled.groups, at):
                    if end is not None and number >= end:
                        return
                    yield PlacedGroup(number, group, number + 1)
            elif following <= at:
                raise LogCorrupt(
                    f"The log service sent records of shard {shard} of {self.options.logstore} "
                    f"from {GroupCursor(at)} on and went back to {GroupCursor(following)}."
                )
            else:
                self._check_within(shard, at)
                if found > 1:
                    count = 1
                    continue
                yield PlacedGroup(at, pulled.groups[0], following)
            at = following

    def _pull(self, shard: ShardId, at: int, stop: str | None, count: int) -> Any:
        try:
            return self.client.pull(self.number_of(shard), GroupCursor(at).service, stop, count)
        except CursorInvalid:
            # The service has one answer for what was removed and for what never was.
            self._check_within(shard, at)
            raise
        except UnknownShard:
            # And one for a shard that it has forgotten and for one that never was.
            if self.removed(shard, self.client.shards()):
                raise removed_error(shard) from None
            raise

    def _check_within(self, shard: ShardId, at: int) -> None:
        """Whether a place is in the shard, asked after what was read there: nothing was left out.

        Raises:
            CursorExpired: it lies before the first record that is kept.
            CursorInvalid: it lies after the last.
        """
        begin = self._cursor(shard, Position.BEGIN)
        if at < begin.group:
            raise CursorExpired(
                f"Shard {shard} of {self.options.logstore} begins at {begin}: retention has "
                f"removed the records from {GroupCursor(at)} on."
            )
        end = self._cursor(shard, Position.END)
        if at > end.group:
            raise CursorInvalid(
                f"Shard {shard} of {self.options.logstore} ends at {end}: the cursor "
                f"{GroupCursor(at)} lies after it."
            )

    def _cursor(self, shard: ShardId, at: Position | int) -> GroupCursor:
        place = at if isinstance(at, int) else at.value
        return GroupCursor.from_service(shard, self.client.cursor(self.number_of(shard), place))

    def _check_index(self, shard: ShardId, placed: PlacedGroup, index: int) -> None:
        if index > len(placed.group.Logs):
            raise CursorInvalid(
                f"The LogGroup at {GroupCursor(placed.number)} of shard {shard} has "
                f"{len(placed.group.Logs)} records: there is no record {index}."
            )

    def _ends_early(self, shard: ShardId, end: GroupCursor) -> CursorInvalid:
        return CursorInvalid(
            f"Shard {shard} of {self.options.logstore} ends before {end}: the range lies outside."
        )


class LogHub(LogHubReader):
    """A logstore."""

    def list_shards(self) -> list[ShardListing]:
        """All shards that the service lists, in order of creation, with their parents."""
        return with_parents(self.client.shards())

    def bounds(self, shards: Sequence[ShardId]) -> dict[ShardId, ShardBounds]:
        """The bounds of these shards: one request for all, and two for each, some at a time."""
        if not shards:
            return {}
        # The list first: a shard that it calls read-only had its last record before that.
        answer = self.client.shards()
        listed = {str(each.number): each for each in answer}
        gone = {shard for shard in shards if self.removed(shard, answer)}
        kept = [shard for shard in shards if shard not in gone]
        for shard in kept:
            self._listed(listed, shard)
        with ThreadPoolExecutor(_BOUNDS_AT_ONCE) as pool:
            found = pool.map(
                lambda shard: (self._cursor(shard, Position.BEGIN), self._end(shard)), kept
            )
            return dict.fromkeys(gone, removed_bounds(str(GroupCursor(0)))) | {
                shard: ShardBounds(str(begin), str(end), listed[shard].read_only)
                for shard, (begin, end) in zip(kept, found, strict=True)
            }

    def cursor_at(self, shard: ShardId, position: Position | datetime) -> str:
        """The cursor at a position; a time is that at which the service received a LogGroup.

        The service knows whole seconds: a time within one means all that came in it.
        """
        at = position
        if isinstance(at, datetime):
            at = max(0, int(at.timestamp() // 1))
        self.number_of(shard)
        try:
            return str(self._cursor(shard, at))
        except UnknownShard:
            if self.removed(shard, self.client.shards()):
                return GONE
            raise

    def plan(self, shard: ShardId, start: str, limits: Limits) -> PlannedRange:
        """Where a batch ends: at least one record; bytes are those of the messages.

        It ends between LogGroups where it holds the whole rest of one, because the service sends
        whole groups and its consumer groups cannot point into one. Otherwise it ends within one.

        Raises:
            CursorExpired: retention has removed `start`.
            CursorInvalid: `start` is not a cursor of the shard.
        """
        self.number_of(shard)
        if start == GONE and self.removed(shard, self.client.shards()):
            return removed_plan(shard, start)
        first = GroupCursor.parse(shard, start)
        end, whole, records, bytes_ = first, 0, 0, 0
        # Each group holds a record: no more groups are asked for than records are wanted.
        for placed in self.groups(shard, first.group, None, count=limits.records_max):
            begin = first.index if placed.number == first.group else 0
            self._check_index(shard, placed, begin)
            for index, log in enumerate(placed.group.Logs[begin:], begin):
                size = log.ByteSize()
                full = records >= limits.records_max or bytes_ + size > limits.bytes_max
                if whole and full:
                    return PlannedRange(str(end), whole, last=False)
                if records and full:
                    return PlannedRange(str(GroupCursor(placed.number, index)), records, last=False)
                records, bytes_ = records + 1, bytes_ + size
            end, whole = GroupCursor(placed.following), records
            if records >= limits.records_max or bytes_ >= limits.bytes_max:
                break
        return PlannedRange(str(end), records, last=self._is_last(shard, end))

    def _is_last(self, shard: ShardId, cursor: GroupCursor) -> bool:
        # 1. nothing more was there to read; 2. a writer appends; 3. the shard is split. Only an
        # end that is asked for after the shard was found read-only does not move any more.
        listed = {str(each.number): each for each in self.client.shards()}
        return self._listed(listed, shard).read_only and cursor >= self._end(shard)

    def lag(self, shard: ShardId, cursor: str, bounds: ShardBounds) -> int | None:
        """0 at the end; None before it, because the service counts LogGroups, not records.

        Raises:
            CursorInvalid: it is not a cursor.
        """
        if bounds.removed:
            return removed_lag(cursor)
        end = GroupCursor.parse(shard, bounds.end)
        return 0 if GroupCursor.parse(shard, cursor) >= end else None

    def spark_options(self) -> Mapping[str, str]:
        """What a Spark worker needs to build the reader again."""
        given = self.options.model_dump(exclude_defaults=True)
        return {"source": SOURCE_NAME, **{name: str(value) for name, value in given.items()}}

    def _end(self, shard: ShardId) -> GroupCursor:
        return self._cursor(shard, Position.END)

    def _listed(self, listed: Mapping[str, ListedShard], shard: ShardId) -> ListedShard:
        found = listed.get(self.number_of(shard))
        if found is None:
            raise UnknownShard(f"Logstore {self.options.logstore} has no shard {shown(shard)}.")
        return found
