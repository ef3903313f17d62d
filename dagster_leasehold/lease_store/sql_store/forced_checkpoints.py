"""Forced checkpoints in SQL: an operator's, and the first one of a pinned node."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from typing_extensions import override

from dagster_leasehold.lease_store.identifiers import GroupKey, NodeName, ShardId
from dagster_leasehold.lease_store.ledger_rows import Batch, BatchState
from dagster_leasehold.lease_store.outcomes import Changed, Stale
from dagster_leasehold.lease_store.publication_rows import ChangeKind
from dagster_leasehold.lease_store.roles.shards import Shards
from dagster_leasehold.lease_store.rules.refusals import unknown_shard
from dagster_leasehold.lease_store.rules.reopening import Forcing, Reopening, concerned, force
from dagster_leasehold.lease_store.rules.starting_point import bootstrap_reason, may_bootstrap
from dagster_leasehold.lease_store.rules.withdrawal import Ledger
from dagster_leasehold.lease_store.shard_rows import ShardLease
from dagster_leasehold.lease_store.sql_store import history_statements as history
from dagster_leasehold.lease_store.sql_store import ledger_statements, shard_statements
from dagster_leasehold.lease_store.sql_store.history_statements import page_sizes
from dagster_leasehold.lease_store.sql_store.ledger_statements import look_again
from dagster_leasehold.lease_store.sql_store.mapping import batch_from
from dagster_leasehold.lease_store.sql_store.publication_statements import lower_committed
from dagster_leasehold.lease_store.sql_store.table_changes import SqlTableChanges
from dagster_leasehold.lease_store.transactions import Transaction

WITHDRAWN_PER_STATEMENT = 10_000

_Lineage = tuple[list[ShardLease], dict[ShardId, Ledger]]


class SqlForcedCheckpoints(SqlTableChanges, Shards):
    """The verbs on shards that move a checkpoint, and withdraw what was committed behind it."""

    @override
    def force_checkpoint(
        self,
        key: GroupKey,
        shard: ShardId,
        cursor: str,
        *,
        observer: str,
        reason: str,
        reopen: Reopening = Reopening.REFUSE,
    ) -> Changed:
        def work(tx: Transaction) -> Changed:
            lineage = self._locked_lineage(tx, key, shard)
            forcing = self._forcing(tx, key, lineage, cursor, reason=reason, reopen=reopen)
            return self._force(tx, key, forcing, observer)

        return self._change("force_checkpoint", key, work)

    @override
    def bootstrap(
        self,
        key: GroupKey,
        shard: ShardId,
        node: NodeName,
        cursor: str,
        *,
        run: str,
        start: str | None = None,
    ) -> Changed | Stale:
        def work(tx: Transaction) -> Changed | Stale:
            lineage = self._locked_lineage(tx, key, shard)
            if not may_bootstrap(lineage[0][0], node, cursor, run):
                return tx.abandon(Stale())
            reason = bootstrap_reason(node, cursor, start)
            forcing = self._forcing(tx, key, lineage, start or cursor, reason=reason)
            return self._force(tx, key, forcing.bootstrapped(cursor), f"run {run}")

        return self._change("bootstrap", key, work)

    def _locked_lineage(self, tx: Transaction, key: GroupKey, shard: ShardId) -> _Lineage:
        """Return the rows that forcing a shard concerns, its own first, and their ledgers."""
        shards = {row.shard: row for row in self._all_shards(tx, key)}
        if shard not in shards:
            raise unknown_shard(key, shard)
        names = concerned(shards, shard)
        # A holder may commit until its row is locked, so the ledger is read after that.
        rows = self._lock_shards(tx, key, names)
        ledgers = {name: self._ledger(tx, key, name) for name in names}
        return [rows[name] for name in names], ledgers

    def _forcing(
        self,
        tx: Transaction,
        key: GroupKey,
        lineage: _Lineage,
        cursor: str,
        *,
        reason: str,
        reopen: Reopening = Reopening.REFUSE,
    ) -> Forcing:
        rows, ledgers = lineage
        expired = ledger_statements.select_expired(key, [row.shard for row in rows])
        return force(
            rows,
            ledgers,
            cursor,
            key=key,
            ordered=self._group(tx, key).ordered,
            members=self._members(tx, key),
            reason=reason,
            reopen=reopen,
            begins={
                ShardId(row["shard_id"]): row["expired"]["cursor"]
                for row in tx.connection.execute(expired).mappings()
            },
        )

    def _force(self, tx: Transaction, key: GroupKey, forcing: Forcing, observer: str) -> Changed:
        if not forcing.steps:
            return tx.abandon(Changed())
        for step in forcing.steps:
            self._abandon_intent(tx, key, step.after.shard)
            tx.connection.execute(shard_statements.raise_version(key, step.after.shard))
        for name, numbers in forcing.withdrawn.items():
            self._record_withdrawal(tx, key, name, numbers)
            # All in this transaction, but each statement within the time that one may take.
            for first in numbers[::WITHDRAWN_PER_STATEMENT]:
                part = numbers[numbers.index(first) :][:WITHDRAWN_PER_STATEMENT]
                tx.connection.execute(ledger_statements.withdraw_batches(key, name, part))
            tx.connection.execute(lower_committed(key, name, numbers[0]))
            tx.connection.execute(look_again(key, name, numbers[0]))
        self._journal(tx, key, forcing.marks, observer)
        return self._carry_out(tx, key, forcing.steps, observer)

    def _record_withdrawal(
        self, tx: Transaction, key: GroupKey, shard: ShardId, numbers: range
    ) -> None:
        def gone(until: int) -> Iterator[Batch]:
            reached = numbers[: max(until - numbers.start, 0)]
            return self._ledger(tx, key, shard)(numbers=reached, newest_first=False)

        self._record_removal(tx, key, shard, ChangeKind.WITHDRAWAL, gone)

    def _ledger(self, tx: Transaction, key: GroupKey, shard: ShardId) -> Ledger:
        """Return a reader of the committed batches of a shard whose row is locked."""

        def look(*, numbers: range, newest_first: bool) -> Iterator[Batch]:
            listing = history.batches_of(
                key, shard, BatchState.COMMITTED, numbers, newest_first=newest_first
            )
            last: list[Any] | None = None
            for size in page_sizes(1):
                (run,) = listing.after(last)
                rows = tx.rows(run.limit(size)).all()
                yield from map(batch_from, rows)
                if len(rows) < size:
                    return
                last = [rows[-1]["sequence"]]

        return look
