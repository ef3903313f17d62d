"""Exact ranges of a logstore's shards over a service that sends whole LogGroups.

The service's cursors number LogGroups one by one: a pull of n groups moves the cursor by n. Each
pull is checked for that. Where it does not hold, either retention has removed groups that were
asked for (the service continues with the rest, and does not say so), or the numbers have
holes; then groups are pulled one at a time, so that each one's cursor is known.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from dagster_leasehold.lease_store.errors import CursorInvalid, LogCorrupt, UnknownShard, shown
from dagster_leasehold.lease_store.identifiers import ShardId
from dagster_leasehold.shard_sources.loghub.credentials import CredentialsProvider
from dagster_leasehold.shard_sources.loghub.cursors import GroupCursor
from dagster_leasehold.shard_sources.loghub.lineage import ListedShard
from dagster_leasehold.shard_sources.loghub.options import LogHubOptions
from dagster_leasehold.shard_sources.loghub.record_columns import Fields, LogColumns
from dagster_leasehold.shard_sources.positions import GONE, check_within, removed_error, was_removed
from dagster_leasehold.shard_sources.source import Position, ReadRange

if TYPE_CHECKING:
    import pyarrow as pa

    from dagster_leasehold.shard_sources.loghub.client import LogHubClient, Pulled

Answer = TypeVar("Answer")
_SHARD_DIGITS_MAX = 9
GROUPS_MAX = 1000
"""The most LogGroups that the service sends at once."""


@dataclass(frozen=True, slots=True)
class PlacedGroup:
    """A LogGroup, the number of the cursor before it, and of the one after it."""

    number: int
    group: Any
    following: int


class LogHubReader:
    """Reads ranges of a logstore, on a Spark worker.

    Args:
        options: which logstore, and how its records are made.
    """

    def __init__(self, options: LogHubOptions) -> None:
        self.options = options
        self._fields = Fields(options.value_field, options.key_field)
        self._credentials = CredentialsProvider(options.credentials_uri)
        self._of_thread = threading.local()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.options.project}/{self.options.logstore})"

    @property
    def client(self) -> LogHubClient:
        """The client of this thread: the SDK's session is not for several."""
        from dagster_leasehold.shard_sources.loghub.client import LogHubClient

        client: LogHubClient | None = getattr(self._of_thread, "client", None)
        if client is None:
            client = self._of_thread.client = LogHubClient(self.options, self._credentials)
        return client

    def number_of(self, shard: ShardId) -> str:
        """Return the number that is the service's name of a shard; raise UnknownShard if none."""
        if shard.isdecimal() and len(shard) <= _SHARD_DIGITS_MAX and str(int(shard)) == shard:
            return str(shard)
        raise UnknownShard(f"Logstore {self.options.logstore} has no shard {shown(shard)}.")

    def removed(self, shard: ShardId, listed: Sequence[ListedShard]) -> bool:
        """Return True if retention has removed a shard as a whole."""
        return was_removed(int(self.number_of(shard)), (each.number for each in listed))

    def read(self, range_: ReadRange) -> Iterator[pa.RecordBatch]:
        """The records of a range, in order, in batches of `record_schema()`."""
        self.number_of(range_.shard)
        if range_.start == range_.end == GONE:
            return
        start = GroupCursor.parse(range_.shard, range_.start)
        end = GroupCursor.parse(range_.shard, range_.end)
        columns = LogColumns(range_.shard, self._fields)
        for placed in self._range(range_.shard, start, end):
            first = start.index if placed.number == start.group else 0
            stop = end.index if placed.number == end.group else None
            self._check_index(range_.shard, placed, max(first, stop or 0))
            columns.add(placed.group, placed.number, first, stop)
            if columns.full:
                yield columns.batch()
                columns = LogColumns(range_.shard, self._fields)
        if len(columns):
            yield columns.batch()

    def _range(self, shard: ShardId, start: GroupCursor, end: GroupCursor) -> Iterator[PlacedGroup]:
        """All groups that hold records of a range; raise CursorInvalid if it ends after the log."""
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
            shard: of the logstore.
            start: the number in the first cursor.
            end: the number in the cursor to stop at; None goes to the end of the log.
            count: the most groups of one pull.
        """
        count = min(count or GROUPS_MAX, GROUPS_MAX)
        stop = None if end is None else GroupCursor(end).service
        at = start
        while end is None or at < end:
            pulled = self._pull(shard, at, stop, count)
            following = GroupCursor.from_service(shard, pulled.next_cursor).group
            size = len(pulled.groups)
            if not size:
                self._check_within(shard, at)
                if following <= at:
                    return
            elif following - at == size:
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
                if size > 1:
                    count = 1
                    continue
                yield PlacedGroup(at, pulled.groups[0], following)
            at = following

    def _pull(self, shard: ShardId, at: int, stop: str | None, count: int) -> Pulled:
        number, cursor = self.number_of(shard), GroupCursor(at).service
        try:
            return self._unless_removed(
                shard, lambda: self.client.pull(number, cursor, stop, count)
            )
        except CursorInvalid:
            # The service has one answer for removed records and for records that never were.
            self._check_within(shard, at)
            raise

    def _unless_removed(self, shard: ShardId, ask: Callable[[], Answer]) -> Answer:
        """Return the answer of a request about a shard.

        Raises:
            CursorExpired: retention has removed the shard as a whole.
        """
        try:
            return ask()
        except UnknownShard:
            # The service has one answer for a shard that it has forgotten and for one that never
            # was.
            if self.removed(shard, self.client.shards()):
                raise removed_error(shard) from None
            raise

    def _check_within(self, shard: ShardId, at: int) -> None:
        """Prove, after a read, that its place is in the shard, so that no record was left out."""
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

    def _ends_early(self, shard: ShardId, end: GroupCursor) -> CursorInvalid:
        return CursorInvalid(
            f"Shard {shard} of {self.options.logstore} ends before {end}: the range lies outside."
        )
