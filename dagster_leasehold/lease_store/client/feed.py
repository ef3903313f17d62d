"""Records of a sharded log by cursor, as far as a client needs it.

The lease store knows no sources: `shard_sources.record_feed.SourceFeed` makes a feed of any of
them, and a client of something else brings its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Protocol

from dagster_leasehold.lease_store.identifiers import ShardId


@dataclass(frozen=True, slots=True)
class Record:
    """One record of a shard.

    Attributes:
        cursor: its place.
        next_cursor: the place of the record after it, to be confirmed when this one is done.

    Examples:
        >>> Record(ShardId("0"), "10", "11", event_time=None, key=None, value=b"one").attributes
        {}
    """

    shard: ShardId
    cursor: str
    next_cursor: str
    event_time: datetime | None
    key: bytes | None
    value: bytes
    attributes: Mapping[str, str] = field(default_factory=dict[str, str])


@dataclass(frozen=True, slots=True)
class Fetched:
    """Some records of one shard, in order.

    Attributes:
        start: the cursor of the first one.
        end: the cursor after the last one; equal to `start` when there is none.
        last: a read-only shard ends here.

    Examples:
        >>> Fetched("0", "2").records
        ()
    """

    start: str
    end: str
    records: tuple[Record, ...] = ()
    last: bool = False


class ShardFeed(Protocol):
    """Reads a log's shards; called from the thread that polls or processes."""

    def cursor_at(self, shard: ShardId, position: str) -> str:
        """The cursor at a position: `begin`, `end`, or an ISO 8601 time."""
        ...

    def first_cursor(self, shard: ShardId) -> str:
        """The cursor of the first record that the shard ever had.

        If that cursor is gone, it is the cursor of the oldest record that the shard still has.
        Retention might have removed the records there: `fetch` says so.
        """
        ...

    def clamp(self, shard: ShardId, cursor: str) -> str:
        """`cursor`, or the nearest one that the shard still has or has already.

        Raises:
            CursorInvalid: it is no cursor of the shard at all.
        """
        ...

    def fetch(self, shard: ShardId, cursor: str, *, records_max: int) -> Fetched:
        """The next records from a cursor on, at most so many; none where the shard ends.

        Raises:
            CursorExpired: retention has removed the record at `cursor`.
            SourceUnavailable: the log does not answer.
        """
        ...

    def fetch_between(self, shard: ShardId, start: str, end: str, *, records_max: int) -> Fetched:
        """The first records of `[start, end)`, which were fetched before, at most so many.

        Raises:
            CursorExpired: retention has removed the record at `start`.
            SourceUnavailable: the log does not answer.
        """
        ...
