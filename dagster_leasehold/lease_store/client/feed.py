"""The records of a sharded log, for clients.

`shard_sources.record_feed.SourceFeed` is the feed of any source. Clients of another log implement
their own.
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
        cursor: its position.
        next_cursor: the position after it; confirm this cursor once the record is processed.

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
        start: the cursor of the first record.
        end: the cursor after the last record; equal to `start` if there is none.
        last: True if a read-only shard ends here.

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
        """Return the cursor at a position: `begin`, `end`, or an ISO 8601 time."""
        ...

    def first_cursor(self, shard: ShardId) -> str:
        """Return the cursor of the first record that the shard ever had.

        If that cursor is unknown, return the cursor of the oldest record that the shard still has.
        If retention removed the first record, `fetch` raises `CursorExpired`.
        """
        ...

    def clamp(self, shard: ShardId, cursor: str) -> str:
        """Return `cursor`, or the nearest readable one; raise CursorInvalid for other text."""
        ...

    def fetch(self, shard: ShardId, cursor: str, *, records_max: int) -> Fetched:
        """Return the next records from a cursor on, at most `records_max`.

        Raises:
            CursorExpired: retention removed the record at `cursor`.
            SourceUnavailable: the log does not answer.
        """
        ...

    def fetch_between(self, shard: ShardId, start: str, end: str, *, records_max: int) -> Fetched:
        """Return the first records of `[start, end)`, fetched before; raises as `fetch`."""
        ...
