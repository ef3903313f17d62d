"""A table's next metadata in the making: columns, snapshots and what expires, staged as updates.

Everything is written under names that were never used, and counts only once a catalog takes the
updates, or the default catalog's pointer moves to the metadata that they make. Nothing here knows
a catalog, the lease store, or a clock.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import BaseModel

from dagster_leasehold.assets.output.table.columns import Columns
from dagster_leasehold.assets.output.table.manifests import (
    COMPRESSION,
    FORMAT,
    Manifests,
    level_suffix,
)
from dagster_leasehold.assets.output.table.schemas import (
    evolved,
    file_specs,
    name_mapping,
    sort_order,
)
from dagster_leasehold.lease_store.identifiers import ShardId

if TYPE_CHECKING:
    from pyiceberg.io import FileIO
    from pyiceberg.manifest import DataFile, ManifestFile
    from pyiceberg.partitioning import PartitionSpec
    from pyiceberg.table.metadata import TableMetadata
    from pyiceberg.table.snapshots import Snapshot
    from pyiceberg.table.update import TableUpdate

METADATA_FOLDER = "metadata"
MAPPING_PROPERTY = "schema.name-mapping.default"
EXPIRED_AT_ONCE = 10
"""The most snapshots that one publication expires, so that none takes long."""


Model = TypeVar("Model", bound=BaseModel)


def made(kind: type[Model], **values: Any) -> Model:
    """Return one of PyIceberg's models by the names of its fields.

    Its constructors take the names of the JSON, which are no names of Python.
    """
    return kind.model_validate(values)


class Operation(StrEnum):
    """The kind of a snapshot, as Iceberg names it."""

    APPEND = "append"
    REPLACE = "replace"
    OVERWRITE = "overwrite"
    DELETE = "delete"


@dataclass(frozen=True, slots=True)
class SnapshotContent:
    """The files that one snapshot adds and takes out, and its summary.

    Attributes:
        operation: append adds files, replace changes none of the records, delete adds none.
        added: entries of files.
        removed: locations of files, with the shard of each where it is known.
        summary: for its readers.
        oldest_first: True if the files that are taken out are the table's oldest.
        without_deletes: True if delete files of other programs are taken out, too.
    """

    operation: Operation
    added: Sequence[DataFile] = ()
    removed: Mapping[str, ShardId | None] = field(default_factory=dict[str, "ShardId | None"])
    summary: Mapping[str, str] = field(default_factory=dict[str, str])
    oldest_first: bool = False
    without_deletes: bool = False


@dataclass(slots=True)
class Staging:
    """The next metadata of a table, step by step.

    Attributes:
        io: reads and writes the table's metadata files.
        metadata: as the updates so far make it.
        now_ms: milliseconds of the Unix epoch, for snapshots.
        new_id: gives a snapshot id that was never used.
        new_name: gives a name that was never used.
        updates: those so far.
        written: the locations of the files that were written.
        missing: the locations of files that were to be taken out, and that the table lacks.
        specs: the specs of files, since `evolve`; see `file_specs`.
    """

    io: FileIO
    metadata: TableMetadata
    now_ms: int
    new_id: Callable[[], int]
    new_name: Callable[[], str]
    updates: list[TableUpdate] = field(default_factory=list["TableUpdate"])
    written: list[str] = field(default_factory=list[str])
    missing: set[str] = field(default_factory=set[str])
    specs: Sequence[PartitionSpec] = ()

    def evolve(self, columns: Columns, partitioning: Sequence[str], order: Sequence[str]) -> None:
        """Give the table all agreed columns, and its partitioning once the columns are there.

        A new spec becomes the one that engines write with. One that another writer chose later
        stays theirs.
        """
        from pyiceberg.table.update import (
            AddPartitionSpecUpdate,
            AddSchemaUpdate,
            AddSortOrderUpdate,
            SetCurrentSchemaUpdate,
            SetDefaultSortOrderUpdate,
            SetDefaultSpecUpdate,
            SetPropertiesUpdate,
        )

        before = self.metadata.schema()
        schema = evolved(before, columns, self.metadata.last_column_id)
        if schema is not before:
            number = max(each.schema_id for each in self.metadata.schemas) + 1
            schema = schema.model_copy(update={"schema_id": number})
            self._apply(
                made(AddSchemaUpdate, schema=schema), made(SetCurrentSchemaUpdate, schema_id=number)
            )
        if self.metadata.properties.get(MAPPING_PROPERTY) != (mapping := name_mapping(schema)):
            self._apply(made(SetPropertiesUpdate, updates={MAPPING_PROPERTY: mapping}))
        self.specs = file_specs(self.metadata, partitioning)
        earlier = self.metadata.specs()
        for spec in sorted(self.specs, key=lambda each: each.spec_id):
            if spec.spec_id not in earlier:
                self._apply(made(AddPartitionSpecUpdate, spec=spec))
        if (first := self.specs[0].spec_id) not in earlier:
            self._apply(made(SetDefaultSpecUpdate, spec_id=first))
        if len(self.metadata.sort_orders) == 1 and (sorting := sort_order(schema, order)):
            self._apply(
                made(AddSortOrderUpdate, sort_order=sorting),
                made(SetDefaultSortOrderUpdate, sort_order_id=1),
            )

    def set_properties(self, properties: Mapping[str, str]) -> None:
        """Set those properties of the table that have another value."""
        from pyiceberg.table.update import SetPropertiesUpdate

        before = self.metadata.properties
        new = {name: value for name, value in properties.items() if before.get(name) != value}
        if new:
            self._apply(made(SetPropertiesUpdate, updates=new))

    def add(self, content: SnapshotContent, *, empty: bool = False) -> int | None:
        """Write and add a snapshot, and return its id.

        None if it would change nothing, unless `empty` asks for such a snapshot.
        """
        from pyiceberg.manifest import write_manifest_list
        from pyiceberg.table.refs import MAIN_BRANCH, SnapshotRefType
        from pyiceberg.table.snapshots import Snapshot
        from pyiceberg.table.update import AddSnapshotUpdate, SetSnapshotRefUpdate

        parent = self.metadata.current_snapshot()
        snapshot_id = self.new_id()
        manifests = Manifests(self.io, self.metadata, self.specs, snapshot_id, self._new_manifest)
        files = self._manifest_files(manifests, parent, content)
        self.missing |= manifests.missing
        if not content.added and not manifests.removed and not empty:
            return None
        sequence = self.metadata.next_sequence_number()
        location = f"{self._folder}/snap-{snapshot_id}-0-{self.new_name()}.avro"
        with write_manifest_list(
            FORMAT,
            self.io.new_output(location),
            snapshot_id,
            parent.snapshot_id if parent else None,
            sequence,
            COMPRESSION,
        ) as writer:
            writer.add_manifests(files)
        self.written += [*manifests.written, location]
        snapshot = made(
            Snapshot,
            snapshot_id=snapshot_id,
            parent_snapshot_id=parent.snapshot_id if parent else None,
            sequence_number=sequence,
            timestamp_ms=self._next_ms(),
            manifest_list=location,
            summary=_summary(content, manifests.removed, parent),
            schema_id=self.metadata.current_schema_id,
        )
        self._apply(
            made(AddSnapshotUpdate, snapshot=snapshot),
            made(
                SetSnapshotRefUpdate,
                ref_name=MAIN_BRANCH,
                type=SnapshotRefType.BRANCH,
                snapshot_id=snapshot_id,
            ),
        )
        return snapshot_id

    def tag(self, name: str, snapshot_id: int) -> None:
        """Name a snapshot, which then stays until the name is dropped."""
        from pyiceberg.table.refs import SnapshotRefType
        from pyiceberg.table.update import SetSnapshotRefUpdate

        tag = SnapshotRefType.TAG
        self._apply(made(SetSnapshotRefUpdate, ref_name=name, type=tag, snapshot_id=snapshot_id))

    def expire(self, keep: int) -> tuple[int, ...]:
        """Let go of the oldest snapshots beyond a number to keep, and return their ids.

        A snapshot that a branch or a tag names stays.
        """
        from pyiceberg.table.update import RemoveSnapshotsUpdate

        named = {ref.snapshot_id for ref in self.metadata.refs.values()}
        snapshots = sorted(self.metadata.snapshots, key=_sequence_number)
        surplus = snapshots[: max(0, len(snapshots) - keep)]
        ids = [each.snapshot_id for each in surplus if each.snapshot_id not in named]
        if ids := ids[:EXPIRED_AT_ONCE]:
            self._apply(made(RemoveSnapshotsUpdate, snapshot_ids=ids))
        return tuple(ids)

    def _next_ms(self) -> int:
        """Return a time after all that the metadata names.

        This host's clock can be behind that of the publisher before, and PyIceberg dates a change
        by the host's clock where a snapshot's own time is not a new one. Engines in Java refuse
        metadata that is older than the newest snapshot in its log.
        """
        log = self.metadata.snapshot_log
        newest = max((entry.timestamp_ms for entry in log), default=0)
        return max(self.now_ms, newest + 1, self.metadata.last_updated_ms + 1)

    @property
    def _folder(self) -> str:
        return f"{self.metadata.location.rstrip('/')}/{METADATA_FOLDER}"

    def _new_manifest(self, level: int) -> str:
        return f"{self._folder}/{self.new_name()}{level_suffix(level)}"

    def _manifest_files(
        self, manifests: Manifests, parent: Snapshot | None, content: SnapshotContent
    ) -> list[ManifestFile]:
        from pyiceberg.manifest import ManifestContent

        before = parent.manifests(self.io) if parent else []
        if content.without_deletes:
            before = [each for each in before if each.content == ManifestContent.DATA]
        if content.removed:
            before = manifests.without(before, content.removed, oldest_first=content.oldest_first)
        return manifests.merged([*before, *manifests.adding(content.added)])

    def _apply(self, *updates: TableUpdate) -> None:
        from pyiceberg.table.update import update_table_metadata

        before = self.metadata.last_updated_ms
        metadata = update_table_metadata(self.metadata, updates)
        at_ms = max(before, metadata.last_updated_ms)
        self.metadata = metadata.model_copy(update={"last_updated_ms": at_ms})
        self.updates += updates


def new_metadata(
    location: str, columns: Columns, properties: Mapping[str, str], uuid: Any
) -> TableMetadata:
    """Return the metadata of a table that has no snapshot yet, and one spec, without fields.

    Partitioning and sort order come with `Staging.evolve`.
    """
    from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC
    from pyiceberg.table.metadata import new_table_metadata
    from pyiceberg.table.sorting import UNSORTED_SORT_ORDER

    schema = evolved(None, columns, 0)
    return new_table_metadata(
        schema,
        UNPARTITIONED_PARTITION_SPEC,
        UNSORTED_SORT_ORDER,
        location,
        {**properties, MAPPING_PROPERTY: name_mapping(schema), "format-version": str(FORMAT)},
        uuid,
    )


def _sequence_number(snapshot: Snapshot) -> int:
    return snapshot.sequence_number or 0


def _summary(content: SnapshotContent, removed: Iterable[DataFile], parent: Snapshot | None) -> Any:
    """Return a snapshot's summary with the counts that Iceberg's readers look for."""
    from pyiceberg.table.snapshots import Operation as IcebergOperation
    from pyiceberg.table.snapshots import Summary

    added, removed_counts = _counts(content.added), _counts(removed)
    values: dict[str, str] = {}
    for before, (name, total) in zip(
        ("added-data-files", "added-records", "added-files-size"), added.items(), strict=True
    ):
        if total:
            values[before] = str(total)
        if removed_counts[name]:
            values[_REMOVED[name]] = str(removed_counts[name])
        earlier = (parent.summary or {}).get(name) if parent else "0"
        if earlier is not None:
            values[name] = str(int(earlier) + total - removed_counts[name])
    for name in ("total-delete-files", "total-position-deletes", "total-equality-deletes"):
        # Delete files of other programs stay as they are.
        earlier_summary = None if parent is None or content.without_deletes else parent.summary
        values[name] = (earlier_summary or {}).get(name) or "0"
    return Summary(IcebergOperation(content.operation.value), **values, **content.summary)


_REMOVED = {
    "total-data-files": "deleted-data-files",
    "total-records": "deleted-records",
    "total-files-size": "removed-files-size",
}


def _counts(files: Iterable[DataFile]) -> dict[str, int]:
    listed = list(files)
    return {
        "total-data-files": len(listed),
        "total-records": sum(file.record_count for file in listed),
        "total-files-size": sum(file.file_size_in_bytes for file in listed),
    }
