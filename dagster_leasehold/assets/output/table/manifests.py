"""The manifests of a snapshot that is being made: written, thinned out, and merged.

A manifest is of one spec. What a snapshot adds goes into one new manifest of each spec. A manifest
with a file that is taken out is rewritten.

Merges keep entries of a shard together, so that the bounds in the manifest list tell a reader which
few manifests can name files of its shards. Manifests have levels, as in a log-structured merge
tree: new ones are of level 0. Where `OVERLAP_MAX` manifests of one level can hold files of the same
shard, they are merged, sorted by shard, and cut into manifests of the next level: each covers fewer
shards than those before, until it has one shard, and then grows. So an entry is written as often as
the logarithm of the number of publications, a shard meets few manifests of each level, and no
publication writes many entries.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from dagster_leasehold.assets.output.table.schemas import shard_field, shard_place
from dagster_leasehold.lease_store.identifiers import ShardId

if TYPE_CHECKING:
    from pyiceberg.io import FileIO
    from pyiceberg.manifest import DataFile, ManifestEntry, ManifestFile
    from pyiceberg.partitioning import PartitionSpec
    from pyiceberg.table.metadata import TableMetadata

OVERLAP_MAX = 4
"""So many manifests of a level that can hold files of one shard are merged."""
FILES_MAX = 2_048
"""The most files that a merged manifest has; one of a shard with half as many stays as it is."""
PIECE_MIN = 128
"""The fewest files after which a merge begins another manifest for the next shards."""
PIECES = 400
"""About so many manifests are aimed at, as the manifest list is written with each publication."""
MERGED_MAX = 2_048
"""No more entries are written by merges of one publication, if more than one merge is due."""
UNMOVABLE = 1_000
"""The level of manifests of another writer's entries, which do not tell their shard."""
FORMAT = 2
COMPRESSION: Literal["deflate"] = "deflate"
_PARTITION = 3
"""The place of the partition in PyIceberg's record of a file."""
_LEVEL = re.compile(r"-l(\d+)\.avro")
_HIGHEST = b"\xff" * 8
"""Higher than the bytes of any text."""

Group = tuple[int, int]
"""A spec, and a level."""


def level_suffix(level: int) -> str:
    """Return the end of the name of a manifest of a level."""
    return f"-l{level}.avro"


@dataclass(slots=True)
class Manifests:
    """The manifests of one snapshot.

    Attributes:
        io: reads and writes them.
        metadata: of the table, with its newest schema.
        specs: the specs of files, in the order that they are tried.
        snapshot: the id of the snapshot that is being made.
        new_path: gives a location that was never used, for a manifest of a level.
        written: the locations of the manifests that were written.
        removed: the entries of files that were taken out.
        missing: the locations of files that were to be taken out, and are in no manifest.
    """

    io: FileIO
    metadata: TableMetadata
    specs: Sequence[PartitionSpec]
    snapshot: int
    new_path: Callable[[int], str]
    written: list[str] = field(default_factory=list[str])
    removed: list[DataFile] = field(default_factory=list["DataFile"])
    missing: set[str] = field(default_factory=set[str])
    _shard_places: dict[int, int | None] = field(default_factory=dict[int, "int | None"])

    def adding(self, files: Iterable[DataFile]) -> list[ManifestFile]:
        """Return new manifests of files that are added, one of each spec."""
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
        """Return manifests that mark files at these locations as removed.

        They are looked for manifest by manifest, in manifests that can hold files of their shards,
        until all are found.
        """
        left = dict(locations)
        result = list(manifests)
        order = range(len(result)) if oldest_first else range(len(result) - 1, -1, -1)
        for at in order:
            if not left:
                break
            bounds = self._bounds(result[at])
            if _deletes(result[at]) or not any(_within(each, bounds) for each in left.values()):
                continue
            entries = result[at].fetch_manifest_entry(self.io)
            if left.keys().isdisjoint(entry.data_file.file_path for entry in entries):
                continue
            spec, level = _group(result[at])
            result[at] = self._write(spec, level, self._thinned(entries, left))
        self.missing = set(left)
        return result

    def merged(self, manifests: Sequence[ManifestFile]) -> list[ManifestFile]:
        """Return manifests after merging some, or moving them to today's specs."""
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
            for few in self._due((spec, level), members):
                files = sum(map(_live_files, few))
                if written and written + files > MERGED_MAX:
                    break
                written += files
                merged |= {each.manifest_path for each in few}
                result += self._together(spec, level + 1, few, piece)
            result += [each for each in members if each.manifest_path not in merged]
        return result

    def _due(self, group: Group, members: list[ManifestFile]) -> Iterator[list[ManifestFile]]:
        """Yield manifests of one level that are to be merged with each other."""
        spec, level = group
        if self._is_moved(spec):
            yield from ([each] for each in members if level != UNMOVABLE)
            return
        active: list[tuple[bytes, ManifestFile]] = []
        for (lowest, highest), manifest in self._by_shard(members):
            active = [each for each in active if each[0] >= lowest]
            active.append((highest, manifest))
            if len(active) == OVERLAP_MAX:
                few = [each for _, each in active]
                yield sorted(few, key=lambda each: each.min_sequence_number or 0)
                active = []

    def _by_shard(
        self, members: Iterable[ManifestFile]
    ) -> list[tuple[tuple[bytes, bytes], ManifestFile]]:
        """Return the manifests that can be merged and the shards that each is in the way of.

        A small one is in the way of all: where each publication has files of a few shards, there
        would be as many manifests as shards.
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
        """Return the number of files after which a merge begins another manifest."""
        files = sum(map(_live_files, manifests))
        return max(PIECE_MIN, min(FILES_MAX, files // PIECES))

    def _together(
        self, spec: int, level: int, manifests: Sequence[ManifestFile], piece: int
    ) -> list[ManifestFile]:
        """Return new manifests of all entries, by shard where the spec has the shard."""
        entries = [entry for each in manifests for entry in each.fetch_manifest_entry(self.io)]
        by_spec: dict[int, list[ManifestEntry]] = {}
        for entry in entries:
            by_spec.setdefault(self._moved(spec, entry), []).append(_existing(entry))
        return [
            self._write(own, UNMOVABLE if self._is_moved(own) else level, few)
            for own, members in sorted(by_spec.items())
            for few in self._pieces(own, members, piece)
        ]

    def _pieces(
        self, spec: int, entries: list[ManifestEntry], piece: int
    ) -> Iterator[list[ManifestEntry]]:
        place = self._shard_place(spec)
        if place is None:
            yield from _chunks(entries)
            return

        def shard(entry: ManifestEntry) -> str:
            return str(entry.data_file.partition[place])

        few: list[ManifestEntry] = []
        for _, own in itertools.groupby(sorted(entries, key=shard), shard):
            *full, last = _chunks(list(own))
            if few and (full or len(few) + len(last) > piece):
                yield few
                few = []
            yield from full
            few += last
        yield few

    def _is_moved(self, spec: int) -> bool:
        """Return True if a spec lacks the shard, and today's specs have it."""
        if not self.specs or self._shard_place(spec) is not None:
            return False
        return self._shard_place(self.specs[-1].spec_id) is not None

    def _moved(self, spec: int, entry: ManifestEntry) -> int:
        """Put an entry under the first spec of today whose values it has; return its spec.

        A file is of one shard, which its bounds name; the other values come from its own spec.
        """
        from pyiceberg.typedef import Record

        shard = shard_field(self.metadata.schema())
        file = entry.data_file
        lowest = (file.lower_bounds or {}).get(shard.field_id) if shard else None
        highest = (file.upper_bounds or {}).get(shard.field_id) if shard else None
        if not self._is_moved(spec) or lowest is None or lowest != highest or shard is None:
            return spec
        values: dict[int, object] = {
            part.field_id: file.partition[place]
            for place, part in enumerate(self.metadata.specs()[spec].fields)
        }
        for own in self.specs:
            place = self._shard_place(own.spec_id)
            if place is None:
                continue
            values[own.fields[place].field_id] = lowest.decode()
            partition = [values.get(part.field_id) for part in own.fields]
            if None not in partition:
                file[_PARTITION] = Record(*partition)
                return own.spec_id
        return spec

    def _shard_place(self, spec: int) -> int | None:
        if spec not in self._shard_places:
            self._shard_places[spec] = shard_place(self.metadata, spec)
        return self._shard_places[spec]

    def _bounds(self, manifest: ManifestFile) -> tuple[bytes, bytes] | None:
        """Return the lowest and the highest shard of a manifest; None if it does not tell."""
        place = self._shard_place(manifest.partition_spec_id)
        if place is None or not manifest.partitions:
            return None
        summary = manifest.partitions[place]
        if summary.contains_null or summary.lower_bound is None or summary.upper_bound is None:
            return None
        return summary.lower_bound, summary.upper_bound

    def _thinned(
        self, entries: Iterable[ManifestEntry], left: dict[str, ShardId | None]
    ) -> Iterator[ManifestEntry]:
        from pyiceberg.manifest import ManifestEntryStatus

        for entry in entries:
            location = entry.data_file.file_path
            if location not in left:
                yield _existing(entry)
                continue
            del left[location]
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
            # PyIceberg makes a block of each entry; compressed together they take a seventh.
            avro: Any = writer._writer  # pyright: ignore[reportPrivateUsage]
            block: list[ManifestEntry] = []
            write_block, avro.write_block = avro.write_block, block.extend
            for entry in entries:
                writer.add_entry(entry)
            write_block(block)
        return writer.to_manifest_file()


def _group(manifest: ManifestFile) -> Group:
    """Return the spec and the level of a manifest; 0 for one that another writer made."""
    match = _LEVEL.search(manifest.manifest_path)
    return manifest.partition_spec_id, int(match[1]) if match else 0


def _within(shard: ShardId | None, bounds: tuple[bytes, bytes] | None) -> bool:
    """Return True if a manifest can hold files of a shard."""
    return shard is None or bounds is None or bounds[0] <= shard.encode() <= bounds[1]


def _chunks(entries: list[ManifestEntry]) -> list[list[ManifestEntry]]:
    """Return entries in lists that one manifest can have."""
    return [entries[first : first + FILES_MAX] for first in range(0, len(entries), FILES_MAX)]


def _deletes(manifest: ManifestFile) -> bool:
    """Return True for a manifest of another writer's delete files, which stay as they are."""
    from pyiceberg.manifest import ManifestContent

    return manifest.content != ManifestContent.DATA


def _live_files(manifest: ManifestFile) -> int:
    return (manifest.added_files_count or 0) + (manifest.existing_files_count or 0)


def _existing(entry: ManifestEntry) -> ManifestEntry:
    from pyiceberg.manifest import ManifestEntryStatus

    entry.status = ManifestEntryStatus.EXISTING
    return entry
