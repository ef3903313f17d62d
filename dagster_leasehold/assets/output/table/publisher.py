"""Publishes committed files from the ledger into the table of the group.

1. Check whether the ledger has batches or changes that the table does not show. If not, stop.
2. Take the lock. Settle the pending publication, if any, and check that no other program has
   changed the records of the table.
3. Stage columns, snapshots and expiry, in files that no metadata names yet.
4. Publish: the catalog switches to the staged state, and cursors and changes move with it.

If a publisher is killed before step 4, the table is unchanged, and vacuum removes the staged files.
Step 4 depends on the catalog: see `table.catalogs` and `table.other_catalog`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import timedelta
from itertools import zip_longest
from typing import TYPE_CHECKING
from uuid import UUID

from dagster_leasehold.assets.errors import TableMetadataGone, TableUnavailable
from dagster_leasehold.assets.output.folder_owner import owned
from dagster_leasehold.assets.output.table.catalogs import GroupTable, OpenTable
from dagster_leasehold.assets.output.table.columns import ColumnAgreement, Columns
from dagster_leasehold.assets.output.table.comparison import TableComparison
from dagster_leasehold.assets.output.table.completeness import Completeness, ShardsSeen
from dagster_leasehold.assets.output.table.maintenance import old_metadata, orphaned_files
from dagster_leasehold.assets.output.table.marks import (
    GROUP_KEY,
    MARK_PROPERTY,
    PUBLICATION_KEY,
    REMEDY,
    Mark,
    mark_of,
    table_conflict,
    table_records,
)
from dagster_leasehold.assets.output.table.publication import (
    Operation,
    PublicationPlan,
    SnapshotPlan,
    plan_publication,
)
from dagster_leasehold.assets.output.table.publication_audit import CheckedBacklog, PublicationAudit
from dagster_leasehold.assets.output.table.publish_locks import CREATED, LOST, STALE, PublishReport
from dagster_leasehold.assets.output.table.rolling_forward import RollingForward
from dagster_leasehold.assets.output.table.route_tables import RouteTables
from dagster_leasehold.assets.output.table.schemas import columns_of_table
from dagster_leasehold.assets.output.table.shard_states import (
    States,
    Watermark,
    read_states,
    states_location,
    states_of_snapshots,
    write_states,
)
from dagster_leasehold.assets.output.table.snapshot_contents import (
    completeness_of,
    cursor_files,
    in_summary,
    own_snapshot,
    summary_of,
)
from dagster_leasehold.assets.output.table.staging import Staging, new_metadata
from dagster_leasehold.assets.table_settings import TableSettings
from dagster_leasehold.lease_store import failpoints
from dagster_leasehold.lease_store.errors import LogCorrupt
from dagster_leasehold.lease_store.identifiers import GroupKey, ShardId
from dagster_leasehold.lease_store.outcomes import LockOver, Settled, Stale
from dagster_leasehold.lease_store.publication_rows import (
    PlannedPublication,
    PublishLock,
    ShardBacklog,
)
from dagster_leasehold.lease_store.roles.publications import (
    BACKLOG_BATCHES,
    CHANGES_PER_PUBLICATION,
)
from dagster_leasehold.lease_store.tracing import note, span

if TYPE_CHECKING:
    from pyiceberg.table.metadata import TableMetadata

ADOPTION_TAG = "before-adoption"
"""The prefix of the tag of the snapshot before an adoption."""
NEW_TABLE_PROPERTIES = {
    # For commits of other engines: the publisher removes metadata files itself.
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "20",
}


class _FilesMissing(Exception):
    """A snapshot removes files that the table lacks."""

    def __init__(self, paths: set[str]) -> None:
        super().__init__(f"The table lacks {len(paths)} files.")
        self.paths = paths


def first_metadata(
    key: GroupKey, settings: TableSettings, location: str, columns: Columns, new_id: UUID
) -> TableMetadata:
    """Return the metadata of a group's new table."""
    properties = NEW_TABLE_PROPERTIES | dict(settings.properties) | {GROUP_KEY: str(key)}
    return new_metadata(location, columns, properties, new_id)


@dataclass(eq=False, repr=False)
class Publisher:
    """Publishes the output of one group.

    Attributes:
        now_ms: returns milliseconds of the Unix epoch, to date snapshots for time travel.
        new_id: returns an id that was never used.
        watermark: returns the largest event time of a batch, or None.
    """

    group: GroupTable
    settings: TableSettings
    now_ms: Callable[[], int]
    new_id: Callable[[], UUID]
    watermark: Watermark = lambda _: None
    _agreement: ColumnAgreement = field(init=False)
    _routes: RouteTables = field(init=False)

    def __post_init__(self) -> None:
        self._routes = RouteTables(self.group, self.settings, self.now_ms, self.new_id)
        self._agreement = ColumnAgreement(self.group.store, self.group.key)

    @property
    def key(self) -> GroupKey:
        """The group."""
        return self.group.key

    @property
    def comparison(self) -> TableComparison:
        """The comparison of the table with the ledger."""
        return TableComparison(self.group)

    @span("publication")
    def publish(
        self, lock: PublishLock, seen: ShardsSeen | None = None, *, columns: bool = False
    ) -> PublishReport:
        """Publish waiting batches and changes, as one publication.

        Args:
            seen: the shards, read before the lock was taken; None if they are unknown.
            columns: True to publish changed columns even if nothing else waits.

        Raises:
            TableUnavailable: the catalog or the output cannot be reached.
        """
        note(stream=str(self.group.key.stream), group=str(self.group.key.group), epoch=lock.epoch)
        failpoints.reach("after_publish_lock")
        # The table is read first. If the lock is still held afterwards, only the pending
        # publication could have changed the table in between.
        table = self.group.catalog.find()
        now = self.group.store.publication(self.group.key)
        if now is None or now.epoch != lock.epoch:
            return LOST
        if now.pending is not None:
            settled = self._settle(lock, table, now.pending, resend=True)
            return settled or self.publish(lock, seen, columns=columns)
        metadata = None if table is None else table.metadata
        if conflict := table_conflict(self.group.name, now, metadata, self.group.io):
            raise TableUnavailable(conflict)
        changes = self.group.store.pending_changes(self.group.key)
        held = [] if seen is None else self.group.store.held_shards(self.group.key)
        backlog = self.group.store.unpublished(self.group.key)
        if not changes and not backlog and not columns:
            return PublishReport(explanation="Everything that is committed is published.")
        if isinstance(checked := self._checked(lock, backlog), LockOver):
            return LOST
        behind = dict.fromkeys([*held, *(each.shard for each in backlog)], True)
        behind |= {each.shard: each.more for each in checked.backlog}
        complete = self._completeness(metadata, seen, behind)
        backlog, findings = checked.backlog, tuple(checked.findings)
        more = checked.more or len(changes) == CHANGES_PER_PUBLICATION
        more = more or any(each.more for each in backlog)
        if not (changes or backlog or columns):
            explanation = "" if more else "No waiting batch passed its checks."
            return PublishReport(more=more, explanation=explanation, findings=findings)
        missing = set[str]()
        while True:
            plan = plan_publication(
                backlog, changes, changes_max=CHANGES_PER_PUBLICATION, missing=missing
            )
            try:
                report = self._carry_out(lock, table, plan, replace(complete), more=more)
                return replace(report, findings=findings)
            except _FilesMissing as error:
                # The loop ends: each plan excludes at least one more change.
                missing |= error.paths

    def check_held(self, lock: PublishLock) -> int:
        """Check held batches again with the current checks; return how many holds ended."""
        return self._audit.check_held(lock)

    @property
    def _audit(self) -> PublicationAudit:
        group, checks = self.group, self.settings.publication_checks
        names = self._agreement.earlier_names()
        return PublicationAudit(group.store, group.key, group.place, checks, names)

    def _checked(
        self, lock: PublishLock, backlog: Sequence[ShardBacklog]
    ) -> CheckedBacklog | LockOver:
        if not (self.settings.publication_checks and backlog):
            return CheckedBacklog([*backlog])
        return self._audit.check(lock, backlog)

    def adopt(
        self, lock: PublishLock, log: Callable[[str], None] = lambda _: None
    ) -> PublishReport:
        """Make the table match the published part of the ledger, in one snapshot.

        First, a ledger that was restored from a backup is rolled forward to the table. Then files
        that the table lacks are added, and files that the ledger does not name are removed; a tag
        keeps the snapshot before. A table without metadata is recreated. No data file is written or
        deleted.

        Args:
            log: receives a sentence about each shard before it is rolled forward.

        Raises:
            TableUnavailable: the catalog or the output cannot be reached, or files of the table do
                not exist.
        """
        self._routes.corrects = True
        try:
            return self._adopt(lock, log)
        finally:
            self._routes.corrects = False

    def _adopt(self, lock: PublishLock, log: Callable[[str], None]) -> PublishReport:
        lost_at = ""
        try:
            table = self.group.catalog.find()
        except TableMetadataGone as error:
            table, lost_at = None, error.at
        now = self.group.store.publication(self.group.key)
        pending = None if now is None else now.pending
        if pending and (report := self._settle(lock, table, pending, resend=False)):
            return report
        rolling = RollingForward(self.group, log)
        newest = self.group.catalog.newest_state()
        ahead = rolling.shards(newest)
        if newest is None or not (ahead or table is None or rolling.in_progress(newest)):
            ahead = rolling.shards(table)
        elif table is None and not lost_at:
            created = self.group.catalog.create(lock, newest.metadata)
            if isinstance(created, LockOver):
                return LOST
            table = created
        else:
            # The next state replaces the state that the restored pointer names.
            at = table.at if table is not None else lost_at
            table, lost_at = OpenTable(newest.metadata, at), ""
        if table is not None:
            self._agreement.agree([columns_of_table(table.metadata)])
        if rolling.carry_out(lock, ahead) is not None:
            return LOST
        added, removed, changes = self.comparison.corrections(table)
        removed_files = dict.fromkeys(removed)
        snapshot = SnapshotPlan(Operation.OVERWRITE, added, removed_files, without_deletes=True)
        plan = PublicationPlan((snapshot,), changes=changes)
        return self._carry_out(lock, table, plan, more=True, adopts=True, instead_of=lost_at)

    def _settle(
        self,
        lock: PublishLock,
        table: OpenTable | None,
        pending: PlannedPublication,
        *,
        resend: bool,
    ) -> PublishReport | None:
        """Settle the pending publication; return a report if the lock is over."""
        outcome = self.group.catalog.settle(lock, table, pending, resend=resend)
        if isinstance(outcome, Stale):
            raise TableUnavailable(
                f"A publication of {self.group.key} is in its table, but does not match the "
                f"ledger: {REMEDY}."
            )
        return LOST if isinstance(outcome, LockOver) else None

    def remove_orphans(self, lock: PublishLock, *, older_than: timedelta) -> int:
        """Remove orphaned metadata files; return their number.

        Files are removed only while holding the lock, and never while a publication is pending,
        because its request can still add its files to the table.
        """
        owned(self.group.store, self.group.place, again=True)
        # The order matters: see `table.maintenance`.
        old = old_metadata(self.group.place, older_than)
        table = self.group.catalog.find() if old else None
        newest = self.group.catalog.newest_state() if old else None
        routes = self._routes.tables() if old else ()
        tables = filter(None, (table, newest, *routes))
        orphans = orphaned_files(self.group.io, tables, old) if table else ()
        publication = self.group.store.publication(self.group.key)
        if publication is None or publication.epoch != lock.epoch or publication.pending:
            return 0
        for path in orphans:
            (self.group.place / path).remove(missing_ok=True)
        return len(orphans)

    def _carry_out(
        self,
        lock: PublishLock,
        table: OpenTable | None,
        plan: PublicationPlan,
        complete: Completeness | None = None,
        *,
        more: bool,
        adopts: bool = False,
        instead_of: str = "",
    ) -> PublishReport:
        """Stage a plan on top of a state of the table, and commit it.

        Args:
            table: the state, or None if there is no table.
            plan: the next publication.
            complete: determines the event time up to which the snapshots are complete; None if it
                is unknown.
            more: True if more than the plan waits for publication.
            adopts: True if the table adopts the ledger in all shards.
            instead_of: the location of lost metadata, which the pointer names; the table starts
                over.
        """
        owned(self.group.store, self.group.place)
        if instead_of:
            table = OpenTable(self._new_table(), instead_of)
        elif table is None:
            created = self.group.catalog.create(lock, self._new_table())
            if isinstance(created, LockOver):
                return LOST
            table = created
            if table.metadata.snapshots:
                return CREATED
        self._check_location(table)
        if adopts or complete is None:
            complete = Completeness()
        planned, staging = self._staged(lock, table, plan, complete, adopts=adopts)
        failpoints.reach("after_stage")
        mark = mark_of(staging.metadata)
        assert mark is not None, "A staged publication has a mark."
        routes = self._routes.prepared(mark, plan, staging)
        outcome = self.group.catalog.publish(lock, table, staging, planned, routes)
        if isinstance(outcome, Settled):
            if (before := mark_of(table.metadata)) is not None and before.states:
                self.group.io.discard({before.states} - cursor_files(staging.metadata))
            note(batches=plan.batches, records=plan.records, snapshot=planned.snapshot)
            counts = (plan.batches, plan.records, len(plan.changes))
            return PublishReport(*counts, more, snapshot=planned.snapshot, rejected=plan.rejected)
        return LOST if isinstance(outcome, LockOver) else STALE

    def _new_table(self) -> TableMetadata:
        location = self.group.io.location
        return first_metadata(self.key, self.settings, location, self._columns(), self.new_id())

    def _columns(self) -> Columns:
        # They change while another process holds the lock.
        return [dict(column) for column in self._agreement.read().columns]

    @span("stage")
    def _staged(
        self,
        lock: PublishLock,
        table: OpenTable,
        plan: PublicationPlan,
        complete: Completeness,
        *,
        adopts: bool,
    ) -> tuple[PlannedPublication, Staging]:
        """Write the snapshots of a publication; return its row for the store, and the snapshots."""
        number, io, settings = self.new_id().hex, self.group.io, self.settings
        staging = Staging(
            io, table.metadata, self.now_ms(), self._snapshot_id, lambda: self.new_id().hex
        )
        staging.evolve(self._columns(), settings.partitioning, settings.sort_order)
        staging.set_properties(settings.properties)
        before = table.metadata.current_snapshot()
        states = states_of_snapshots(
            self.group.store,
            self.group.key,
            None if adopts else self._states(table.metadata),
            plan,
            self.watermark,
        )
        at = self._add_snapshots(number, plan, staging, states, complete)
        current = staging.metadata.current_snapshot()
        assert current is not None
        mark = Mark(number, current.sequence_number or 0, self._next_number(), lock.epoch, at)
        staging.set_properties({MARK_PROPERTY: str(mark)})
        if before and any(each.without_deletes and each.removed for each in plan.snapshots):
            # Only this tag keeps files that an adoption removes.
            staging.tag(f"{ADOPTION_TAG}-{current.snapshot_id}", before.snapshot_id)
        staging.expire(settings.snapshots_kept)
        base = None if before is None else before.snapshot_id
        records = table_records(io, staging.metadata)
        planned = PlannedPublication(
            number, current.snapshot_id, base, plan.ranges, plan.changes, records
        )
        return planned, staging

    def _add_snapshots(
        self,
        number: str,
        plan: PublicationPlan,
        staging: Staging,
        each_states: Iterator[States],
        complete: Completeness,
    ) -> str:
        """Stage the snapshots of a publication; return the location of the states after it."""
        before, root = staging.metadata.current_snapshot(), staging.metadata.location
        marks = {GROUP_KEY: str(self.group.key), PUBLICATION_KEY: number}
        own, at, final = dict[str, str](), "", len(plan.snapshots)
        for place, (snapshot, states) in enumerate(zip_longest(plan.snapshots, each_states), 1):
            at = states_location(root, number, 0 if place >= final else place)
            if place >= final or not in_summary(states):
                write_states(self.group.io, at, states)
                staging.written.append(at)
            own = marks | summary_of(states, at, complete.after(states, snapshot))
            if snapshot is None:
                continue
            counts = {
                "leasehold.batches": str(snapshot.batches),
                "leasehold.records": str(snapshot.records),
            }
            # Cursors that move after a snapshot of changes need a snapshot, too.
            moves = place > 1 and bool(snapshot.committed)
            staging.add(snapshot, own | counts, empty=moves)
            if staging.missing:
                self.group.io.discard(staging.written)
                raise _FilesMissing(staging.missing)
        if staging.metadata.current_snapshot() == before:
            # For batches without records or rejected changes, an empty snapshot moves the cursors.
            repairs = bool(plan.snapshots) and plan.snapshots[-1].without_deletes
            operation = plan.snapshots[-1].operation if repairs else Operation.APPEND
            staging.add(SnapshotPlan(operation, without_deletes=repairs), own, empty=True)
        return at

    def _next_number(self) -> int:
        publication = self.group.store.publication(self.group.key)
        return 1 if publication is None else publication.number + 1

    def _states(self, before: TableMetadata) -> States | None:
        """Return the published part of each shard; None if it is unknown."""
        if (mark := mark_of(before)) is not None:
            # If the file is damaged, the states are read from the ledger.
            with suppress(LogCorrupt):
                return read_states(self.group.io, mark.states)
        return None

    def _completeness(
        self,
        metadata: TableMetadata | None,
        seen: ShardsSeen | None,
        behind: Mapping[ShardId, bool],
    ) -> Completeness:
        """Return the rule for the next snapshots; `behind` was read after the shards."""
        newest = None if metadata is None else metadata.current_snapshot()
        own = None if metadata is None else own_snapshot(metadata, newest)
        until = completeness_of(own)
        # If the backlog reaches this limit, other shards may also have unpublished batches.
        if seen is None or len(behind) >= BACKLOG_BATCHES:
            return Completeness(until)
        gaps = self.group.store.gaps(self.group.key, acknowledged=False)
        return Completeness(
            until,
            seen,
            behind=behind,
            gaps=any(gap.skipped for gap in gaps),
            out_of_order_s=self.settings.out_of_order_s,
        )

    def _snapshot_id(self) -> int:
        return self.new_id().int >> 66

    def _check_location(self, table: OpenTable) -> None:
        if table.metadata.location.rstrip("/") != self.group.io.location:
            name = self.group.name
            raise TableUnavailable(
                f"The table {name.namespace}.{name.name} is at {table.metadata.location}, and the "
                f"stream's output is at {self.group.io.location}: change the setting output back, "
                "or give the stream another table name."
            )
