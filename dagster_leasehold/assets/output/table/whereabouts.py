"""Finds the batch, run, files and snapshot of a record, and the cursors of a snapshot."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any

from dagster_leasehold.assets.errors import OutputUnreadable
from dagster_leasehold.assets.output.attempts import reading
from dagster_leasehold.assets.output.expired_output import expired_output, output_begins
from dagster_leasehold.assets.output.table.group_table import find_table
from dagster_leasehold.assets.output.table.snapshot_contents import (
    SnapshotContents,
    contents_of,
    own_snapshot,
    published_snapshots,
)
from dagster_leasehold.assets.output.units import unit_files, units_of
from dagster_leasehold.assets.places.place import OutputPlace
from dagster_leasehold.assets.table_settings import CatalogSettings
from dagster_leasehold.lease_store.errors import shown
from dagster_leasehold.lease_store.identifiers import GroupKey, ShardId
from dagster_leasehold.lease_store.ledger_rows import Batch
from dagster_leasehold.lease_store.rules.cursors import is_before, place_of
from dagster_leasehold.lease_store.rules.withdrawal import first_after
from dagster_leasehold.lease_store.store import LedgerAndRewrites

if TYPE_CHECKING:
    from dagster_leasehold.assets.output.table.catalogs import OpenTable
    from dagster_leasehold.assets.output.table.metadata_files import PlaceIO

CURSOR_COLUMN = "cursor"


@dataclass(frozen=True, slots=True)
class RecordPlace:
    """The place of one record in committed output.

    Attributes:
        batch: the number of its batch. If the ledger has one row for several old batches, the
            number of the first one.
        last_batch: the number of the last batch in that row.
        start: the cursor where the batch begins.
        end: the cursor where the batch ends, exclusive.
        run: the run that committed the batch.
        committed_at: the time of the commit.
        files: the files of the batch; only the file with the record, if several files have the
            column `cursor`. The transform may have removed the record.
        snapshot_id: the oldest snapshot that has the batch; None if it is not published yet.
        published_at: the time of that snapshot.
        publication: the id of that publication; empty if the batch is not published yet.

    Examples:
        >>> RecordPlace(ShardId("0"), "5", 1, 1, "4", "8", "run", None, ()).snapshot_id is None
        True
    """

    shard: ShardId
    cursor: str
    batch: int
    last_batch: int
    start: str
    end: str
    run: str
    committed_at: datetime | None
    files: tuple[str, ...]
    snapshot_id: int | None = None
    published_at: datetime | None = None
    publication: str = ""


@dataclass(frozen=True, slots=True)
class Whereabouts:
    """Looks up records and snapshots of one group.

    Attributes:
        place: the folder of the group's output.
    """

    store: LedgerAndRewrites
    key: GroupKey
    place: OutputPlace
    catalog: CatalogSettings

    def contents(self, snapshot_id: int | None = None) -> SnapshotContents:
        """Return the contents of a snapshot, or of the newest one.

        Raises:
            OutputUnreadable: there is no such snapshot, or it does not have its cursors.
            TableUnavailable: the table or its catalog cannot be reached.
        """
        published = self._table()
        metadata = None if published is None else published[0].metadata
        snapshot = None
        if metadata is not None:
            named = metadata.current_snapshot()
            if snapshot_id is not None:
                named = metadata.snapshot_by_id(snapshot_id)
            snapshot = own_snapshot(metadata, named)
        if published is None or snapshot is None:
            which = "snapshot" if snapshot_id is None else f"snapshot {snapshot_id}"
            raise OutputUnreadable(
                f"The table of {self.key} has no {which} that a stream published: publish with "
                f"`leasehold table create {self.key.stream}`, or name another snapshot."
            )
        return contents_of(published[1], snapshot)

    def record(self, shard: ShardId, cursor: str) -> RecordPlace:
        """Return the place of the record at a cursor.

        Raises:
            OutputUnreadable: the record is not in committed output; the message has the reason.
            TableUnavailable: the table or its catalog cannot be reached.
        """
        batch = self._batch(shard, cursor)
        numbers = range(batch.sequence, batch.sequence + 1)
        unit = next(units_of(self.store, self.key, shard, numbers), (batch,))
        paths = [file.path for kind in (False, True) for file in unit_files(unit, quarantine=kind)]
        record = RecordPlace(
            shard,
            cursor,
            batch.sequence,
            batch.last,
            batch.start,
            batch.end,
            batch.run,
            batch.committed_at,
            tuple(_with_cursor(self.place, paths, cursor)),
        )
        return self._published(record)

    def _batch(self, shard: ShardId, cursor: str) -> Batch:
        if place_of(cursor) is None:
            raise OutputUnreadable(
                f"{shown(cursor)} is not a cursor: `leasehold checkpoint get {self.key.stream}` "
                "shows the form of this stream's cursors."
            )
        border = first_after(partial(self.store.each_batch, self.key, shard), cursor)
        if border is None:
            raise OutputUnreadable(
                f"The record at {cursor} of shard {shard} of {self.key} is not committed yet."
            )
        rest = range(border.sequence, border.last + 2)
        for batch in self.store.each_batch(self.key, shard, numbers=rest):
            # A batch without records ends where it starts.
            if is_before(cursor, batch.end) and not is_before(cursor, batch.start):
                return batch
        for gap in self.store.gaps(self.key, shard):
            if is_before(cursor, gap.end) and not is_before(cursor, gap.start):
                raise OutputUnreadable(
                    f"The record at {cursor} of shard {shard} of {self.key} was never read, "
                    f"because the source had removed {gap.start} to {gap.end} ({gap.reason})."
                )
        expired = expired_output(self.store, self.key, [shard]).get(shard)
        if expired is not None and is_before(cursor, expired.begin):
            raise OutputUnreadable(output_begins(self.key, shard, expired))
        raise OutputUnreadable(
            f"No batch of {self.key} has the record at {cursor} of shard {shard}: a forced "
            "checkpoint skipped it, or consumption began after it."
        )

    def _published(self, record: RecordPlace) -> RecordPlace:
        """Add the oldest snapshot that has the record."""
        if (published := self._table()) is None:
            return record
        (table, io) = published
        for snapshot in published_snapshots(table.metadata):
            try:
                contents = contents_of(io, snapshot)
            except OutputUnreadable:
                break
            if not is_before(record.cursor, contents.cursors.get(record.shard, "start")):
                break
            at = datetime.fromtimestamp(snapshot.timestamp_ms / 1_000, UTC)
            record = replace(
                record,
                snapshot_id=contents.snapshot_id,
                published_at=at,
                publication=contents.publication,
            )
        return record

    def _table(self) -> tuple[OpenTable, PlaceIO] | None:
        return find_table(self.store, self.key, self.catalog, self.place)


def _with_cursor(place: OutputPlace, paths: Sequence[str], cursor: str) -> Iterable[str]:
    """Return the files with a record; all files if the record is not found."""
    if len(paths) < 2:
        return paths
    return [path for path in paths if _has_cursor(place / path, cursor)] or paths


def _has_cursor(path: OutputPlace, cursor: str) -> bool:
    import pyarrow.compute

    pc: Any = pyarrow.compute

    with reading(path), path.parquet() as file:
        if CURSOR_COLUMN not in file.schema_arrow.names:
            return False
        batches = file.iter_batches(columns=[CURSOR_COLUMN])
        return any(pc.any(pc.equal(each.column(0), cursor)).as_py() for each in batches)
