"""The tables of a stream's routes, which follow the stream's table.

The stream's table has all records. The table of a route names the same data files, but only those
of its route. A route gets its table with the first publication that has files of it.

With the default catalog, the transaction that publishes moves the pointers of all these tables.
With another catalog, the cursors move last:

1. The changes of the routes' tables are recorded in a file, before the publication is sent.
2. The stream's table shows the publication. Its publisher dies.
3. The next publisher finds the publication in the stream's table. It reads the file, and sends the
   changes to each route's table whose mark does not name the publication.
4. It commits the publication: the cursors move, and the file is removed.

If another program removed a route's table, or the table was moved, it is created again with all
files of its route. An adoption compares each route's table with the stream's table.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING
from uuid import UUID

from pydantic import TypeAdapter

from dagster_leasehold.assets.errors import TableMetadataGone, TableUnavailable
from dagster_leasehold.assets.output.table.catalogs import GroupTable, OpenTable, StagedRoute
from dagster_leasehold.assets.output.table.columns import (
    ColumnAgreement,
    Columns,
    columns_of_route,
    routes_of,
)
from dagster_leasehold.assets.output.table.data_files import ledger_file
from dagster_leasehold.assets.output.table.maintenance import current_entries
from dagster_leasehold.assets.output.table.marks import (
    FILES_PROPERTY,
    GROUP_KEY,
    MARK_PROPERTY,
    PUBLICATION_KEY,
    REMEDY,
    Mark,
    files_root,
    mark_of,
    table_conflict,
)
from dagster_leasehold.assets.output.table.other_catalog import OtherCatalog
from dagster_leasehold.assets.output.table.publication import (
    Operation,
    PublicationPlan,
    SnapshotPlan,
)
from dagster_leasehold.assets.output.table.staging import (
    METADATA_FOLDER,
    ROUTES_FOLDER,
    Staging,
    new_metadata,
)
from dagster_leasehold.assets.routes import route_of
from dagster_leasehold.assets.table_settings import TableSettings, route_table
from dagster_leasehold.lease_store import failpoints
from dagster_leasehold.lease_store.identifiers import ShardId
from dagster_leasehold.lease_store.ledger_rows import DataFile
from dagster_leasehold.lease_store.publication_rows import (
    PlannedPublication,
    Publication,
    TableName,
)

if TYPE_CHECKING:
    from pyiceberg.table.metadata import TableMetadata

ROUTE_KEY = "leasehold.route"
SHARED_FILES = {"gc.enabled": "false"}
"""The property with which engines do not delete data files that two tables name."""


@dataclass(frozen=True)
class _Change:
    """The change of a route's table in one snapshot, as JSON."""

    operation: str
    added: tuple[tuple[str, DataFile], ...] = ()
    removed: Mapping[str, str | None] = field(default_factory=dict[str, "str | None"])
    oldest_first: bool = False


_RECORD = TypeAdapter(dict[str, tuple[_Change, ...] | None])
"""The changes of routes' tables by route; None to compare a table with the stream's table."""
_Files = dict[str, tuple[ShardId, DataFile]]
"""Files by path."""


@dataclass(eq=False, repr=False)
class RouteTables:
    """The tables of one group's routes, for the publisher of the group.

    Attributes:
        corrects: True while the group adopts its table: all changes are found by comparison.
    """

    group: GroupTable
    settings: TableSettings
    now_ms: Callable[[], int]
    new_id: Callable[[], UUID]
    corrects: bool = False

    def __post_init__(self) -> None:
        if isinstance(catalog := self.group.catalog, OtherCatalog):
            catalog.follow = self.follow

    def prepared(self, mark: Mark, plan: PublicationPlan, main: Staging) -> Sequence[StagedRoute]:
        """Stage the changes of the routes' tables; for another catalog, record them in a file.

        Args:
            mark: the mark of the stream's table after the publication.
            main: the staged publication of the stream's table.
        """
        changes = _changes(plan)
        if not (changes or self.corrects):
            return ()
        columns = self._columns()
        if self.corrects and not (changes := dict.fromkeys(sorted(routes_of(columns)))):
            return ()
        main.set_properties(SHARED_FILES)
        if isinstance(self.group.catalog, OtherCatalog):
            at = record_location(self.group.io.location, mark.publication)
            self.group.io.write(at, _RECORD.dump_json(changes))
            return ()
        return [*self._each_staged(mark, changes, main.metadata, columns)]

    def follow(self, publication: str) -> None:
        """Send the recorded changes of a publication that is in the stream's table.

        Raises:
            TableUnavailable: a catalog does not answer, or refuses a change. It is sent again.
        """
        columns, location = self._columns(), self.group.io.location
        if not routes_of(columns):
            return
        if (content := self.group.io.read(record_location(location, publication))) is None:
            return
        main = self.group.catalog.find()
        mark = None if main is None else mark_of(main.metadata)
        if main is None or mark is None or mark.publication != publication:
            raise TableUnavailable(
                f"Another program has changed the table {self.group.name} while its routes' "
                "tables followed a publication. They follow later."
            )
        changes = _RECORD.validate_json(content)
        if self.corrects:
            changes = dict.fromkeys(changes)
        for one in self._each_staged(mark, changes, main.metadata, columns):
            before, catalog = one.table, self.group.route_catalog(one.route)
            snapshot = one.staging.metadata.current_snapshot()
            assert before is not None, "It was created."
            assert snapshot is not None, "It was staged."
            assert isinstance(catalog, OtherCatalog)
            base = before.metadata.current_snapshot()
            base_id = None if base is None else base.snapshot_id
            planned = PlannedPublication(publication, snapshot.snapshot_id, base_id)
            catalog.send_staged(before, one.staging, planned)
            failpoints.reach("after_route")

    def tables(self) -> list[OpenTable]:
        """Return the tables that exist."""
        tables: list[OpenTable] = []
        for route in sorted(routes_of(self._columns())):
            with suppress(TableMetadataGone):
                if (table := self.find(route)) is not None:
                    tables.append(table)
        return tables

    def find(self, route: str) -> OpenTable | None:
        """Return the table of a route.

        Raises:
            TableUnavailable: the catalog has another table with its name.
        """
        table = self.group.route_catalog(route).find()
        own = None if table is None else table.metadata.properties
        if own is not None and (own.get(GROUP_KEY), own.get(ROUTE_KEY)) != (
            str(self.group.key),
            route,
        ):
            raise TableUnavailable(
                f"The table {self._name(route)} does not belong to route {route} of "
                f"{self.group.key}: rename it, or give the stream another table name."
            )
        return table

    def _columns(self) -> Columns:
        return [
            dict(each) for each in ColumnAgreement(self.group.store, self.group.key).read().columns
        ]

    def _name(self, route: str) -> TableName:
        return route_table(self.group.name, route)

    def _each_staged(
        self,
        mark: Mark,
        changes: Mapping[str, Sequence[_Change] | None],
        main: TableMetadata,
        columns: Columns,
    ) -> Iterator[StagedRoute]:
        """Stage the changes of the tables that do not show them yet."""
        files: dict[str, _Files] | None = None
        for route, snapshots in changes.items():
            lost_at = ""
            try:
                table = self.find(route)
            except TableMetadataGone as error:
                table, lost_at = None, error.at
            own = None if table is None else mark_of(table.metadata)
            if own is not None and own.publication == mark.publication:
                continue
            if table is None:
                table = self._new_table(route, columns)
            if own is not None and snapshots is not None:
                self._check(route, table, own)
                plans = [_plan(each) for each in snapshots]
            else:
                files = self._files_by_route(main) if files is None else files
                plans = self._corrections(table, files.get(route, {}), new=own is None)
            if plans:
                staging = self._staged(table, route, plans, mark, columns)
                before = table if table.at else None
                yield StagedRoute(route, self._name(route), before, staging, lost_at)

    def _check(self, route: str, table: OpenTable, mark: Mark) -> None:
        """Raise `TableUnavailable` if another program has changed the records of a table."""
        snapshots = table.metadata.snapshots
        own = next((one for one in snapshots if one.sequence_number == mark.sequence), None)
        total = None if own is None or own.summary is None else own.summary.get("total-records")
        before = Publication(
            self.group.key,
            last=mark.publication,
            snapshot=None if own is None else own.snapshot_id,
            records=None if total is None else int(total),
        )
        name = self._name(route)
        if conflict := table_conflict(name, before, table.metadata, self.group.io):
            raise TableUnavailable(conflict)

    def _new_table(self, route: str, columns: Columns) -> OpenTable:
        """Return the first state of a route's table; another catalog already has it."""
        location = f"{self.group.io.location}/{ROUTES_FOLDER}/{route}"
        properties = {
            **self.settings.properties,
            **SHARED_FILES,
            GROUP_KEY: str(self.group.key),
            ROUTE_KEY: route,
            FILES_PROPERTY: self.group.io.location,
        }
        own = columns_of_route(columns, route)
        metadata = new_metadata(location, own, properties, self.new_id())
        catalog = self.group.route_catalog(route)
        if isinstance(catalog, OtherCatalog):
            return catalog.create_without_lock(metadata)
        return OpenTable(metadata, "")

    def _files_by_route(self, main: TableMetadata) -> dict[str, _Files]:
        """Return the files of each route in the newest snapshot of the stream's table."""
        files: dict[str, _Files] = {}
        for path, shard, file in self._entries(main):
            if shard is not None and (route := route_of(path)):
                files.setdefault(route, {})[path] = (shard, file)
        return files

    def _entries(self, metadata: TableMetadata) -> Iterator[tuple[str, ShardId | None, DataFile]]:
        root = files_root(metadata)
        for entry in current_entries(self.group.io, OpenTable(metadata, "")):
            shard, file = ledger_file(metadata, root, entry)
            yield file.path, shard, file

    def _corrections(self, base: OpenTable, files: _Files, *, new: bool) -> list[SnapshotPlan]:
        """Return the snapshot that makes a route's table equal to the stream's table."""
        before = {path: shard for path, shard, _ in self._entries(base.metadata)}
        added = tuple(own for path, own in files.items() if path not in before)
        removed = {path: shard for path, shard in before.items() if path not in files}
        current = base.metadata.current_snapshot()
        deletes = (current.summary or {}).get("total-delete-files") if current else None
        if not (added or removed or new or deletes not in (None, "0")):
            return []
        operation = Operation.APPEND if new else Operation.OVERWRITE
        return [SnapshotPlan(operation, added, removed, without_deletes=not new)]

    def _staged(
        self,
        base: OpenTable,
        route: str,
        plans: Sequence[SnapshotPlan],
        mark: Mark,
        columns: Columns,
    ) -> Staging:
        settings = self.settings
        staging = Staging(
            self.group.io,
            base.metadata,
            self.now_ms(),
            lambda: self.new_id().int >> 66,
            lambda: self.new_id().hex,
        )
        staging.evolve(columns_of_route(columns, route), settings.partitioning, settings.sort_order)
        summary = {
            GROUP_KEY: str(self.group.key),
            ROUTE_KEY: route,
            PUBLICATION_KEY: mark.publication,
        }
        for number, plan in enumerate(plans):
            staging.add(plan, summary, empty=not number)
        if staging.missing:
            self.group.io.discard(staging.written)
            raise TableUnavailable(
                f"Another program has rewritten files of the table {self._name(route)}: {REMEDY}."
            )
        current = staging.metadata.current_snapshot()
        assert current is not None
        own = replace(mark, sequence=current.sequence_number or 0, states="")
        staging.set_properties({MARK_PROPERTY: str(own)})
        staging.expire(settings.snapshots_kept)
        return staging


def record_location(root: str, publication: str) -> str:
    """Return the location of the recorded changes of routes' tables."""
    return f"{root}/{METADATA_FOLDER}/{publication}.routes.json"


def _changes(plan: PublicationPlan) -> dict[str, tuple[_Change, ...] | None]:
    """Return the changes of a publication for each route with changed files."""
    changes: dict[str, list[_Change]] = {}
    for snapshot in plan.snapshots:
        added: dict[str, list[tuple[str, DataFile]]] = {}
        removed: dict[str, dict[str, str | None]] = {}
        for shard, file in snapshot.added:
            added.setdefault(route_of(file.path), []).append((shard, file))
        for path, shard in snapshot.removed.items():
            removed.setdefault(route_of(path), {})[path] = shard
        for route in filter(None, sorted({*added, *removed})):
            own = tuple(added.get(route, ())), removed.get(route, {})
            change = _Change(snapshot.operation.value, *own, snapshot.oldest_first)
            changes.setdefault(route, []).append(change)
    return {route: tuple(own) for route, own in sorted(changes.items())}


def _plan(change: _Change) -> SnapshotPlan:
    added = tuple((ShardId(shard), file) for shard, file in change.added)
    removed = {
        path: None if shard is None else ShardId(shard) for path, shard in change.removed.items()
    }
    operation = Operation(change.operation)
    return SnapshotPlan(operation, added, removed, oldest_first=change.oldest_first)
