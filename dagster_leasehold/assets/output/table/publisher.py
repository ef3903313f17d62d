"""Publishing: committed files go from the ledger into the group's table.

1. Look: is anything committed, or changed, that the table does not show? If not, that is all.
2. Take the lock. Settle the pending publication, if there is one, and check that no other program
   has changed the records of the table.
3. Agree on the columns of files whose writer did not (files of versions before tables).
4. Stage: columns, snapshots, expiry; all of it in files that nothing names yet.
5. Publish: the catalog takes the staged state, and cursors and changes move with it.

Killed anywhere before 5, nothing happened, and vacuum removes the staged files. What the fifth step
does with each catalog is in `table.catalogs` and `table.other_catalog`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any
from uuid import UUID

from dagster_leasehold.assets.errors import TableMetadataGone, TableUnavailable
from dagster_leasehold.assets.output.folder_owner import owned
from dagster_leasehold.assets.output.table.agreement import ColumnAgreement
from dagster_leasehold.assets.output.table.catalogs import OpenTable, Published, TableCatalog
from dagster_leasehold.assets.output.table.columns import Column
from dagster_leasehold.assets.output.table.comparison import TableComparison
from dagster_leasehold.assets.output.table.data_files import FileForm
from dagster_leasehold.assets.output.table.footers import described
from dagster_leasehold.assets.output.table.maintenance import old_metadata, unnamed
from dagster_leasehold.assets.output.table.marks import (
    MARK_PROPERTY,
    PUBLICATION_KEY,
    REMEDY,
    Mark,
    mark_of,
    table_records,
    table_trouble,
)
from dagster_leasehold.assets.output.table.metadata_files import PlaceIO
from dagster_leasehold.assets.output.table.publication import (
    PublicationPlan,
    ShardFile,
    SnapshotPlan,
    plan_publication,
)
from dagster_leasehold.assets.output.table.publish_locks import LOST, MADE, STALE, PublishReport
from dagster_leasehold.assets.output.table.rolling_forward import RollingForward
from dagster_leasehold.assets.output.table.schemas import columns_of_table
from dagster_leasehold.assets.output.table.shard_states import (
    read_states,
    states_after,
    states_location,
    write_states,
)
from dagster_leasehold.assets.output.table.staging import (
    Operation,
    SnapshotContent,
    Staging,
    new_metadata,
)
from dagster_leasehold.assets.places.place import OutputPlace
from dagster_leasehold.assets.table_settings import TableSettings
from dagster_leasehold.lease_store import failpoints
from dagster_leasehold.lease_store.errors import LogCorrupt
from dagster_leasehold.lease_store.identifiers import GroupKey, ShardId
from dagster_leasehold.lease_store.ledger_rows import DataFile
from dagster_leasehold.lease_store.outcomes import LockOver, Settled, Stale
from dagster_leasehold.lease_store.publication_rows import (
    PlannedPublication,
    PublishLock,
    TableName,
)
from dagster_leasehold.lease_store.roles.publications import CHANGES_PER_PUBLICATION
from dagster_leasehold.lease_store.store import LedgerAndRewrites
from dagster_leasehold.lease_store.tracing import note, span

if TYPE_CHECKING:
    from pyiceberg.table.metadata import TableMetadata

GROUP_KEY = "leasehold.group"
ADOPTION_TAG = "before-adoption"
"""The beginning of the name of the snapshot before an adoption."""
NEW_TABLE_PROPERTIES = {
    # The publisher removes metadata files; these are for engines that commit as well.
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "20",
}


class _FilesMissing(Exception):
    """A snapshot was to take out files that the table lacks."""

    def __init__(self, paths: set[str]) -> None:
        super().__init__(f"The table lacks {len(paths)} files.")
        self.paths = paths


class Publisher:
    """Publishes the output of one group.

    Args:
        store: the ledger's side.
        key: the group.
        name: the table's.
        settings: of the table.
        catalog: the table's side.
        io: reads and writes manifests at the table's location.
        place: holds the group's output.
        location: the URI of the place, as the table names it.
        now_ms: milliseconds of the Unix epoch, which snapshots bear for people and time travel.
        new_id: gives a number of up to 62 bits that was never used.
    """

    def __init__(
        self,
        *,
        store: LedgerAndRewrites,
        key: GroupKey,
        name: TableName,
        settings: TableSettings,
        catalog: TableCatalog,
        io: PlaceIO,
        place: OutputPlace,
        location: str,
        now_ms: Callable[[], int],
        new_id: Callable[[], UUID],
    ) -> None:
        self._store = store
        self._key = key
        self._name = name
        self._settings = settings
        self._catalog = catalog
        self._io = io
        self._place = place
        self._location = location
        self._now_ms = now_ms
        self._new_id = new_id
        self._agreement = ColumnAgreement(store, key)

    @property
    def key(self) -> GroupKey:
        """The group."""
        return self._key

    @span("publication")
    def publish(self, lock: PublishLock) -> PublishReport:
        """Publish what waits, as one publication.

        Raises:
            TableUnavailable: the catalog or the output cannot be reached.
            TransformError: files of an earlier version do not fit the columns of the table.
            StoreError: the lease store does not answer.
        """
        note(stream=str(self._key.stream), group=str(self._key.group), epoch=lock.epoch)
        failpoints.reach("after_publish_lock")
        # The table first: if the lock is still held afterwards, only the pending publication can
        # have come between.
        table = self._catalog.find(self._name)
        now = self._store.publication(self._key)
        if now is None or now.epoch != lock.epoch:
            return LOST
        if now.pending is not None:
            outcome = self._catalog.resume(lock, self._name, table, now.pending)
            return self._after(outcome) or self.publish(lock)
        metadata = None if table is None else table.metadata
        if trouble := table_trouble(self._name, now, metadata, self._io):
            raise TableUnavailable(trouble)
        changes = self._store.pending_changes(self._key)
        backlog = self._store.unpublished(self._key)
        if not changes and not backlog:
            return PublishReport(explanation="Everything that is committed is published.")
        more = any(each.more for each in backlog) or len(changes) == CHANGES_PER_PUBLICATION
        missing = set[str]()
        while True:
            plan = plan_publication(
                backlog, changes, changes_max=CHANGES_PER_PUBLICATION, missing=missing
            )
            try:
                return self._carry_out(lock, table, plan, more=more)
            except _FilesMissing as lacking:
                # Each time there are more of them, and a change less that takes some out.
                missing |= lacking.paths

    def adopt(
        self, lock: PublishLock, tell: Callable[[str], None] = lambda _: None
    ) -> PublishReport:
        """Have the table show what counts as published, in one snapshot.

        A ledger that was restored from a backup is rolled forward to the table first. What the
        table lacks then is put in, and what the ledger does not name is taken out; the snapshot
        before is kept under a tag. A table that is gone, or whose metadata is, is recreated. No
        file of records is written or removed.

        Args:
            lock: to publish.
            tell: is given a sentence about each shard before it is rolled forward.

        Raises:
            TableUnavailable: the catalog or the output cannot be reached, or files of the table do
                not exist.
            StoreError: the lease store does not answer.
        """
        lost_at = ""
        try:
            table = self._catalog.find(self._name)
        except TableMetadataGone as error:
            table, lost_at = None, error.at
        now = self._store.publication(self._key)
        if now is not None and now.pending is not None:
            outcome = self._catalog.drop(lock, table, now.pending)
            if report := self._after(outcome):
                return report
        rolling = RollingForward(self.comparison, tell)
        newest = self._catalog.newest_state(self._name)
        ahead = rolling.shards(newest)
        if newest is None or not (ahead or table is None or rolling.on_the_way(newest)):
            ahead = rolling.shards(table)
        elif table is None and not lost_at:
            created = self._catalog.create(lock, self._name, newest.metadata)
            if isinstance(created, LockOver):
                return LOST
            table = created
        else:
            # Its next state takes the place of the one that the restored pointer names.
            at = table.at if table is not None else lost_at
            table, lost_at = OpenTable(newest.metadata, at), ""
            self._agreement.agree([columns_of_table(newest.metadata)])
        if rolling.carry_out(lock, ahead) is not None:
            return LOST
        added, removed, changes = self.comparison.corrections(table)
        gone_files = dict.fromkeys(removed)
        snapshot = SnapshotPlan(Operation.OVERWRITE, added, gone_files, without_deletes=True)
        plan = PublicationPlan((snapshot,), changes=changes)
        return self._carry_out(lock, table, plan, more=True, adopts=True, instead_of=lost_at)

    def _after(self, outcome: Published) -> PublishReport | None:
        """Return the report on a pending publication that could not be settled or dropped."""
        if isinstance(outcome, Stale):
            raise TableUnavailable(
                f"A publication of {self._key} is in its table, and the ledger does not fit it: "
                f"{REMEDY}."
            )
        return LOST if isinstance(outcome, LockOver) else None

    @property
    def comparison(self) -> TableComparison:
        """The comparison of the table with the ledger."""
        return TableComparison(
            self._store, self._key, self._name, self._catalog, self._io, self._place
        )

    def remove_orphans(self, lock: PublishLock, *, older_than: timedelta) -> int:
        """Remove files of metadata that nothing names; return their number.

        Files are removed only while holding the lock, and never while a publication is pending:
        its files are in the table once it arrives.

        Raises:
            TableUnavailable: the catalog does not answer.
            OSError: the files cannot be listed or removed.
            StoreError: the lease store does not answer.
        """
        owned(self._store, self._place, again=True)
        # In this order: see `table.maintenance`.
        old = old_metadata(self._place, older_than)
        table = self._catalog.find(self._name) if old else None
        newest = self._catalog.newest_state(self._name) if old else None
        orphans = unnamed(self._io, filter(None, (table, newest)), old) if table else ()
        publication = self._store.publication(self._key)
        if publication is None or publication.epoch != lock.epoch or publication.pending:
            return 0
        for path in orphans:
            (self._place / path).remove(missing_ok=True)
        return len(orphans)

    def _carry_out(
        self,
        lock: PublishLock,
        table: OpenTable | None,
        plan: PublicationPlan,
        *,
        more: bool,
        adopts: bool = False,
        instead_of: str = "",
    ) -> PublishReport:
        """Stage a plan behind a table as it was seen, and commit it.

        Args:
            lock: to publish.
            table: None where there is none.
            plan: the next publication.
            more: True if there is more to publish than the plan.
            adopts: True if the table is made to follow the ledger in all of its shards.
            instead_of: where the pointer is, if the metadata there is gone; the table starts over.
        """
        owned(self._store, self._place)
        plan = self._with_columns(plan)
        columns = [dict(column) for column in self._agreement.agree(()).columns]
        if instead_of:
            table = OpenTable(self._new_table(columns), instead_of)
        elif table is None:
            created = self._catalog.create(lock, self._name, self._new_table(columns))
            if isinstance(created, LockOver):
                return LOST
            table = created
            if table.metadata.snapshots:
                return MADE
        _check_location(table, self._name, self._location)
        planned, staging = self._staged(lock, table, plan, columns, adopts=adopts)
        failpoints.reach("after_stage")
        outcome = self._catalog.publish(lock, self._name, table, staging, planned)
        if isinstance(outcome, Settled):
            if (before := mark_of(table.metadata)) is not None and before.states:
                self._io.discard([before.states])
            note(batches=plan.batches, records=plan.records, snapshot=planned.snapshot)
            counts = (plan.batches, plan.records, len(plan.changes))
            return PublishReport(*counts, more, snapshot=planned.snapshot, rejected=plan.rejected)
        return LOST if isinstance(outcome, LockOver) else STALE

    def _with_columns(self, plan: PublicationPlan) -> PublicationPlan:
        """Return the plan with all that is to be known of its files; agree on their columns.

        The writers of today's version do so before they commit. A file of an earlier one is looked
        into.
        """
        columns: list[Sequence[Column]] = []
        agreed = self._agreement.agree(()).version

        def complete(pair: ShardFile) -> ShardFile:
            shard, file = pair
            if file.untimed is not None and agreed:
                return pair
            file, own = described(self._place, file)
            if own not in columns:
                columns.append(own)
            return shard, file

        snapshots = tuple(
            replace(snapshot, added=tuple(complete(pair) for pair in snapshot.added))
            for snapshot in plan.snapshots
        )
        if columns:
            self._agreement.agree(columns)
        return replace(plan, snapshots=snapshots)

    def _new_table(self, columns: list[Column]) -> TableMetadata:
        own = {GROUP_KEY: str(self._key)}
        properties = NEW_TABLE_PROPERTIES | dict(self._settings.properties) | own
        return new_metadata(self._location, columns, properties, self._new_id())

    @span("stage")
    def _staged(
        self,
        lock: PublishLock,
        table: OpenTable,
        plan: PublicationPlan,
        columns: list[Column],
        *,
        adopts: bool,
    ) -> tuple[PlannedPublication, Staging]:
        """Write the snapshots of a publication, and return them with the store's note of it."""
        number = self._new_id().hex
        staging = Staging(
            self._io, table.metadata, self._now_ms(), self._snapshot_id, lambda: self._new_id().hex
        )
        settings = self._settings
        staging.evolve(columns, settings.partitioning, settings.sort_order)
        staging.set_properties(settings.properties)
        before = table.metadata.current_snapshot()
        form = FileForm(staging.metadata.schema(), staging.specs, self._location)
        marks = {GROUP_KEY: str(self._key), PUBLICATION_KEY: number}
        for snapshot in plan.snapshots:
            counts = {
                "leasehold.batches": str(snapshot.batches),
                "leasehold.records": str(snapshot.records),
            }
            content = SnapshotContent(
                snapshot.operation,
                _entries(form, snapshot.added),
                {form.location(path): shard for path, shard in snapshot.removed.items()},
                marks | counts,
                snapshot.oldest_first,
                snapshot.without_deletes,
            )
            staging.add(content)
            if staging.missing:
                self._io.discard(staging.written)
                root = form.location("")
                raise _FilesMissing({each.removeprefix(root) for each in staging.missing})
        if staging.metadata.current_snapshot() == before:
            # Batches without records, or changes that were rejected: the cursors move with a
            # snapshot that changes nothing.
            last = plan.snapshots[-1] if plan.snapshots else SnapshotPlan(Operation.APPEND)
            repairs = last.without_deletes
            content = SnapshotContent(
                last.operation if repairs else Operation.APPEND,
                summary=marks,
                without_deletes=repairs,
            )
            staging.add(content, empty=True)
        current = staging.metadata.current_snapshot()
        assert current is not None
        at = states_location(table.metadata.location, number)
        mark = Mark(number, current.sequence_number or 0, self._next_number(), lock.epoch, at)
        before_plan = None if adopts else mark_of(table.metadata)
        self._write_states(at, before_plan, plan)
        staging.written.append(at)
        staging.set_properties({MARK_PROPERTY: str(mark)})
        if before and any(each.without_deletes and each.removed for each in plan.snapshots):
            # What an adoption takes out can be nowhere else.
            staging.tag(f"{ADOPTION_TAG}-{current.snapshot_id}", before.snapshot_id)
        staging.expire(settings.snapshots_kept)
        base = None if before is None else before.snapshot_id
        records = table_records(self._io, staging.metadata)
        planned = PlannedPublication(
            number, current.snapshot_id, base, plan.ranges, plan.changes, records
        )
        return planned, staging

    def _next_number(self) -> int:
        publication = self._store.publication(self._key)
        return 1 if publication is None else publication.number + 1

    def _write_states(self, at: str, before: Mark | None, plan: PublicationPlan) -> None:
        """Write how far the table will have each shard; see `shard_states`."""
        states = None
        if before is not None and before.states:
            try:
                states = read_states(self._io, before.states)
            except LogCorrupt:
                states = None  # they are looked up in the ledger
        write_states(self._io, at, states_after(self._store, self._key, states, plan))

    def _snapshot_id(self) -> int:
        return self._new_id().int >> 66


def _check_location(table: OpenTable, name: TableName, location: str) -> None:
    if table.metadata.location.rstrip("/") != location:
        raise TableUnavailable(
            f"The table {name.namespace}.{name.name} lies at {table.metadata.location}, and the "
            f"stream's output at {location}: set the setting output back, or give the stream "
            "another table name."
        )


def _entries(form: FileForm, files: Sequence[tuple[ShardId, DataFile]]) -> list[Any]:
    return [form.data_file(shard, file) for shard, file in files]
