"""The local log: a sharded log in a folder, the default source."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Self

from pydantic import BaseModel, ConfigDict

from dagster_leasehold.lease_store.durable_files import make_folder, sync_folder
from dagster_leasehold.lease_store.errors import LogExists, ReshardingRefused, UserMistake
from dagster_leasehold.lease_store.identifiers import ShardId
from dagster_leasehold.lease_store.shard_rows import ShardListing
from dagster_leasehold.lease_store.times import utc_now
from dagster_leasehold.shard_sources import positions
from dagster_leasehold.shard_sources.local_log import catalog
from dagster_leasehold.shard_sources.local_log.files import shard_folder
from dagster_leasehold.shard_sources.local_log.format import Record
from dagster_leasehold.shard_sources.local_log.heads import make_heads
from dagster_leasehold.shard_sources.local_log.lines import append_lines
from dagster_leasehold.shard_sources.local_log.reading import LocalLogReader, ShardFolder, reader_of
from dagster_leasehold.shard_sources.local_log.resharding import (
    even_ranges,
    merge_children,
    reshard,
    split_children,
)
from dagster_leasehold.shard_sources.local_log.writing import AppendedRange, ShardWriter, retain
from dagster_leasehold.shard_sources.registry import SourceKind, StreamPlace
from dagster_leasehold.shard_sources.source import (
    Limits,
    PlannedRange,
    Position,
    ReadRange,
    ShardBounds,
)

SHARDS_MAX = 100_000
SOURCE_NAME = "local_log"
ORIGIN = "0"
_RESHARD_WAIT_S = 30.0


class LocalLog(LocalLogReader):
    """A sharded log in a folder: a source that accepts records, splits, merges and retention.

    Opening it reads nothing, so a missing log is reported by the first call that needs it. Many
    processes can read a shard, and one at a time can write to it.

    Args:
        root: the log's folder.
        clock: returns the event time of records without one, with a time zone.

    Examples:
        >>> log = LocalLog.create("visits-log", shards=2)
        >>> log.append("0", [b"one", b"two"]).end
        '2'
        >>> [str(listing.shard) for listing in log.list_shards()]
        ['0', '1']
    """

    def __init__(self, root: Path | str, *, clock: Callable[[], datetime] = utc_now) -> None:
        super().__init__(root)
        self._clock = clock

    @classmethod
    def create(
        cls,
        root: Path | str,
        shards: int,
        *,
        exist_ok: bool = False,
        clock: Callable[[], datetime] = utc_now,
    ) -> Self:
        """Create a log of `shards` shards, named "0", "1", …, which divide all hashes evenly.

        With `exist_ok`, an existing log in the folder is returned unchanged.

        Raises:
            LogExists: the folder has a log, and `exist_ok` is not set.
            LogCorrupt: the folder has a log without a catalog.
            UserMistake: the number is out of range, or the folder cannot be created.
        """
        if not 1 <= shards <= SHARDS_MAX:
            raise UserMistake(f"A log of {shards} shards cannot be created: use 1 to {SHARDS_MAX}.")
        log = cls(root, clock=clock)
        entries = [
            catalog.CatalogShard(ShardId(str(number)), (), begin, end)
            for number, (begin, end) in enumerate(even_ranges(shards))
        ]
        try:
            make_folder(log.root, exist_ok=True)
            with catalog.catalog_lock(log.root):
                if log.exists:
                    if exist_ok:
                        return log
                    raise LogExists(f"The folder {log.root} already has a log: use another folder.")
                catalog.refuse_remains(log.root)
                for entry in entries:
                    shard_folder(log.root, entry.shard).mkdir(parents=True, exist_ok=True)
                sync_folder(log.root / "shards")
                make_heads(log.root, (entry.shard for entry in entries))
                catalog.save_catalog(
                    log.root, catalog.Catalog(tuple(entries), log=uuid.uuid4().hex)
                )
        except OSError as error:
            raise UserMistake(f"No log can be created in {log.root}: {error.strerror}.") from None
        return log

    @classmethod
    def open(cls, root: Path | str, *, clock: Callable[[], datetime] = utc_now) -> Self:
        """Return the log in a folder; raise LogNotFound or LogCorrupt if it is unusable."""
        log = cls(root, clock=clock)
        catalog.load_catalog(log.root)
        return log

    @property
    def exists(self) -> bool:
        """True if the folder has a log."""
        return (self.root / catalog.CATALOG_FILE).exists()

    def list_shards(self) -> list[ShardListing]:
        """Return all shards of the log, in order of creation."""
        snapshot = catalog.load_catalog(self.root)
        return [
            ShardListing(
                shard=entry.shard,
                parents=entry.parents,
                hash_begin=entry.hash_begin,
                hash_end=entry.hash_end,
                read_only=entry.read_only,
                gone_parents=tuple(each for each in entry.parents if snapshot.removed(each)),
            )
            for entry in snapshot.shards
        ]

    def log_identity(self) -> str | None:
        """Return the id that the log was created with."""
        return catalog.load_catalog(self.root).log or None

    def bounds(self, shards: Sequence[ShardId]) -> dict[ShardId, ShardBounds]:
        """Return the bounds of shards from their heads."""
        # The catalog is read first: a shard listed as read-only already had its last append.
        snapshot = catalog.load_catalog(self.root)
        bounds: dict[ShardId, ShardBounds] = {}
        for shard in shards:
            folder = self._open(shard, snapshot)
            if folder is None:
                bounds[shard] = positions.removed_bounds(ORIGIN)
            else:
                begin, end = folder.extent()
                bounds[shard] = ShardBounds(str(begin), str(end), folder.finished, ORIGIN)
        return bounds

    def cursor_at(self, shard: ShardId, position: Position | datetime) -> str:
        """Return the cursor of the first record at or after a position, or the end."""
        folder = self._open(shard)
        if folder is None:
            return positions.GONE
        if isinstance(position, datetime):
            return str(folder.at_time(position))
        extent = folder.extent()
        return str(extent.begin if position is Position.BEGIN else extent.end)

    def times_at(self, cursors: Mapping[ShardId, str]) -> dict[ShardId, datetime]:
        """Return the event times of the records at these cursors; arrival times are not stored."""
        snapshot = catalog.load_catalog(self.root)
        return {
            shard: time
            for shard, cursor in cursors.items()
            if (folder := self._open(shard, snapshot)) is not None
            and (time := folder.time_at(cursor)) is not None
        }

    def plan(self, shard: ShardId, start: str, limits: Limits) -> PlannedRange:
        """Return the end of a batch; both limits are exact."""
        folder = self._open(shard)
        return (
            positions.removed_plan(shard, start) if folder is None else folder.plan(start, limits)
        )

    def divide(self, range_: ReadRange, parts: int) -> list[ReadRange]:
        """Divide a range by its offsets, which have no holes."""
        return positions.divide_offsets(range_, parts)

    def lag(self, shard: ShardId, cursor: str, bounds: ShardBounds) -> int | None:
        """Return the records from a cursor to the end; None if unknown in a removed shard."""
        if bounds.removed:
            return positions.removed_lag(cursor)
        return positions.offsets_left(shard, cursor, bounds)

    def spark_options(self) -> Mapping[str, str]:
        """Return the options of the reader in a Spark worker."""
        return {"source": SOURCE_NAME, "root": str(self.root)}

    def writer(self, shard: str, *, wait_s: float = 0.0) -> ShardWriter:
        """Return the only writer of a shard, a context manager; see `ShardWriter`."""
        entry = catalog.load_catalog(self.root).find(shard)
        return ShardWriter(self.root, entry.shard, clock=self._clock, wait_s=wait_s)

    def append(self, shard: str, records: Iterable[bytes | Record]) -> AppendedRange:
        """Append records to a shard, in order and durably.

        Raises:
            UnknownShard, ShardReadOnly, ShardBusy: the shard accepts no records now.
            RecordRefused, SourceUnavailable: see `ShardWriter.append`.
        """
        with self.writer(shard) as writer:
            return writer.append(records)

    def append_lines(
        self, *files: Path | str, progress: Callable[[int], None] = lambda _: None
    ) -> dict[ShardId, AppendedRange]:
        """Append each line of each file, without its line feed, to the writable shards.

        Lines of a file keep their order within each shard.

        Args:
            progress: called with the number of lines appended so far.

        Returns:
            The appended range of each shard that received lines.

        Raises:
            UserMistake: a file cannot be read; this is checked before the first append.
            RecordRefused: a line exceeds 64 MiB; the message counts the appended lines.
            ShardBusy: another process is writing to a shard.
        """
        ranges = append_lines(
            [Path(file) for file in files],
            catalog.load_catalog(self.root).writable,
            lambda entry: self.writer(entry.shard),
            progress,
        )
        return {entry.shard: range_ for entry, range_ in ranges.items()}

    def split(self, shard: str, at: str | None = None) -> tuple[ShardId, ShardId]:
        """Split a shard at a hash (32 hexadecimal digits), or in the middle.

        Raises:
            UnknownShard, ShardReadOnly, ShardBusy, ReshardingRefused: it cannot be split now.
        """
        low, high = reshard(self.root, [shard], self._closing_writer, split_children(at))
        return low.shard, high.shard

    def merge(self, first: str, second: str) -> ShardId:
        """Merge two shards whose hash ranges touch.

        Raises:
            UnknownShard, ShardReadOnly, ShardBusy, ReshardingRefused: they cannot be merged now.
        """
        if first == second:
            raise ReshardingRefused(f"Shard {first} cannot be merged with itself: name two shards.")
        (child,) = reshard(self.root, [first, second], self._closing_writer, merge_children)
        return child.shard

    def _closing_writer(self, shard: ShardId) -> ShardWriter:
        return self.writer(shard, wait_s=_RESHARD_WAIT_S)

    def retain(self, shard: str, before: datetime | str) -> str:
        """Remove the files with no record after a time or cursor; return the new first cursor."""
        entry = catalog.load_catalog(self.root).find(shard)
        return retain(ShardFolder(entry.shard, self.root), before)


class LocalLogOptions(BaseModel):
    """Options of a local log.

    Attributes:
        root: the log's folder; by default `logs/STREAM` in the home.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    root: Path | None = None


def _open(options: LocalLogOptions, place: StreamPlace) -> LocalLog:
    return LocalLog(options.root or place.folder)


KIND = SourceKind(LocalLogOptions, _open, reader_of)
