"""Writes, rewrites and merges the manifests of a new snapshot.

A manifest has one spec. The added files of a snapshot go into one new manifest per spec. A manifest
with a removed file is rewritten.

Merges keep the entries of a shard together, so that a reader needs only the few manifests whose
bounds in the manifest list include its shards. Manifests have levels, as in a log-structured merge
tree. New manifests have level 0. When `OVERLAP_MAX` manifests of a level may have files of the same
shard, they are merged, sorted by shard, and split into manifests of the next level. Each of these
covers fewer shards; a manifest with a single shard grows instead. So the number of rewrites of an
entry is logarithmic in the number of publications, few manifests of each level contain a given
shard, and no publication writes many entries.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from dagster_leasehold.assets.output.table.schemas import shard_field, shard_index
from dagster_leasehold.lease_store.identifiers import ShardId

if TYPE_CHECKING:
    from pyiceberg.io import FileIO
    from pyiceberg.manifest import DataFile, ManifestEntry, ManifestFile
    from pyiceberg.partitioning import PartitionSpec
    from pyiceberg.table.metadata import TableMetadata

OVERLAP_MAX = 4
"""The number of manifests of a level with files of one shard that triggers a merge."""
FILES_MAX = 2_048
"""The most files in a merged manifest; a manifest of one shard with half as many is final."""
PIECE_MIN = 128
"""The smallest number of files after which a merge starts another manifest for the next shards."""
PIECES = 400
"""The approximate target for the number of manifests, which each publication lists in a file."""
MERGED_MAX = 2_048
"""The most entries that the merges of one publication write, except in a single larger merge."""
UNMOVABLE = 1_000
"""The level of manifests with entries of another writer, whose shard is unknown."""
FORMAT = 2
COMPRESSION: Literal["deflate"] = "deflate"
_PARTITION = 3
"""The index of the partition in PyIceberg's record of a file."""
_LEVEL = re.compile(r"-l(\d+)\.avro")
_HIGHEST = b"\xff" * 8
"""Greater than the bytes of any text."""

Group = tuple[int, int]
"""A spec, and a level."""


def level_suffix(level: int) -> str:
    """Return the suffix of the name of a manifest of a level."""
    return f"-l{level}.avro"


@dataclass(slots=True)
class Manifests:
    """The manifests of one new snapshot.

    Attributes:
        specs: the specs for files, in order of preference.
        snapshot: the id of the new snapshot.
        new_path: returns a location that was never used, for a manifest of a level.
        removed: the entries of removed files.
        missing: the locations of files to remove that are in no manifest.
    """

    io: FileIO
    metadata: TableMetadata
    specs: Sequence[PartitionSpec]
    snapshot: int
    new_path: Callable[[int], str]
    written: list[str] = field(default_factory=list[str])
    removed: list[DataFile] = field(default_factory=list["DataFile"])
    missing: set[str] = field(default_factory=set[str])
    _shard_indexes: dict[int, int | None] = field(default_factory=dict[int, "int | None"])

    def adding(self, files: Iterable[DataFile]) -> list[ManifestFile]:
        """Return new manifests of added files, one per spec."""
        from pyiceberg.manifest import ManifestEntry, ManifestEntryStatus

        by_spec: dict[int, list[ManifestEntry]] = {}
        for file in files:
            entry = ManifestEntry.from_args(
                status=ManifestEntryStatus.ADDED, snapshot_id=self.snapshot, data_file=file
            )
            by_spec.setdefault(file.spec_id, []).append(entry)
        return [self._write(spec, 0, entries) for spec, entries in sorted(by_spec.items())]

    def without(
        self,
        manifests: Sequence[ManifestFile],
        locations: Mapping[str, ShardId | None],
        *,
        oldest_first: bool,
    ) -> list[ManifestFile]:
        """Mark the files at these locations as removed in their manifests."""
        remaining = dict(locations)
        result = list(manifests)
        order = range(len(result)) if oldest_first else range(len(result) - 1, -1, -1)
        for index in order:
            if not remaining:
                break
            manifest = result[index]
            bounds = self._bounds(manifest)
            if _deletes(manifest) or not any(_within(each, bounds) for each in remaining.values()):
                continue
            entries = manifest.fetch_manifest_entry(self.io)
            if remaining.keys().isdisjoint(entry.data_file.file_path for entry in entries):
                continue
            spec, level = _group(manifest)
            result[index] = self._write(spec, level, self._marked(entries, remaining))
        self.missing = set(remaining)
        return result

    def merged(self, manifests: Sequence[ManifestFile]) -> list[ManifestFile]:
        """Merge manifests where due, and move old ones to the current specs."""
        groups: dict[Group, list[ManifestFile]] = {}
        result: list[ManifestFile] = []
        for manifest in manifests:
            if manifest.added_snapshot_id == self.snapshot or _deletes(manifest):
                result.append(manifest)
            elif _live_files(manifest):
                groups.setdefault(_group(manifest), []).append(manifest)
        piece = self._piece(manifests)
        written = 0
        order = sorted(groups, key=lambda group: (self._is_moved(group[0]), group[1], group[0]))
        for spec, level in order:
            members = groups[spec, level]
            merged: set[str] = set()
            for group in self._due((spec, level), members):
                files = sum(map(_live_files, group))
                if written and written + files > MERGED_MAX:
                    break
                written += files
                merged |= {each.manifest_path for each in group}
                result += self._merge(spec, level + 1, group, piece)
            result += [each for each in members if each.manifest_path not in merged]
        return result

    def _due(self, group: Group, members: list[ManifestFile]) -> Iterator[list[ManifestFile]]:
        """Yield groups of manifests of one level to merge."""
        spec, level = group
        if self._is_moved(spec):
            yield from ([each] for each in members if level != UNMOVABLE)
            return
        active: list[tuple[bytes, ManifestFile]] = []
        for (lowest, highest), manifest in self._by_shard(members):
            active = [each for each in active if each[0] >= lowest]
            active.append((highest, manifest))
            if len(active) == OVERLAP_MAX:
                overlap = [each for _, each in active]
                yield sorted(overlap, key=lambda each: each.min_sequence_number or 0)
                active = []

    def _by_shard(
        self, members: Iterable[ManifestFile]
    ) -> list[tuple[tuple[bytes, bytes], ManifestFile]]:
        """Return the manifests that can be merged, each with its range of shards.

        A small manifest gets the range of all shards. Otherwise publications with files of a few
        shards would lead to one manifest per shard.
        """
        spans: list[tuple[tuple[bytes, bytes], ManifestFile]] = []
        for manifest in members:
            files, bounds = _live_files(manifest), self._bounds(manifest)
            if 2 * files >= FILES_MAX and (bounds is None or bounds[0] == bounds[1]):
                continue
            small = bounds is None or 4 * files < PIECE_MIN
            spans.append(((b"", _HIGHEST) if small or bounds is None else bounds, manifest))
        return sorted(spans, key=lambda span: span[0])

    def _piece(self, manifests: Iterable[ManifestFile]) -> int:
        """Return the number of files after which a merge starts another manifest."""
        files = sum(map(_live_files, manifests))
        return max(PIECE_MIN, min(FILES_MAX, files // PIECES))

    def _merge(
        self, spec: int, level: int, manifests: Sequence[ManifestFile], piece: int
    ) -> list[ManifestFile]:
        """Write new manifests with all entries, sorted by shard if the spec has the shard."""
        entries = [entry for each in manifests for entry in each.fetch_manifest_entry(self.io)]
        by_spec: dict[int, list[ManifestEntry]] = {}
        for entry in entries:
            by_spec.setdefault(self._moved(spec, entry), []).append(_existing(entry))
        return [
            self._write(own, UNMOVABLE if self._is_moved(own) else level, chunk)
            for own, members in sorted(by_spec.items())
            for chunk in self._pieces(own, members, piece)
        ]

    def _pieces(
        self, spec: int, entries: list[ManifestEntry], piece: int
    ) -> Iterator[list[ManifestEntry]]:
        index = self._shard_index(spec)
        if index is None:
            yield from _chunks(entries)
            return

        def shard(entry: ManifestEntry) -> str:
            return str(entry.data_file.partition[index])

        chunk: list[ManifestEntry] = []
        for _, own in itertools.groupby(sorted(entries, key=shard), shard):
            *full, last = _chunks(list(own))
            if chunk and (full or len(chunk) + len(last) > piece):
                yield chunk
                chunk = []
            yield from full
            chunk += last
        yield chunk

    def _is_moved(self, spec: int) -> bool:
        """Return True if a spec lacks the shard while the current specs have it."""
        if not self.specs or self._shard_index(spec) is not None:
            return False
        return self._shard_index(self.specs[-1].spec_id) is not None

    def _moved(self, spec: int, entry: ManifestEntry) -> int:
        """Move an entry to the first current spec that fits it; return its spec.

        The shard comes from its bounds, and the other values from its old spec.
        """
        from pyiceberg.typedef import Record

        shard = shard_field(self.metadata.schema())
        file = entry.data_file
        lowest = (file.lower_bounds or {}).get(shard.field_id) if shard else None
        highest = (file.upper_bounds or {}).get(shard.field_id) if shard else None
        if not self._is_moved(spec) or lowest is None or lowest != highest or shard is None:
            return spec
        values: dict[int, object] = {
            part.field_id: file.partition[index]
            for index, part in enumerate(self.metadata.specs()[spec].fields)
        }
        for own in self.specs:
            index = self._shard_index(own.spec_id)
            if index is None:
                continue
            values[own.fields[index].field_id] = lowest.decode()
            partition = [values.get(part.field_id) for part in own.fields]
            if None not in partition:
                file[_PARTITION] = Record(*partition)
                return own.spec_id
        return spec

    def _shard_index(self, spec: int) -> int | None:
        if spec not in self._shard_indexes:
            self._shard_indexes[spec] = shard_index(self.metadata, spec)
        return self._shard_indexes[spec]

    def _bounds(self, manifest: ManifestFile) -> tuple[bytes, bytes] | None:
        """Return the lowest and the highest shard of a manifest; None if unknown."""
        index = self._shard_index(manifest.partition_spec_id)
        if index is None or not manifest.partitions:
            return None
        summary = manifest.partitions[index]
        if summary.contains_null or summary.lower_bound is None or summary.upper_bound is None:
            return None
        return summary.lower_bound, summary.upper_bound

    def _marked(
        self, entries: Iterable[ManifestEntry], remaining: dict[str, ShardId | None]
    ) -> Iterator[ManifestEntry]:
        from pyiceberg.manifest import ManifestEntryStatus

        for entry in entries:
            location = entry.data_file.file_path
            if location not in remaining:
                yield _existing(entry)
                continue
            del remaining[location]
            self.removed.append(entry.data_file)
            entry.status = ManifestEntryStatus.DELETED
            entry.snapshot_id = self.snapshot
            yield entry

    def _write(self, spec: int, level: int, entries: Iterable[ManifestEntry]) -> ManifestFile:
        from pyiceberg.manifest import write_manifest

        path = self.new_path(level)
        self.written.append(path)
        output, specs = self.io.new_output(path), self.metadata.specs()
        with write_manifest(
            FORMAT, specs[spec], self.metadata.schema(), output, self.snapshot, COMPRESSION
        ) as writer:
            # PyIceberg writes one block per entry; a single block has a seventh of the size.
            avro: Any = writer._writer  # pyright: ignore[reportPrivateUsage]
            block: list[ManifestEntry] = []
            write_block, avro.write_block = avro.write_block, block.extend
            for entry in entries:
                writer.add_entry(entry)
            write_block(block)
        return writer.to_manifest_file()


def _group(manifest: ManifestFile) -> Group:
    """Return the spec and the level of a manifest; the level is 0 if another writer wrote it."""
    match = _LEVEL.search(manifest.manifest_path)
    return manifest.partition_spec_id, int(match[1]) if match else 0


def _within(shard: ShardId | None, bounds: tuple[bytes, bytes] | None) -> bool:
    """Return True if a manifest may have files of a shard."""
    return shard is None or bounds is None or bounds[0] <= shard.encode() <= bounds[1]


def _chunks(entries: list[ManifestEntry]) -> list[list[ManifestEntry]]:
    return [entries[first : first + FILES_MAX] for first in range(0, len(entries), FILES_MAX)]


def _deletes(manifest: ManifestFile) -> bool:
    """Return True if a manifest lists delete files of another writer."""
    from pyiceberg.manifest import ManifestContent

    return manifest.content != ManifestContent.DATA


def _live_files(manifest: ManifestFile) -> int:
    return (manifest.added_files_count or 0) + (manifest.existing_files_count or 0)


def _existing(entry: ManifestEntry) -> ManifestEntry:
    from pyiceberg.manifest import ManifestEntryStatus

    entry.status = ManifestEntryStatus.EXISTING
    return entry
