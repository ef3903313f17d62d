"""A logstore as a source: its shards, their bounds, and the ends of batches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime

from dagster_leasehold.lease_store.errors import CursorExpired, UnknownShard, shown
from dagster_leasehold.lease_store.identifiers import ShardId
from dagster_leasehold.lease_store.shard_rows import ShardListing
from dagster_leasehold.shard_sources import positions
from dagster_leasehold.shard_sources.event_times import moment_of
from dagster_leasehold.shard_sources.loghub.cursors import GroupCursor
from dagster_leasehold.shard_sources.loghub.lineage import ListedShard, with_parents
from dagster_leasehold.shard_sources.loghub.options import LogHubOptions
from dagster_leasehold.shard_sources.loghub.reader import LogHubReader
from dagster_leasehold.shard_sources.registry import SourceKind, StreamPlace
from dagster_leasehold.shard_sources.source import (
    Limits,
    PlannedRange,
    Position,
    ShardBounds,
    ShardReader,
    ShardSource,
)

SOURCE_NAME = "loghub"
SDK = "aliyun-log-python-sdk==0.9.52"
INSTALL = f"pip install 'dagster-leasehold[loghub]' && pip install --no-deps {SDK}"
"""Two steps, because the SDK requires an older protobuf than Dagster and Spark Connect do."""
_AT_ONCE = 8


class LogHub(LogHubReader):
    """A logstore of LogHub (the Simple Log Service of Alibaba Cloud)."""

    def list_shards(self) -> list[ShardListing]:
        """Return all shards that the service lists, in order of creation, with their parents."""
        return with_parents(self.client.shards())

    def bounds(self, shards: Sequence[ShardId]) -> dict[ShardId, ShardBounds]:
        """Return the bounds of shards: one request for all, and two for each in parallel."""
        if not shards:
            return {}
        # The list is read first: a shard listed as read-only already had its last record.
        listed = self.client.shards()
        read_only = {
            shard: None if self.removed(shard, listed) else self._read_only(shard, listed)
            for shard in shards
        }

        def bounds(shard: ShardId) -> ShardBounds:
            finished = read_only[shard]
            if finished is None:
                return positions.removed_bounds(str(GroupCursor(0)))
            begin = self._cursor(shard, Position.BEGIN)
            return ShardBounds(str(begin), str(self._end(shard)), finished)

        with ThreadPoolExecutor(_AT_ONCE) as pool:
            return dict(zip(shards, pool.map(bounds, shards), strict=True))

    def cursor_at(self, shard: ShardId, position: Position | datetime) -> str:
        """Return the cursor at a position; a time is compared with the arrival of LogGroups.

        The service stores whole seconds, so a time within a second includes that whole second.
        """
        at = position
        if isinstance(at, datetime):
            at = max(0, int(at.timestamp() // 1))
        try:
            return str(self._cursor(shard, at))
        except CursorExpired:
            return positions.GONE

    def times_at(self, cursors: Mapping[ShardId, str]) -> dict[ShardId, datetime]:
        """Return the seconds when the service received the LogGroups, by a request for each."""
        places = {
            shard: GroupCursor.parse(shard, cursor).service
            for shard, cursor in cursors.items()
            if cursor != positions.GONE
        }
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            seconds = pool.map(
                lambda shard: self.client.cursor_time(self.number_of(shard), places[shard]), places
            )
            moments = {
                shard: moment_of(second * 1_000_000)
                for shard, second in zip(places, seconds, strict=True)
            }
        return {shard: moment for shard, moment in moments.items() if moment is not None}

    def plan(self, shard: ShardId, start: str, limits: Limits) -> PlannedRange:
        """Return the end of a batch of at least one record; bytes are counted in the messages.

        The batch ends between two LogGroups if it can, because the service sends whole groups and
        its consumer groups cannot point into one. It ends within the first group if that is too
        large.
        """
        self.number_of(shard)
        if start == positions.GONE and self.removed(shard, self.client.shards()):
            return positions.removed_plan(shard, start)
        first = GroupCursor.parse(shard, start)
        end, whole, records, bytes_ = first, 0, 0, 0
        # With a known end, the plan does not have to read an empty page to find it.
        stop = self._end(shard).group
        if first.group >= stop:
            self._check_within(shard, first.group)
        # Every group has a record, so a pull needs at most as many groups as records.
        for placed in self.groups(shard, first.group, stop, count=limits.records_max):
            begin = first.index if placed.number == first.group else 0
            self._check_index(shard, placed, begin)
            sizes = [log.ByteSize() for log in placed.group.Logs[begin:]]
            total = sum(sizes)
            if records + len(sizes) <= limits.records_max and bytes_ + total <= limits.bytes_max:
                records, bytes_ = records + len(sizes), bytes_ + total
                sizes = []
            for index, size in enumerate(sizes, begin):
                full = records >= limits.records_max or bytes_ + size > limits.bytes_max
                if whole and full:
                    return PlannedRange(str(end), whole, last=False)
                if records and full:
                    return PlannedRange(str(GroupCursor(placed.number, index)), records, last=False)
                records, bytes_ = records + 1, bytes_ + size
            end, whole = GroupCursor(placed.next_number), records
            if records >= limits.records_max or bytes_ >= limits.bytes_max:
                break
        return PlannedRange(str(end), records, last=self._is_last(shard, end))

    def _is_last(self, shard: ShardId, cursor: GroupCursor) -> bool:
        # 1. The plan reads to the end. 2. A writer appends. 3. The shard is split. So an end is
        # final only if it is requested after the shard is listed as read-only.
        return self._read_only(shard, self.client.shards()) and cursor >= self._end(shard)

    def lag(self, shard: ShardId, cursor: str, bounds: ShardBounds) -> int | None:
        """Return 0 at the end, otherwise None: the service counts LogGroups, not records."""
        if bounds.removed:
            return positions.removed_lag(cursor)
        end = GroupCursor.parse(shard, bounds.end)
        return 0 if GroupCursor.parse(shard, cursor) >= end else None

    def spark_options(self) -> Mapping[str, str]:
        """Return the options of the reader in a Spark worker."""
        options = self.options.model_dump(exclude_defaults=True)
        return {"source": SOURCE_NAME, **{name: str(value) for name, value in options.items()}}

    def _end(self, shard: ShardId) -> GroupCursor:
        return self._cursor(shard, Position.END)

    def _read_only(self, shard: ShardId, listed: Sequence[ListedShard]) -> bool:
        for entry in listed:
            if str(entry.number) == self.number_of(shard):
                return entry.read_only
        raise UnknownShard(f"Logstore {self.options.logstore} has no shard {shown(shard)}.")


def _open(options: LogHubOptions, place: StreamPlace) -> ShardSource:
    return LogHub(options.model_copy(update={"logstore": options.logstore or place.stream}))


def _reader(options: Mapping[str, str]) -> ShardReader:
    own = {name: text for name, text in options.items() if name in LogHubOptions.model_fields}
    return LogHubReader(LogHubOptions.model_validate(own))


KIND = SourceKind(LogHubOptions, _open, _reader, library="aliyun", install=INSTALL)
