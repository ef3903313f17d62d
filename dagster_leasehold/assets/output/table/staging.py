"""The next metadata of a table, staged as updates: columns, snapshots and expiry.

All files get names that were never used. They take effect once a catalog accepts the updates, or
the pointer of the default catalog moves. This module uses no catalog, lease store or clock.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import BaseModel

from dagster_leasehold.assets.output.table.columns import Columns
from dagster_leasehold.assets.output.table.data_files import FileForm
from dagster_leasehold.assets.output.table.manifests import (
    COMPRESSION,
    FORMAT,
    Manifests,
    level_suffix,
)
from dagster_leasehold.assets.output.table.marks import files_root
from dagster_leasehold.assets.output.table.publication import SnapshotPlan
from dagster_leasehold.assets.output.table.schemas import (
    evolved,
    file_specs,
    name_mapping,
    sort_order,
    sort_orders,
)
from dagster_leasehold.assets.table_settings import sort_text

if TYPE_CHECKING:
    from pyiceberg.io import FileIO
    from pyiceberg.manifest import DataFile, ManifestFile
    from pyiceberg.partitioning import PartitionSpec
    from pyiceberg.table.metadata import TableMetadata
    from pyiceberg.table.snapshots import Snapshot
    from pyiceberg.table.update import TableUpdate

METADATA_FOLDER = "metadata"
ROUTES_FOLDER = "routes"
"""The folder of the metadata of routes' tables, below the stream's output."""
MAPPING_PROPERTY = "schema.name-mapping.default"
EXPIRED_AT_ONCE = 10
"""The most snapshots that one publication expires, which bounds its time."""


Model = TypeVar("Model", bound=BaseModel)


def model_of(kind: type[Model], **values: Any) -> Model:
    """Return one of PyIceberg's models by the Python names of its fields.

    Its constructors take the names in JSON.
    """
    return kind.model_validate(values)


@dataclass(slots=True)
class Staging:
    """The next metadata of a table, step by step.

    Attributes:
        now_ms: milliseconds of the Unix epoch, for snapshots.
        new_id: returns a snapshot id that was never used.
        new_name: returns a name that was never used.
        written: the locations of written files.
        missing: the ledger paths of files to remove that the table lacks.
        specs: the specs for files, after `evolve`; see `file_specs`.
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
        """Add agreed columns, and partitioning and sort order once the table has their columns.

        A new spec or order becomes the default of engines. A default that another writer sets later
        stays.
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
                model_of(AddSchemaUpdate, schema=schema),
                model_of(SetCurrentSchemaUpdate, schema_id=number),
            )
        mapped = self.metadata.properties.get(MAPPING_PROPERTY, "")
        if mapped != (mapping := name_mapping(schema, columns, mapped)):
            self._apply(model_of(SetPropertiesUpdate, updates={MAPPING_PROPERTY: mapping}))
        self.specs = file_specs(self.metadata, partitioning)
        earlier = self.metadata.specs()
        for spec in sorted(self.specs, key=lambda each: each.spec_id):
            if spec.spec_id not in earlier:
                self._apply(model_of(AddPartitionSpecUpdate, spec=spec))
        if (first := self.specs[0].spec_id) not in earlier:
            self._apply(model_of(SetDefaultSpecUpdate, spec_id=first))
        number = 1 + max(each.order_id for each in self.metadata.sort_orders)
        sorting = sort_order(schema, order, number)
        if sorting and sort_text(order) not in sort_orders(self.metadata):
            self._apply(
                model_of(AddSortOrderUpdate, sort_order=sorting),
                model_of(SetDefaultSortOrderUpdate, sort_order_id=number),
            )

    def set_properties(self, properties: Mapping[str, str]) -> None:
        """Set the properties whose values differ."""
        from pyiceberg.table.update import SetPropertiesUpdate

        before = self.metadata.properties
        new = {name: value for name, value in properties.items() if before.get(name) != value}
        if new:
            self._apply(model_of(SetPropertiesUpdate, updates=new))

    def add(
        self, plan: SnapshotPlan, summary: Mapping[str, str], *, empty: bool = False
    ) -> int | None:
        """Write and add a snapshot, and return its id; None if it changes nothing.

        With `empty`, also add a snapshot without a change.
        """
        from pyiceberg.manifest import write_manifest_list
        from pyiceberg.table.refs import MAIN_BRANCH, SnapshotRefType
        from pyiceberg.table.snapshots import Snapshot
        from pyiceberg.table.update import AddSnapshotUpdate, SetSnapshotRefUpdate

        parent = self.metadata.current_snapshot()
        snapshot_id = self.new_id()
        root, orders = files_root(self.metadata), sort_orders(self.metadata)
        form = FileForm(self.metadata.schema(), self.specs, root, orders)
        added = [form.data_file(shard, file) for shard, file in plan.added]
        manifests = Manifests(self.io, self.metadata, self.specs, snapshot_id, self._new_manifest)
        files = manifests.merged(
            [*self._without(manifests, parent, plan, form), *manifests.adding(added)]
        )
        self.missing |= {path.removeprefix(form.location("")) for path in manifests.missing}
        if not added and not manifests.removed and not empty:
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
        snapshot = model_of(
            Snapshot,
            snapshot_id=snapshot_id,
            parent_snapshot_id=parent.snapshot_id if parent else None,
            sequence_number=sequence,
            timestamp_ms=self._next_ms(),
            manifest_list=location,
            summary=_summary(plan, summary, added, manifests.removed, parent),
            schema_id=self.metadata.current_schema_id,
        )
        self._apply(
            model_of(AddSnapshotUpdate, snapshot=snapshot),
            model_of(
                SetSnapshotRefUpdate,
                ref_name=MAIN_BRANCH,
                type=SnapshotRefType.BRANCH,
                snapshot_id=snapshot_id,
            ),
        )
        return snapshot_id

    def tag(self, name: str, snapshot_id: int) -> None:
        """Tag a snapshot, so that it is kept until the tag is removed."""
        from pyiceberg.table.refs import SnapshotRefType
        from pyiceberg.table.update import SetSnapshotRefUpdate

        tag = SnapshotRefType.TAG
        self._apply(
            model_of(SetSnapshotRefUpdate, ref_name=name, type=tag, snapshot_id=snapshot_id)
        )

    def expire(self, keep: int) -> tuple[int, ...]:
        """Expire all but the `keep` newest snapshots, and return their ids.

        Snapshots with a branch or a tag do not expire.
        """
        from pyiceberg.table.update import RemoveSnapshotsUpdate

        named = {ref.snapshot_id for ref in self.metadata.refs.values()}
        snapshots = sorted(self.metadata.snapshots, key=_sequence_number)
        surplus = snapshots[: max(0, len(snapshots) - keep)]
        ids = [each.snapshot_id for each in surplus if each.snapshot_id not in named]
        if ids := ids[:EXPIRED_AT_ONCE]:
            self._apply(model_of(RemoveSnapshotsUpdate, snapshot_ids=ids))
        return tuple(ids)

    def _next_ms(self) -> int:
        """Return a time later than all times in the metadata.

        The clock of this host may be behind that of an earlier publisher, and PyIceberg dates some
        changes by the host's clock. Engines in Java refuse metadata that is older than its newest
        snapshot.
        """
        log = self.metadata.snapshot_log
        newest = max((entry.timestamp_ms for entry in log), default=0)
        return max(self.now_ms, newest + 1, self.metadata.last_updated_ms + 1)

    @property
    def _folder(self) -> str:
        return f"{self.metadata.location.rstrip('/')}/{METADATA_FOLDER}"

    def _new_manifest(self, level: int) -> str:
        return f"{self._folder}/{self.new_name()}{level_suffix(level)}"

    def _without(
        self, manifests: Manifests, parent: Snapshot | None, plan: SnapshotPlan, form: FileForm
    ) -> list[ManifestFile]:
        """Return the manifests of the parent without the files that a plan removes."""
        from pyiceberg.manifest import ManifestContent

        before = parent.manifests(self.io) if parent else []
        if plan.without_deletes:
            before = [each for each in before if each.content == ManifestContent.DATA]
        if not plan.removed:
            return before
        locations = {form.location(path): shard for path, shard in plan.removed.items()}
        return manifests.without(before, locations, oldest_first=plan.oldest_first)

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
    """Return the metadata of a new table; `Staging.evolve` adds partitioning and sort order."""
    from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC
    from pyiceberg.table.metadata import new_table_metadata
    from pyiceberg.table.sorting import UNSORTED_SORT_ORDER

    schema = evolved(None, columns, 0)
    return new_table_metadata(
        schema,
        UNPARTITIONED_PARTITION_SPEC,
        UNSORTED_SORT_ORDER,
        location,
        {
            **properties,
            MAPPING_PROPERTY: name_mapping(schema, columns),
            "format-version": str(FORMAT),
        },
        uuid,
    )


def _sequence_number(snapshot: Snapshot) -> int:
    return snapshot.sequence_number or 0


def _summary(
    plan: SnapshotPlan,
    own: Mapping[str, str],
    added: Iterable[DataFile],
    removed: Iterable[DataFile],
    parent: Snapshot | None,
) -> Any:
    """Return the summary of a snapshot, with totals if the summary of its parent has them."""
    from pyiceberg.table.snapshots import Operation as IcebergOperation
    from pyiceberg.table.snapshots import Summary, UpdateMetrics, update_snapshot_summaries

    metrics = UpdateMetrics()
    for file in added:
        metrics.add_file(file)
    for file in removed:
        metrics.remove_file(file)
    before: dict[str, str] | None = None
    if parent is not None:
        # PyIceberg treats an empty summary as the summary of an empty table.
        before = {"": ""} | (parent.summary.additional_properties if parent.summary else {})
        if plan.without_deletes:
            before |= {name: "0" for name in before if "delete" in name}
    summary = Summary(IcebergOperation.APPEND, **metrics.to_dict(), **own)
    # PyIceberg cannot count for the operation `replace`.
    operation = IcebergOperation(plan.operation.value)
    return update_snapshot_summaries(summary, before).model_copy(update={"operation": operation})
