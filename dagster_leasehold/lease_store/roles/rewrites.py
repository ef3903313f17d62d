"""The role for replay and compaction: new output for committed batches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from dagster_leasehold.lease_store.identifiers import GroupKey, ShardId
from dagster_leasehold.lease_store.ledger_rows import (
    Batch,
    BatchRewrite,
    BatchState,
    Compacted,
    LedgerCounters,
    RewriteClaim,
    RewriteKind,
)
from dagster_leasehold.lease_store.outcomes import Changed, RewriteByOther, Stale, Unpublished
from dagster_leasehold.lease_store.publication_rows import ChangeKind
from dagster_leasehold.lease_store.roles.forced_checkpoints import reset_folding
from dagster_leasehold.lease_store.roles.operations import (
    Operations,
    Rows,
    border_in,
    journalled,
    locked_shard,
)
from dagster_leasehold.lease_store.rules.ledger import may_claim, rewrite_note, rewritten
from dagster_leasehold.lease_store.rules.publishing import change_of_rewrite
from dagster_leasehold.lease_store.stored_rows import Above, Plus


class Rewrites(Operations):
    """The operations on rewriting committed output; each locks the shard's row first."""

    def claim_rewrite(
        self, key: GroupKey, shard: ShardId, run: str, kind: RewriteKind, *, replaces: str = ""
    ) -> Changed | RewriteByOther:
        """Reserve the shard's committed output for one rewriting run; consumption continues.

        The claim of `replaces`, a run that has certainly ended, ends. Repeating the call is
        harmless.
        """

        def work(rows: Rows) -> Changed | RewriteByOther:
            before = _last_claim(rows, shard)
            if before is None:
                rows.add(RewriteClaim(shard, run, kind, self._clock()))
            elif may_claim(before, run, replaces):
                rows.write(replace(before, run=run, kind=kind, at=self._clock()))
            else:
                return rows.abandon(RewriteByOther(before))
            return Changed((shard,))

        return self._writing("claim_rewrite", key, work)

    def release_rewrite(self, key: GroupKey, shard: ShardId, run: str) -> Changed | Stale:
        """Release the claim of `run`; `Stale` if it is over."""
        earlier_attempt = False

        def work(rows: Rows) -> Changed | Stale:
            nonlocal earlier_attempt
            claim = _last_claim(rows, shard)
            if claim is None or claim.run != run:
                # A run's name is used once, so an earlier attempt at this call released it.
                ended = earlier_attempt and claim is not None and not claim.run
                return rows.abandon(Changed((shard,)) if ended else Stale())
            earlier_attempt = True
            rows.write(replace(claim, run=""))
            return Changed((shard,))

        return self._writing("release_rewrite", key, work)

    def rewrites(self, key: GroupKey) -> list[RewriteClaim]:
        """Return all current claims, by shard."""
        return self._listing("rewrites", key, lambda rows: rows.select(RewriteClaim, run=Above("")))

    def rewrite_batches(
        self, key: GroupKey, shard: ShardId, run: str, rewrites: Sequence[BatchRewrite], reason: str
    ) -> Changed | Stale | Unpublished:
        """Swap the output of committed batches, in one transaction.

        `Stale`: `run` no longer has the claim, or a batch has another generation. `Unpublished`:
        the group has a table, and a batch is not in it yet.
        """

        def work(rows: Rows) -> Changed | Stale | Unpublished:
            claim = _claim_of(rows, shard, run)
            if claim is None:
                return rows.abandon(Stale())
            border = border_in(rows, shard)
            if border and any(each.sequence >= border.published for each in rewrites):
                return rows.abandon(Unpublished(border.published))
            numbers = {each.sequence for each in rewrites}
            before = {
                batch.sequence: batch for batch in rows.select(Batch, shard=shard, sequence=numbers)
            }
            replacements = [
                batch
                for each in rewrites
                if (batch := rewritten(before.get(each.sequence), each)) is not None
            ]
            if len(replacements) < len(rewrites):
                return rows.abandon(Stale())
            if border:
                kind = ChangeKind(claim.kind)
                rows.add(*change_of_rewrite(kind, shard, before.values(), rewrites))
            if replacements:
                rows.write(*replacements, state=BatchState.COMMITTED)
                rows.change(LedgerCounters, {"version": Plus(1)}, shard=shard)
                reset_folding(rows, shard, min(before))
            rows.journal([rewrite_note(shard, run, reason)], run)
            return Changed((shard,))

        return self._writing("rewrite_batches", key, work, mark=journalled(shard))

    def note_compacted(
        self, key: GroupKey, shard: ShardId, run: str, compacted: Compacted
    ) -> Changed | Stale:
        """Record a shard's progress of compaction; `Stale` if `run` no longer has the claim."""

        def work(rows: Rows) -> Changed | Stale:
            claim = _claim_of(rows, shard, run)
            if claim is None:
                return rows.abandon(Stale())
            rows.write(replace(claim, compacted=compacted))
            return Changed((shard,))

        return self._writing("note_compacted", key, work)

    def compacted(self, key: GroupKey) -> dict[ShardId, Compacted]:
        """Return each shard's progress of compaction, in one statement."""
        claims = self._listing("compacted", key, lambda rows: rows.select(RewriteClaim))
        return {claim.shard: claim.compacted for claim in claims if claim.compacted.examined_until}


def _last_claim(rows: Rows, shard: ShardId) -> RewriteClaim | None:
    """Lock the shard's row; return its newest claim, even if released."""
    locked_shard(rows, shard)
    return rows.first(RewriteClaim, shard=shard)


def _claim_of(rows: Rows, shard: ShardId, run: str) -> RewriteClaim | None:
    """Lock the shard's row; return the run's claim, or None if the run does not have it."""
    claim = _last_claim(rows, shard)
    return claim if claim is not None and claim.run == run else None
