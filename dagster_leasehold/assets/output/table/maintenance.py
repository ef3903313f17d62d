"""Lists the files that a table names, for the removal of orphaned metadata and for vacuum.

A metadata file is an orphan once no snapshot names it: its snapshot has expired, it was merged, or
its publication failed. It is removed when it is old, and only under the publish lock:

1. Publisher A stages a snapshot, and freezes until the staged files are old.
2. The cleaner takes the lock, with a higher epoch, and removes the files.
3. A resumes, and its commit is refused because its epoch is over. Without the lock, the table would
   now name removed files.

The cleaner can also freeze between any two steps, while others publish for days:

1. It lists the old files, then reads the table, then checks that it still holds the lock.
2. If it does, all files that others have staged are newer than the list.
3. If it does not, it removes no files, because its state of the table may be older than the list.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from datetime import timedelta
from typing import TYPE_CHECKING

from dagster_leasehold.assets.output.table.catalogs import OpenTable
from dagster_leasehold.assets.output.table.marks import files_root, mark_of
from dagster_leasehold.assets.output.table.metadata_files import PlaceIO
from dagster_leasehold.assets.output.table.snapshot_contents import cursor_files
from dagster_leasehold.assets.output.table.staging import METADATA_FOLDER, ROUTES_FOLDER
from dagster_leasehold.assets.places.place import OutputPlace

if TYPE_CHECKING:
    from pyiceberg.manifest import DataFile, ManifestFile


def old_metadata(place: OutputPlace, older_than: timedelta) -> list[str]:
    """Return the metadata files older than an age, by the clock of the disk or store."""
    before_ns = place.now_ns() - int(older_than.total_seconds() * 1e9)
    return [
        entry.path
        for folder in (METADATA_FOLDER, ROUTES_FOLDER)
        for entry in place.entries(folder)
        if not entry.folder and entry.modified_ns < before_ns
    ]


def orphaned_files(io: PlaceIO, tables: Iterable[OpenTable], files: Collection[str]) -> list[str]:
    """Return the metadata files that no snapshot of these tables names."""
    named = {
        location.removeprefix(f"{io.location}/")
        for table in tables
        for location in _metadata_files(io, table)
    }
    return [path for path in files if path not in named]


def data_files(io: PlaceIO, table: OpenTable) -> set[str]:
    """Return the data files that any snapshot of the table names, by their ledger paths."""
    root = f"{files_root(table.metadata)}/"
    return {
        entry.data_file.file_path.removeprefix(root)
        for manifest in _manifests(io, table)
        for entry in manifest.fetch_manifest_entry(io)
    }


def current_files(io: PlaceIO, table: OpenTable) -> Iterator[tuple[str, int]]:
    """Yield the ledger path and the records of each file of the newest snapshot."""
    root = f"{files_root(table.metadata)}/"
    for file in current_entries(io, table):
        yield file.file_path.removeprefix(root), file.record_count


def current_entries(io: PlaceIO, table: OpenTable) -> Iterator[DataFile]:
    """Yield the manifest entry of each file of the newest snapshot."""
    current = table.metadata.current_snapshot()
    for manifest in current.manifests(io) if current else ():
        for entry in manifest.fetch_manifest_entry(io):
            yield entry.data_file


def _metadata_files(io: PlaceIO, table: OpenTable) -> Iterator[str]:
    yield table.at
    if (mark := mark_of(table.metadata)) and mark.states:
        yield mark.states
    yield from cursor_files(table.metadata)
    for version in table.metadata.metadata_log:
        yield version.metadata_file
    for snapshot in table.metadata.snapshots:
        yield snapshot.manifest_list
    for manifest in _manifests(io, table):
        yield manifest.manifest_path


def _manifests(io: PlaceIO, table: OpenTable) -> list[ManifestFile]:
    snapshots = table.metadata.snapshots
    manifests = (manifest for snapshot in snapshots for manifest in snapshot.manifests(io))
    return list({manifest.manifest_path: manifest for manifest in manifests}.values())
