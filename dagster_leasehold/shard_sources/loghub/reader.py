"""Exact ranges of a logstore's shards, from a service that sends whole LogGroups.

The service's cursors number LogGroups one by one, so each pull of n groups must move the cursor by
n. Otherwise either retention has removed some of the groups (the service silently continues with
the rest), or the numbers have holes. Then groups are pulled one at a time, so that the cursor of
each is known.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, TypeVar

from dagster_leasehold.lease_store.errors import CursorInvalid, LogCorrupt, UnknownShard
from dagster_leasehold.lease_store.identifiers import ShardId
from dagster_leasehold.shard_sources.loghub.credentials import CredentialsProvider
from dagster_leasehold.shard_sources.loghub.cursors import GroupCursor
from dagster_leasehold.shard_sources.loghub.lineage import ListedShard
from dagster_leasehold.shard_sources.loghub.options import LogHubOptions
from dagster_leasehold.shard_sources.loghub.record_columns import PlacedGroup, add_logs
from dagster_leasehold.shard_sources.positions import (
    GONE,
    check_within,
    removed_error,
    shard_number,
    was_removed,
)
from dagster_leasehold.shard_sources.record_columns import RecordColumns, batches_of
from dagster_leasehold.shard_sources.source import Position, ReadRange

if TYPE_CHECKING:
    import pyarrow as pa

    from dagster_leasehold.shard_sources.loghub.client import LogHubClient, Pull

Answer = TypeVar("Answer")
GROUPS_MAX = 1000
"""The most LogGroups that the service sends at once."""


class LogHubReader:
    """Reads ranges of a logstore, on a Spark worker."""

    def __init__(self, options: LogHubOptions) -> None:
        self.options = options
        self._credentials = CredentialsProvider(options.credentials_uri)
        self._of_thread = threading.local()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.options.project}/{self.options.logstore})"

    @property
    def client(self) -> LogHubClient:
        """The client of this thread, because the SDK's session cannot be shared."""
        from dagster_leasehold.shard_sources.loghub.client import LogHubClient

        client: LogHubClient | None = getattr(self._of_thread, "client", None)
        if client is None:
            client = self._of_thread.client = LogHubClient(self.options, self._credentials)
        return client

    def number_of(self, shard: ShardId) -> str:
        """Return the service's number of a shard; raise UnknownShard if the id is no number."""
        return str(shard_number(shard, f"Logstore {self.options.logstore}"))

    def removed(self, shard: ShardId, listed: Sequence[ListedShard]) -> bool:
        """Return True if retention has removed a shard as a whole."""
        return was_removed(int(self.number_of(shard)), (each.number for each in listed))

    def read(self, range_: ReadRange) -> Iterator[pa.RecordBatch]:
        """Yield the records of a range in order, in batches of `record_schema()`."""
        self.number_of(range_.shard)
        if range_.start == range_.end == GONE:
            return
        start = GroupCursor.parse(range_.shard, range_.start)
        end = GroupCursor.parse(range_.shard, range_.end)

        def add(columns: RecordColumns, placed: PlacedGroup) -> None:
            first = start.index if placed.number == start.group else 0
            stop = end.index if placed.number == end.group else None
            self._check_index(range_.shard, placed, max(first, stop or 0))
            add_logs(columns, self.options, placed, first, stop)

        yield from batches_of(range_.shard, self._range(range_.shard, start, end), add)

    def _range(self, shard: ShardId, start: GroupCursor, end: GroupCursor) -> Iterator[PlacedGroup]:
        """Yield the groups of a range; raise CursorInvalid if it exceeds the log."""
        if start >= end:
            # Nothing is read, but a position that the shard never had is still an error.
            self._check_within(shard, start.group)
            return
        number = start.group
        for placed in self.groups(shard, start.group, end.group):
            number = placed.next_number
            yield placed
        last = None
        if number >= end.group and end.index:
            last = next(self.groups(shard, end.group, None, count=1), None)
            if last is not None:
                yield last
        if number < end.group or (end.index and last is None):
            raise CursorInvalid(
                f"Shard {shard} of {self.options.logstore} ends before {end}: use a range within "
                "the shard."
            )

    def groups(
        self, shard: ShardId, start: int, end: int | None, count: int | None = None
    ) -> Iterator[PlacedGroup]:
        """Yield the LogGroups from the number `start` up to `end`, or to the end of the log.

        `count` is the most groups of one pull.
        """
        count = min(count or GROUPS_MAX, GROUPS_MAX)
        stop = None if end is None else GroupCursor(end).service
        at = start
        while end is None or at < end:
            pull = self._pull(shard, at, stop, count)
            next_number = GroupCursor.from_service(shard, pull.next_cursor).group
            size = len(pull.groups)
            if not size:
                self._check_within(shard, at)
                if next_number <= at:
                    return
            elif next_number - at == size:
                for number, group in enumerate(pull.groups, at):
                    if end is not None and number >= end:
                        return
                    yield PlacedGroup(number, group, number + 1)
            elif next_number <= at:
                raise LogCorrupt(
                    f"The log service sent records of shard {shard} of {self.options.logstore} "
                    f"from {GroupCursor(at)} on and went back to {GroupCursor(next_number)}."
                )
            else:
                self._check_within(shard, at)
                if size > 1:
                    count = 1
                    continue
                yield PlacedGroup(at, pull.groups[0], next_number)
            at = next_number

    def _pull(self, shard: ShardId, at: int, stop: str | None, count: int) -> Pull:
        number, cursor = self.number_of(shard), GroupCursor(at).service
        try:
            return self._unless_removed(
                shard, lambda: self.client.pull(number, cursor, stop, count)
            )
        except CursorInvalid:
            # The service's answer is the same for removed and for non-existent records.
            self._check_within(shard, at)
            raise

    def _unless_removed(self, shard: ShardId, ask: Callable[[], Answer]) -> Answer:
        """Return the answer to a request about a shard; raise CursorExpired if it was removed."""
        try:
            return ask()
        except UnknownShard:
            # The service's answer is the same for removed and for non-existent shards.
            if self.removed(shard, self.client.shards()):
                raise removed_error(shard) from None
            raise

    def _check_within(self, shard: ShardId, at: int) -> None:
        """Check, after a read, that the position is in the shard, so that no record was lost."""
        begin, end = self._cursor(shard, Position.BEGIN), self._cursor(shard, Position.END)
        check_within(f"Shard {shard} of {self.options.logstore}", GroupCursor(at), begin, end)

    def _cursor(self, shard: ShardId, at: Position | int) -> GroupCursor:
        place = at if isinstance(at, int) else at.value
        number = self.number_of(shard)
        answer = self._unless_removed(shard, lambda: self.client.cursor(number, place))
        return GroupCursor.from_service(shard, answer)

    def _check_index(self, shard: ShardId, placed: PlacedGroup, index: int) -> None:
        if index > len(placed.group.Logs):
            raise CursorInvalid(
                f"The LogGroup at {GroupCursor(placed.number)} of shard {shard} has "
                f"{len(placed.group.Logs)} records: there is no record {index}."
            )
