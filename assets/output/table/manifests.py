"""The manifests of a snapshot that is being made: written, thinned out, and merged.

A manifest is of one spec. What a snapshot adds goes into one new manifest of each spec. A manifest
with a file that is taken out is written anew. Small ones are merged like the runs of a
log-structured merge tree: sixteen of about one size become one of the next size, until a manifest
has enough files. So a file's entry is written a few times however old the table grows, a plan reads
few manifests, and no publication writes many entries.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from pyiceberg.io import FileIO
    from pyiceberg.manifest import DataFile, ManifestEntry, ManifestFile
    from pyiceberg.table.metadata import TableMetadata

MERGED_AT_ONCE = 16
FILES_MAX = 2_048
"""The most files that a merged manifest has; one with half as many is merged no more."""
FORMAT = 2
COMPRESSION: Literal["deflate"] = "deflate"


@dataclass(slots=True)
class Manifests:
    """The manifests of one snapshot.

    Attributes:
        io: reads and writes them.
        metadata: of the table, with its newest schema.
        snapshot: the id of the snapshot that is being made.
        new_path: gives a location that was never used.
        written: the locations of the manifests that were written.
        removed: the entries of files that were taken out.
        missing: the locations of files that were to be taken out, and are in no manifest.
    """

    io: FileIO
    metadata: TableMetadata
    snapshot: int
    new_path: Callable[[], str]
    written: list[str] = field(default_factory=list[str])
    removed: list[DataFile] = field(default_factory=list["DataFile"])
    missing: set[str] = field(default_factory=set[str])

    def adding(self, files: Iterable[DataFile]) -> list[ManifestFile]:
        """Return new manifests of files that are added, one of each spec."""
        from pyiceberg.manifest import ManifestEntry, ManifestEntryStatus

        by_spec: dict[int, list[ManifestEntry]] = {}
        for file in files:
            entry = ManifestEntry.from_args(
                status=ManifestEntryStatus.ADDED, snapshot_id=self.snapshot, data_file=file
            )
            by_spec.setdefault(file.spec_id, []).append(entry)
        return [self._write(spec, entries) for spec, entries in sorted(by_spec.items())]

    def without(
        self, manifests: Sequence[ManifestFile], locations: Iterable[str], *, oldest_first: bool
    ) -> list[ManifestFile]:
        """Return manifests in which files at these locations are marked as removed.

        They are looked for manifest by manifest, until all are found.
        """
        left = set(locations)
        result = list(manifests)
        order = range(len(result)) if oldest_first else range(len(result) - 1, -1, -1)
        for at in order:
            if not left:
                break
            if _deletes(result[at]):
                continue
            entries = result[at].fetch_manifest_entry(self.io)
            if left.isdisjoint(entry.data_file.file_path for entry in entries):
                continue
            result[at] = self._write(result[at].partition_spec_id, self._thinned(entries, left))
        self.missing = left
        return result

    def merged(self, manifests: Sequence[ManifestFile]) -> list[ManifestFile]:
        """Return manifests of which many small ones of a size have become a larger one."""
        sizes: dict[tuple[int, int], list[ManifestFile]] = {}
        result: list[ManifestFile] = []
        for manifest in manifests:
            files = _live_files(manifest)
            new = manifest.added_snapshot_id == self.snapshot
            if new or 2 * files >= FILES_MAX or _deletes(manifest):
                result.append(manifest)
            elif files:
                size = next(n for n in itertools.count() if files < MERGED_AT_ONCE ** (n + 1))
                sizes.setdefault((manifest.partition_spec_id, size), []).append(manifest)
        for (spec, _), group in sizes.items():
            for few in _chunks(group):
                result += [self._write(spec, self._live(few))] if _enough(few) else few
        return result

    def _live(self, manifests: Iterable[ManifestFile]) -> Iterator[ManifestEntry]:
        for manifest in manifests:
            for entry in manifest.fetch_manifest_entry(self.io):
                yield _existing(entry)

    def _thinned(self, entries: Iterable[ManifestEntry], left: set[str]) -> Iterator[ManifestEntry]:
        from pyiceberg.manifest import ManifestEntryStatus

        for entry in entries:
            location = entry.data_file.file_path
            if location not in left:
                yield _existing(entry)
                continue
            left.remove(location)
            self.removed.append(entry.data_file)
            entry.status = ManifestEntryStatus.DELETED
            entry.snapshot_id = self.snapshot
            yield entry

    def _write(self, spec: int, entries: Iterable[ManifestEntry]) -> ManifestFile:
        from pyiceberg.manifest import write_manifest

        path = self.new_path()
        self.written.append(path)
        output, specs = self.io.new_output(path), self.metadata.specs()
        with write_manifest(
            FORMAT, specs[spec], self.metadata.schema(), output, self.snapshot, COMPRESSION
        ) as writer:
            # PyIceberg makes a block of each entry; compressed together they take a seventh.
            avro: Any = writer._writer  # pyright: ignore[reportPrivateUsage]
            block: list[ManifestEntry] = []
            write_block, avro.write_block = avro.write_block, block.extend
            for entry in entries:
                writer.add_entry(entry)
            write_block(block)
        return writer.to_manifest_file()


def _deletes(manifest: ManifestFile) -> bool:
    """Return True for a manifest of somebody else's delete files, which stay as they are."""
    from pyiceberg.manifest import ManifestContent

    return manifest.content != ManifestContent.DATA


def _chunks(manifests: Sequence[ManifestFile]) -> Iterator[list[ManifestFile]]:
    """Yield manifests in groups that one manifest may hold, the oldest first."""
    group: list[ManifestFile] = []
    for manifest in manifests:
        files = sum(_live_files(each) for each in (*group, manifest))
        if files > FILES_MAX or len(group) == MERGED_AT_ONCE:
            yield group
            group = []
        group.append(manifest)
    yield group


def _enough(manifests: Sequence[ManifestFile]) -> bool:
    """Return True for a group that is worth being merged."""
    files = sum(_live_files(each) for each in manifests)
    return len(manifests) == MERGED_AT_ONCE or (len(manifests) > 1 and 2 * files >= FILES_MAX)


def _live_files(manifest: ManifestFile) -> int:
    return (manifest.added_files_count or 0) + (manifest.existing_files_count or 0)


def _existing(entry: ManifestEntry) -> ManifestEntry:
    from pyiceberg.manifest import ManifestEntryStatus

    entry.status = ManifestEntryStatus.EXISTING
    return entry
