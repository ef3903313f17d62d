"""The world of a source: a log that the suite can fill, change and break."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa

from dagster_leasehold.lease_store.identifiers import ShardId
from dagster_leasehold.shard_sources.source import Limits, ReadRange, ShardSource

START = datetime(2024, 1, 2, 3, 4, 5, 678000, tzinfo=UTC)
STEP = timedelta(seconds=1)
VALUES = (b"first", b"\r", b"", bytes(range(256)), b"x" * 10_000, "Grüße".encode()) * 5
LARGE_BYTES = 900_000
"""Below the largest record that every service of this suite takes."""


class Notion(StrEnum):
    """A feature that some services lack; the world of such a source says why."""

    KEY = "a record has a key, or none"
    ATTRIBUTES = "a record has attributes"
    GIVEN_TIME = "the writer gives a record its time"
    TIME_SEEK = "a time is looked for among the records"
    NO_VALUE = "a record may have no value, which is not an empty one"
    COUNTED_LAG = "the number of unread records is known"
    TIMED = "a source tells when an unread record came"
    LINEAGE = "shards are split and merged"
    GROWTH = "shards are added beside the others"
    RETENTION = "old records are removed"
    REMOVAL = "a shard is removed with its last record"
    DAMAGE = "stored bytes can be damaged"
    NETWORK = "the service is reached over a network"
    THROTTLING = "the service refuses too many requests"
    CREDENTIALS = "the service asks who is there"


@dataclass(frozen=True, slots=True)
class NewRecord:
    """A record to append; a time of None is the service's own."""

    value: bytes | None
    key: bytes | None = None
    at: datetime | None = None
    attributes: Mapping[str, str] = field(default_factory=dict)


class SourceWorld(ABC):
    """A log of at least two empty shards, new for each case.

    Subclass it, set `source` in the constructor, and name the subclass in
    `tests.sources.conftest`. A method whose notion is in `lacks` is never called.

    Attributes:
        lacks: for each notion that the service has not, the reason in one sentence.
        foreign_cursors: texts that are no cursor of a shard with few records.
        source: of the log.
    """

    lacks: ClassVar[Mapping[Notion, str]] = {}
    foreign_cursors: ClassVar[Sequence[str]] = ("no-cursor", "", "-1", "99999999", "٣", "9" * 50)
    source: ShardSource

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def close(self) -> None:  # noqa: B027 - most worlds have nothing to close
        """Leave nothing running."""

    @abstractmethod
    def put(self, shard: ShardId, records: Sequence[NewRecord]) -> None:
        """Append records to a shard, in order; they can be read when this returns."""

    def split(self, shard: ShardId) -> tuple[ShardId, ShardId]:
        """Split a shard (LINEAGE)."""
        raise self._lacking(Notion.LINEAGE)

    def merge(self, first: ShardId, second: ShardId) -> ShardId:
        """Merge two neighbouring shards (LINEAGE)."""
        raise self._lacking(Notion.LINEAGE)

    def grow(self) -> ShardId:
        """Add a shard (GROWTH)."""
        raise self._lacking(Notion.GROWTH)

    def trim(self, shard: ShardId) -> None:
        """Fill the shard and remove its first record at least, as retention does (RETENTION)."""
        raise self._lacking(Notion.RETENTION)

    def forget(self, shard: ShardId) -> None:
        """Remove a read-only shard as a whole, as retention does (REMOVAL)."""
        raise self._lacking(Notion.REMOVAL)

    def damage(self, shard: ShardId) -> None:
        """Damage stored bytes of a filled shard (DAMAGE)."""
        raise self._lacking(Notion.DAMAGE)

    def unreachable(self) -> ShardSource:
        """A source of this kind whose service does not answer (NETWORK)."""
        raise self._lacking(Notion.NETWORK)

    def throttle(self, requests: int | None) -> None:
        """Let the service refuse this number of requests; None means all (THROTTLING)."""
        raise self._lacking(Notion.THROTTLING)

    def wrong_credentials(self) -> ShardSource:
        """A source of the same log with wrong credentials (CREDENTIALS)."""
        raise self._lacking(Notion.CREDENTIALS)

    def change_credentials(self) -> None:
        """Let the service accept only other credentials than the source's (CREDENTIALS)."""
        raise self._lacking(Notion.CREDENTIALS)

    def learn_credentials(self) -> None:
        """Store the new credentials where the source reads them (CREDENTIALS)."""
        raise self._lacking(Notion.CREDENTIALS)

    def secrets(self) -> Sequence[str]:
        """Texts that no option, error or `repr` contains."""
        return ()

    def _lacking(self, notion: Notion) -> AssertionError:
        return AssertionError(f"{type(self).__name__} neither has nor lacks: {notion}")

    # --- What cases ask ---

    def fill(self, shard: ShardId, values: Iterable[bytes] = VALUES) -> None:
        """Append values, one event-time step apart from `START` on."""
        self.put(
            shard,
            [NewRecord(value, at=START + number * STEP) for number, value in enumerate(values)],
        )

    def rows(self, shard: ShardId, start: str, end: str) -> list[dict[str, Any]]:
        """The records `[start, end)`."""
        return [
            row
            for batch in self.source.read(ReadRange(shard, start, end))
            for row in batch.to_pylist()
        ]

    def all_rows(self, shard: ShardId) -> list[dict[str, Any]]:
        """All records of a shard."""
        bounds = self.source.bounds([shard])[shard]
        return self.rows(shard, bounds.begin, bounds.end)

    def rest(self, shard: ShardId, start: str) -> list[dict[str, Any]]:
        """The records from a cursor to the end, planned and read batch by batch."""
        rows: list[dict[str, Any]] = []
        while (plan := self.source.plan(shard, start, Limits())).end != start:
            rows += self.rows(shard, start, plan.end)
            start = plan.end
        return rows


def values_of(batches: Iterable[pa.RecordBatch]) -> list[bytes]:
    return [value for batch in batches for value in batch.column("value").to_pylist()]
