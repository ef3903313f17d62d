"""Changes of groups' tables in memory: left by whatever changes output that may be published."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from datetime import datetime

from dagster_leasehold.lease_store.identifiers import GroupKey, ShardId
from dagster_leasehold.lease_store.ledger_rows import Batch
from dagster_leasehold.lease_store.memory_store.memory_transactions import MemoryRows
from dagster_leasehold.lease_store.memory_store.rows import GroupRows
from dagster_leasehold.lease_store.publication_rows import ChangeKind, TableChange
from dagster_leasehold.lease_store.roles.publications import CHANGES_PER_PUBLICATION
from dagster_leasehold.lease_store.rules.publishing import Border, border_of, changes_of_removal
from dagster_leasehold.lease_store.shard_summary import CHANGES_KEPT, Portion


class MemoryTableChanges(MemoryRows):
    """The base of the roles that change output which may be published; and the changes."""

    def pending_changes(
        self, key: GroupKey, *, after: int = 0, limit: int = CHANGES_PER_PUBLICATION
    ) -> list[TableChange]:
        """Return changes that are not published, in order, behind the number `after`."""
        with self._rows("pending_changes", key) as rows:
            return [change for number, change in rows.changes.items() if number > after][:limit]

    def prune_changes(
        self, key: GroupKey, *, before: datetime, keep: int = CHANGES_KEPT
    ) -> Portion:
        """Do nothing: a published change is gone here at once."""
        del before, keep
        with self._rows("prune_changes", key):
            return Portion()

    def _border(self, rows: GroupRows, shard: ShardId) -> Border | None:
        """Return the border of a shard; None where nobody publishes."""
        if not rows.publishing.epoch:
            return None
        assert rows.publication is not None
        return border_of(shard, rows.published[shard], rows.publication.pending)

    def _record_removal(
        self, rows: GroupRows, shard: ShardId, kind: ChangeKind, gone: Iterable[Batch]
    ) -> None:
        """Have the table follow, where some batches of a shard are committed output no more."""
        border = self._border(rows, shard)
        if border is not None:
            reached = [batch for batch in gone if batch.sequence < border.reached]
            changes = changes_of_removal(kind, shard, reached, border.published)
            self._record_changes(rows, changes)

    def _record_changes(self, rows: GroupRows, changes: Iterable[TableChange]) -> None:
        for change in changes:
            sequence = self._next_sequence()
            rows.changes[sequence] = replace(change, sequence=sequence)
