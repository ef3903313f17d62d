"""The local log: a sharded log in a folder, the embedded default among the sources."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Self

from pydantic import BaseModel, ConfigDict

from dagster_leasehold.lease_store.durable_files import make_folder, sync_folder
from dagster_leasehold.lease_store.errors import LogExists, ReshardingRefused, UserMistake
from dagster_leasehold.lease_store.identifiers import ShardId
from dagster_leasehold.lease_store.shard_rows import ShardListing
from dagster_leasehold.shard_sources.local_log.catalog import (
    CATALOG_FILE,
    Catalog,
    CatalogShard,
    catalog_lock,
    load_catalog,
    refuse_remains,
    save_catalog,
)
from dagster_leasehold.shard_sources.local_log.format import Record
from dagster_leasehold.shard_sources.local_log.hash_ranges import even_ranges
from dagster_leasehold.shard_sources.local_log.heads import Head, make_heads
from dagster_leasehold.shard_sources.local_log.lines import Spread, append_lines
from dagster_leasehold.shard_sources.local_log.resharding import (
    merge_children,
    reshard,
    split_children,
)
from dagster_leasehold.shard_sources.local_log.retention import retain
from dagster_leasehold.shard_sources.local_log.segments import shard_folder
from dagster_leasehold.shard_sources.local_log.shard_reading import ShardFolder
from dagster_leasehold.shard_sources.local_log.writing import (
    SEGMENT_BYTES_MAX,
    AppendedRange,
    ShardWriter,
)
from dagster_leasehold.shard_sources.positions import parse_offset
from dagster_leasehold.shard_sources.registry import SourceKind, StreamPlace
from dagster_leasehold.shard_sources.removed_shards import (
    GONE,
    removed_bounds,
    removed_error,
    removed_lag,
    removed_plan,
)
from dagster_leasehold.shard_sources.source import (
    Limits,
    PlannedRange,
    Position,
    ReadRange,
    ShardBounds,
    ShardReader,
)

if TYPE_CHECKING:
    import pyarrow as pa

SOURCE_NAME = "local_log"
SHARDS_MAX = 100_000
ORIGIN = "0"
_RESHARD_WAIT_S = 30.0


def utc_now() -> datetime:
    """The wall clock, which gives records their event time and decides nothing."""
    return datetime.now(UTC)


class LocalLogReader:
    """Reads ranges of a local log; what a Spark worker needs of it, picklable.

    Args:
        root: the log's folder.
    """

    def __init__(self, root: Path | str) -> None:
        self.root = Path(root).absolute()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self.root)!r})"

    def _folder(self, shard: ShardId) -> ShardFolder:
        return ShardFolder(shard, self.root, load_catalog(self.root).heads)

    def read(self, range_: ReadRange) -> Iterator[pa.RecordBatch]:
        """The records of a range, in order, in batches of `record_schema()`.

        Raises:
            LogNotFound, UnknownShard: there is no such log or shard.
            CursorExpired: retention has removed the start of the range.
            CursorInvalid: the range is not within the shard.
            LogCorrupt: stored bytes are damaged.
        """
        catalog = load_catalog(self.root)
        if catalog.removed(range_.shard):
            if range_.start == range_.end == GONE:
                return
            raise removed_error(range_.shard)
        yield from self._folder(catalog.find(range_.shard).shard).read(range_)


class LocalLog(LocalLogReader):
    """A sharded log in a folder: a source that can be written to, split, merged and retained.

    Opening it touches nothing: a folder without a log is reported by the first call that needs
    it. Many processes may read at once; each shard takes one writer at a time.

    Args:
        root: the log's folder.
        clock: gives the event time of records that have none; returns an aware time.
        segment_bytes_max: a segment file is closed when it has grown to this size.
    """

    def __init__(
        self,
        root: Path | str,
        *,
        clock: Callable[[], datetime] = utc_now,
        segment_bytes_max: int = SEGMENT_BYTES_MAX,
    ) -> None:
        super().__init__(root)
        self._clock = clock
        self._segment_bytes_max = segment_bytes_max

    @classmethod
    def create(
        cls,
        root: Path | str,
        shards: int,
        *,
        clock: Callable[[], datetime] = utc_now,
        segment_bytes_max: int = SEGMENT_BYTES_MAX,
    ) -> Self:
        """A new log of `shards` shards, named "0", "1", …, which divide all hashes evenly.

        Raises:
            LogExists: the folder holds a log already; it is left as it is.
            LogCorrupt: it holds a log whose catalog is missing; it is left as it is.
            UserMistake: the number is out of range, or the folder cannot be made.
        """
        if not 1 <= shards <= SHARDS_MAX:
            raise UserMistake(f"A log of {shards} shards cannot be made: use 1 to {SHARDS_MAX}.")
        log = cls(root, clock=clock, segment_bytes_max=segment_bytes_max)
        entries = [
            CatalogShard(ShardId(str(number)), (), begin, end)
            for number, (begin, end) in enumerate(even_ranges(shards))
        ]
        try:
            make_folder(log.root, exist_ok=True)
            with catalog_lock(log.root):
                if log.exists:
                    raise LogExists(f"There is a log in {log.root} already: use another folder.")
                refuse_remains(log.root)
                for entry in entries:
                    shard_folder(log.root, entry.shard).mkdir(parents=True, exist_ok=True)
                sync_folder(log.root / "shards")
                make_heads(log.root, (entry.shard for entry in entries), Head())
                save_catalog(log.root, Catalog(tuple(entries)))
        except OSError as error:
            raise UserMistake(f"No log can be made in {log.root}: {error.strerror}.") from None
        return log

    @classmethod
    def open(cls, root: Path | str, *, clock: Callable[[], datetime] = utc_now) -> Self:
        """The log in a folder.

        Raises:
            LogNotFound: there is none.
            LogCorrupt: its catalog is damaged.
        """
        log = cls(root, clock=clock)
        load_catalog(log.root)
        return log

    @property
    def exists(self) -> bool:
        """Whether the folder holds a log."""
        return (self.root / CATALOG_FILE).exists()

    # --- Writing ---

    def writer(self, shard: str, *, durable: bool = True, wait_s: float = 0.0) -> ShardWriter:
        """The one writer of a shard, to be entered with `with`.

        Args:
            shard: the shard to append to.
            durable: wait for the disk at each append; see `ShardWriter`.
            wait_s: how long to wait for another writer to finish, in seconds.
        """
        return ShardWriter(
            self.root,
            load_catalog(self.root).find(shard).shard,
            clock=self._clock,
            durable=durable,
            segment_bytes_max=self._segment_bytes_max,
            wait_s=wait_s,
        )

    def append(self, shard: str, records: Iterable[bytes | Record]) -> AppendedRange:
        """Append records to a shard in order; they are on the disk when this returns.

        Raises:
            UnknownShard, ShardReadOnly, ShardBusy: the shard takes no records now.
            RecordRefused: a record is too large or of another type.
            SourceUnavailable: the disk did not take them.
        """
        with self.writer(shard) as writer:
            return writer.append(records)

    def append_lines(
        self,
        *files: Path | str,
        spread: Spread = Spread.ROUND_ROBIN,
        progress: Callable[[int], None] = lambda _: None,
    ) -> dict[ShardId, AppendedRange]:
        """Append each line of each file, without its line feed, to the writable shards.

        Lines of a file keep their order within each shard. `progress` is told the number of lines
        appended so far. Returned is what was appended to each shard that got any line.

        Raises:
            UserMistake: a file cannot be read; nothing is appended when that shows at the start.
            RecordRefused: a line has more than 64 MiB; the message tells what was appended.
            ShardBusy: another process is writing to a shard.
        """
        ranges = append_lines(
            [Path(file) for file in files],
            load_catalog(self.root).writable,
            lambda entry: self.writer(entry.shard),
            spread,
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
        """Remove whole segments whose records all lie before a time or a cursor.

        Returns:
            The cursor at which the shard now begins.

        Raises:
            CursorInvalid: the cursor is not one of the shard.
        """
        entry = load_catalog(self.root).find(shard)
        return retain(self._folder(entry.shard), before, self._retaining_writer)

    def _retaining_writer(self, shard: ShardId) -> ShardWriter:
        return ShardWriter(self.root, shard, clock=self._clock, closing=True)

    # --- The contract of a source ---

    def list_shards(self) -> list[ShardListing]:
        """All shards of the log, in order of creation.

        Raises:
            LogNotFound: there is no log.
            LogCorrupt: its catalog is damaged.
        """
        catalog = load_catalog(self.root)
        return [
            ShardListing(
                shard=entry.shard,
                parents=entry.parents,
                hash_begin=entry.hash_begin,
                hash_end=entry.hash_end,
                read_only=entry.read_only,
                gone_parents=tuple(each for each in entry.parents if catalog.removed(each)),
            )
            for entry in catalog.shards
        ]

    def bounds(self, shards: Sequence[ShardId]) -> dict[ShardId, ShardBounds]:
        """The bounds of these shards, from the last index entry of each."""
        # The catalog first: a shard that it calls read-only had its last append before that.
        catalog = load_catalog(self.root)
        found: dict[ShardId, ShardBounds] = {}
        for shard in shards:
            if catalog.removed(shard):
                found[shard] = removed_bounds(ORIGIN)
                continue
            finished = catalog.find(shard).read_only
            extent = self._folder(shard).extent()
            found[shard] = ShardBounds(str(extent.begin), str(extent.end), finished, ORIGIN)
        return found

    def cursor_at(self, shard: ShardId, position: Position | datetime) -> str:
        """The cursor of the first record at or after a position; the end if there is none."""
        catalog = load_catalog(self.root)
        if catalog.removed(shard):
            return GONE
        folder = self._folder(catalog.find(shard).shard)
        if isinstance(position, datetime):
            return str(folder.at_time(position))
        extent = folder.extent()
        return str(extent.begin if position is Position.BEGIN else extent.end)

    def plan(self, shard: ShardId, start: str, limits: Limits) -> PlannedRange:
        """Where a batch that starts at `start` ends: exact in records and bytes, at least one.

        Raises:
            CursorExpired: retention has removed `start`.
            CursorInvalid: `start` is not a cursor of the shard.
        """
        catalog = load_catalog(self.root)
        if catalog.removed(shard):
            return removed_plan(shard, start)
        entry = catalog.find(shard)
        return self._folder(entry.shard).plan(start, limits, finished=entry.read_only)

    def lag(self, shard: ShardId, cursor: str, bounds: ShardBounds) -> int | None:
        """Records between a cursor and the end; None where a removed shard may have had some.

        Raises:
            CursorInvalid: it is not a cursor.
        """
        if bounds.removed:
            return removed_lag(cursor)
        return max(0, int(bounds.end) - max(parse_offset(shard, cursor), int(bounds.begin)))

    def spark_options(self) -> Mapping[str, str]:
        """What a Spark worker needs to build the reader again."""
        return {"source": SOURCE_NAME, "root": str(self.root)}


class LocalLogOptions(BaseModel):
    """Options of a local log.

    Attributes:
        root: the log's folder; by default `logs/STREAM` in the home.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    root: Path | None = None


def _open(options: LocalLogOptions, place: StreamPlace) -> LocalLog:
    """The log; one that does not exist yet is reported by the first call that needs it."""
    return LocalLog(options.root or place.folder)


def _reader(options: Mapping[str, str]) -> ShardReader:
    return LocalLogReader(options["root"])


KIND = SourceKind(LocalLogOptions, _open, _reader)
