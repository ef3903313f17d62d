"""Replacing committed output in SQL."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import RowMapping
from typing_extensions import override

from dagster_leasehold.lease_store.identifiers import GroupKey, ShardId
from dagster_leasehold.lease_store.ledger_rows import (
    Batch,
    BatchRewrite,
    Compacted,
    RewriteClaim,
    RewriteKind,
)
from dagster_leasehold.lease_store.outcomes import Changed, RewriteByOther, Stale, Unpublished
from dagster_leasehold.lease_store.publication_rows import ChangeKind
from dagster_leasehold.lease_store.roles.rewrites import Rewrites
from dagster_leasehold.lease_store.rules.ledger import may_claim, rewrite_note
from dagster_leasehold.lease_store.rules.publishing import change_of_rewrite
from dagster_leasehold.lease_store.sql_store import history_statements as history
from dagster_leasehold.lease_store.sql_store import ledger_statements as statements
from dagster_leasehold.lease_store.sql_store import shard_statements
from dagster_leasehold.lease_store.sql_store.group_statements import rows_of
from dagster_leasehold.lease_store.sql_store.ledger_statements import look_again
from dagster_leasehold.lease_store.sql_store.mapping import (
    CLAIM,
    COMPACTED,
    batch_from,
    output_values,
)
from dagster_leasehold.lease_store.sql_store.table_changes import SqlTableChanges
from dagster_leasehold.lease_store.sql_store.verbs import SELECTS_PER_STATEMENT
from dagster_leasehold.lease_store.tables import rewrite_claim
from dagster_leasehold.lease_store.transactions import Transaction


class SqlRewrites(SqlTableChanges, Rewrites):
    """The verbs on claims to rewrite, and the swap; each locks the shard's row first."""

    @override
    def claim_rewrite(
        self, key: GroupKey, shard: ShardId, run: str, kind: RewriteKind, *, replaces: str = ""
    ) -> Changed | RewriteByOther:
        """Claim a shard's output; claiming again under the same run is harmless."""

        def work(tx: Transaction) -> Changed | RewriteByOther:
            row, claim = self._claim_of(tx, key, shard)
            if claim is not None and not may_claim(claim, run, replaces):
                return tx.abandon(RewriteByOther(claim))
            new = RewriteClaim(shard, run, kind, self._clock())
            if row:
                self._change_row(tx, rewrite_claim, key, CLAIM.values(new), shard_id=shard)
            else:
                self._add_row(tx, rewrite_claim, CLAIM.row(key, new))
            return Changed((shard,))

        return self._write("claim_rewrite", work)

    @override
    def release_rewrite(self, key: GroupKey, shard: ShardId, run: str) -> Changed | Stale:
        sent = False

        def work(tx: Transaction) -> Changed | Stale:
            nonlocal sent
            _, claim = self._claim_of(tx, key, shard)
            if claim is None or claim.run != run:
                # A run's name is used once: whatever an earlier try of this call did, it stays.
                return tx.abandon(Changed((shard,)) if sent and claim is None else Stale())
            sent = True
            self._change_row(tx, rewrite_claim, key, {"run": ""}, shard_id=shard)
            return Changed((shard,))

        return self._write("release_rewrite", work)

    @override
    def rewrites(self, key: GroupKey) -> list[RewriteClaim]:
        return self._all("rewrites", key, statements.select_claims(key), CLAIM.read)

    @override
    def rewrite_batches(
        self, key: GroupKey, shard: ShardId, run: str, rewrites: Sequence[BatchRewrite], reason: str
    ) -> Changed | Stale | Unpublished:
        rows = [
            {
                "seen_sequence": rewrite.sequence,
                "seen_generation": rewrite.generation,
                "seen_attempt": rewrite.attempt,
                "generation": rewrite.generation + 1,
                **output_values(rewrite.files, rewrite.statistics),
            }
            for rewrite in rewrites
        ]

        def work(tx: Transaction) -> Changed | Stale | Unpublished:
            _, claim = self._claim_of(tx, key, shard)
            if claim is None or claim.run != run:
                return tx.abandon(Stale())
            border = self._border(tx, key, shard)
            if border is not None:
                if any(rewrite.sequence >= border.published for rewrite in rewrites):
                    return tx.abandon(Unpublished(border.published))
                self._record_rewrite(tx, key, claim, rewrites)
            if rows:
                names = [name for name in rows[0] if not name.startswith("seen_")]
                statement = statements.update_output(key, shard, names)
                if tx.connection.execute(statement, rows).rowcount != len(rows):
                    return tx.abandon(Stale())
                tx.connection.execute(shard_statements.raise_version(key, shard))
                first = min(rewrite.sequence for rewrite in rewrites)
                tx.connection.execute(look_again(key, shard, first))
            self._journal(tx, key, [rewrite_note(shard, run, reason)], run)
            return Changed((shard,))

        mark = self._journalled(key, shard)
        return self._write("rewrite_batches", work, mark=mark)

    def _record_rewrite(
        self, tx: Transaction, key: GroupKey, claim: RewriteClaim, rewrites: Sequence[BatchRewrite]
    ) -> None:
        before: list[Batch] = []
        numbers = sorted(rewrite.sequence for rewrite in rewrites)
        for start in range(0, len(numbers), SELECTS_PER_STATEMENT):
            wanted = [(claim.shard, each) for each in numbers[start:][:SELECTS_PER_STATEMENT]]
            before += tx.all(history.select_numbered(key, wanted), batch_from)
        kind = ChangeKind(claim.kind)
        changes = change_of_rewrite(kind, claim.shard, before, rewrites)
        self._record_changes(tx, key, changes)

    @override
    def note_compacted(
        self, key: GroupKey, shard: ShardId, run: str, compacted: Compacted
    ) -> Changed | Stale:
        def work(tx: Transaction) -> Changed | Stale:
            _, claim = self._claim_of(tx, key, shard)
            if claim is None or claim.run != run:
                return tx.abandon(Stale())
            self._change_row(tx, rewrite_claim, key, COMPACTED.values(compacted), shard_id=shard)
            return Changed((shard,))

        return self._write("note_compacted", work)

    @override
    def compacted(self, key: GroupKey) -> dict[ShardId, Compacted]:
        def own(row: RowMapping) -> tuple[ShardId, Compacted]:
            return ShardId(row["shard_id"]), COMPACTED.read(row)

        return dict(self._all("compacted", key, statements.select_compacted(key), own))

    def _claim_of(
        self, tx: Transaction, key: GroupKey, shard: ShardId
    ) -> tuple[bool, RewriteClaim | None]:
        """Return if the shard has a row for claims, and the claim; the shard's row is locked."""
        self._group(tx, key)
        self._lock_shard(tx, key, shard)
        row = tx.rows(rows_of(rewrite_claim, key, shard_id=shard)).first()
        return row is not None, CLAIM.read(row) if row is not None and row["run"] else None
