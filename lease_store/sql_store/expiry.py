"""Forgetting committed output that has expired, in SQL: each verb is one bounded transaction."""

from __future__ import annotations

from datetime import datetime

from typing_extensions import override

from dagster_leasehold.lease_store.identifiers import GroupKey, ShardId
from dagster_leasehold.lease_store.ledger_rows import Batch, BatchState
from dagster_leasehold.lease_store.rules import expiry as rules
from dagster_leasehold.lease_store.shard_summary import Portion
from dagster_leasehold.lease_store.sql_store import history_statements as history
from dagster_leasehold.lease_store.sql_store import retention_statements as statements
from dagster_leasehold.lease_store.sql_store import shard_statements
from dagster_leasehold.lease_store.sql_store.mapping import ENTRY, GAP, batch_from
from dagster_leasehold.lease_store.sql_store.retention import SqlRetention
from dagster_leasehold.lease_store.transactions import Transaction

ROWS_READ = (200, 1_000, 5_000)
"""The numbers of rows to read: more, if all that were read share one merged file."""


class SqlExpiry(SqlRetention):
    """The verbs that forget output. The shard's row is locked first, then its summary."""

    @override
    def expirable(self, key: GroupKey, shard: ShardId, *, before: datetime) -> list[Batch]:
        def work(tx: Transaction) -> list[Batch]:
            self._group(tx, key)
            return self._ripe(tx, key, shard, before)

        rows = self._read("expirable", work)
        return [row for row in rows if row.state is BatchState.COMMITTED]

    @override
    def expire_batches(
        self, key: GroupKey, shard: ShardId, *, before: datetime, through: int
    ) -> Portion:
        def work(tx: Transaction) -> Portion:
            self._group(tx, key)
            self._lock_shard(tx, key, shard)
            ripe = self._ripe(tx, key, shard, before, through)
            if not ripe:
                return tx.abandon(Portion())
            summary = self._locked_summary(tx, key, shard)
            epochs = {row.epoch for row in ripe if row.sequence >= summary.proven_until}
            opened = statements.select_openings(key, shard, epochs)
            forced = statements.select_forced(key, shard)
            gaps = history.all_gaps(key, shard, None, None).rows
            run = tx.connection.execute
            outcome = rules.expire(
                summary,
                ripe,
                journal=[
                    ENTRY.read(row)
                    for statement in ((opened, forced) if epochs else (forced,))
                    for row in run(statement).mappings()
                ],
                gaps=map(GAP.read, run(gaps).mappings()),
            )
            self._write_summary(tx, key, summary, outcome.summary)
            run(statements.delete_batches(key, shard, outcome.gone))
            run(shard_statements.raise_version(key, shard))
            return Portion(len(outcome.gone), more=True)

        return self._write("expire_batches", work)

    def _ripe(
        self,
        tx: Transaction,
        key: GroupKey,
        shard: ShardId,
        before: datetime,
        through: int | None = None,
    ) -> list[Batch]:
        """Read the rows that may go; those that share a file are looked at together."""
        below = tx.connection.execute(statements.newest_committed(key, shard)).scalar()
        claim = tx.connection.execute(statements.select_open_claim(key, shard)).first()
        if below is None or claim is not None:
            return []
        below = below if through is None else min(below, through + 1)
        for limit in ROWS_READ:
            statement = statements.select_rows(
                key, shard, since=0, below=below, state=None, limit=limit
            )
            rows = [batch_from(row) for row in tx.rows(statement)]
            ids = [row.batch_id for row in rows]
            waiting = statements.select_undelivered(key, ids)
            undelivered = set(tx.connection.execute(waiting).scalars()) if ids else set[str]()
            batches = rules.expirable(rows, before=before, undelivered=undelivered)
            if batches or len(rows) < limit:
                return batches
        return []
