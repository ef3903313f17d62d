"""Changes of groups' tables in SQL: left by whatever changes output that may be published."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import datetime

import sqlalchemy as sa

from dagster_leasehold.lease_store.identifiers import GroupKey, ShardId
from dagster_leasehold.lease_store.ledger_rows import Batch
from dagster_leasehold.lease_store.publication_rows import ChangeKind, TableChange
from dagster_leasehold.lease_store.roles.publications import CHANGES_PER_PUBLICATION
from dagster_leasehold.lease_store.rules.publishing import Border, border_of, changes_of_removal
from dagster_leasehold.lease_store.shard_summary import CHANGES_KEPT, PORTION_ROWS, Portion
from dagster_leasehold.lease_store.sql_store import publication_statements as statements
from dagster_leasehold.lease_store.sql_store.group_statements import insert_into
from dagster_leasehold.lease_store.sql_store.mapping import key_values
from dagster_leasehold.lease_store.sql_store.publication_mapping import (
    CHANGE,
    change_values,
    pending_from,
)
from dagster_leasehold.lease_store.sql_store.verbs import SqlVerbs
from dagster_leasehold.lease_store.tables import table_change
from dagster_leasehold.lease_store.transactions import Transaction


class SqlTableChanges(SqlVerbs):
    """The base of the roles that change output which may be published; and the changes."""

    def pending_changes(
        self, key: GroupKey, *, after: int = 0, limit: int = CHANGES_PER_PUBLICATION
    ) -> list[TableChange]:
        """Return changes that are not published, in order, behind the number `after`."""

        def work(tx: Transaction) -> list[sa.RowMapping]:
            self._group(tx, key)
            return list(tx.rows(statements.select_changes(key, after=after, limit=limit)))

        return [CHANGE.read(row) for row in self._read("pending_changes", work)]

    def prune_changes(
        self, key: GroupKey, *, before: datetime, keep: int = CHANGES_KEPT
    ) -> Portion:
        """Delete the oldest published changes; one that is pending never goes."""

        def work(tx: Transaction) -> Portion:
            self._group(tx, key)
            below = tx.value(statements.first_kept_change(key, keep))
            if below is None:
                return tx.abandon(Portion())
            chosen = statements.select_published(key, below=below, limit=PORTION_ROWS)
            old = [number for number, at in tx.connection.execute(chosen).all() if at < before]
            if not old:
                return tx.abandon(Portion())
            gone = tx.connection.execute(statements.delete_changes(old)).rowcount
            return Portion(gone, more=len(old) == PORTION_ROWS)

        return self._write("prune_changes", work)

    def _border(self, tx: Transaction, key: GroupKey, shard: ShardId) -> Border | None:
        """Return the border of a shard whose row is locked; None where nobody publishes."""
        row = tx.rows(statements.select_border(key, shard)).first()
        if row is None:
            return None
        return border_of(shard, row["published_until"], pending_from(row))

    def _record_removal(
        self,
        tx: Transaction,
        key: GroupKey,
        shard: ShardId,
        kind: ChangeKind,
        gone: Callable[[int], Iterable[Batch]],
    ) -> None:
        """Have the table follow, where some batches of a shard are committed output no more.

        `gone` reads those of them with numbers below one, as they were before; the shard's row is
        locked.
        """
        border = self._border(tx, key, shard)
        if border is not None:
            reached = gone(border.reached)
            changes = changes_of_removal(kind, shard, reached, border.published)
            self._record_changes(tx, key, changes)

    def _record_changes(
        self, tx: Transaction, key: GroupKey, changes: Iterable[TableChange]
    ) -> None:
        rows = [key_values(key) | change_values(change, self._clock()) for change in changes]
        if rows:
            tx.connection.execute(insert_into(table_change), rows)
