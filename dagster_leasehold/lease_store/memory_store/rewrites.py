"""Replacing committed output in memory."""

from __future__ import annotations

from collections.abc import Sequence

from typing_extensions import override

from dagster_leasehold.lease_store.identifiers import GroupKey, ShardId
from dagster_leasehold.lease_store.ledger_rows import (
    Batch,
    BatchRewrite,
    Compacted,
    RewriteClaim,
    RewriteKind,
)
from dagster_leasehold.lease_store.memory_store.rows import GroupRows
from dagster_leasehold.lease_store.memory_store.table_changes import MemoryTableChanges
from dagster_leasehold.lease_store.outcomes import Changed, RewriteByOther, Stale, Unpublished
from dagster_leasehold.lease_store.publication_rows import ChangeKind
from dagster_leasehold.lease_store.roles.rewrites import Rewrites
from dagster_leasehold.lease_store.rules.ledger import may_claim, rewrite_note, rewritten
from dagster_leasehold.lease_store.rules.publishing import change_of_rewrite


class MemoryRewrites(MemoryTableChanges, Rewrites):
    """The verbs on claims to rewrite, and the swap."""

    @override
    def claim_rewrite(
        self, key: GroupKey, shard: ShardId, run: str, kind: RewriteKind, *, replaces: str = ""
    ) -> Changed | RewriteByOther:
        with self._rows("claim_rewrite", key) as rows:
            rows.shard(shard)
            claim = rows.rewrites.get(shard)
            if claim is not None and not may_claim(claim, run, replaces):
                return RewriteByOther(claim)
            rows.rewrites[shard] = RewriteClaim(shard, run, kind, self._clock())
            return Changed((shard,))

    @override
    def release_rewrite(self, key: GroupKey, shard: ShardId, run: str) -> Changed | Stale:
        with self._rows("release_rewrite", key) as rows:
            if not _claimed(rows, shard, run):
                return Stale()
            del rows.rewrites[shard]
            return Changed((shard,))

    @override
    def rewrites(self, key: GroupKey) -> list[RewriteClaim]:
        with self._rows("rewrites", key) as rows:
            return [rows.rewrites[shard] for shard in sorted(rows.rewrites)]

    @override
    def rewrite_batches(
        self, key: GroupKey, shard: ShardId, run: str, rewrites: Sequence[BatchRewrite], reason: str
    ) -> Changed | Stale | Unpublished:
        with self._rows("rewrite_batches", key) as rows:
            rows.shard(shard)
            claim = rows.rewrites.get(shard)
            if claim is None or claim.run != run:
                return Stale()
            border = self._border(rows, shard)
            if border and any(each.sequence >= border.published for each in rewrites):
                return Unpublished(border.published)
            swapped: dict[tuple[ShardId, int], Batch] = {}
            for rewrite in rewrites:
                batch = rewritten(rows.batches.get((shard, rewrite.sequence)), rewrite)
                if batch is None:
                    return Stale()
                swapped[shard, rewrite.sequence] = batch
            if border:
                before = [rows.batches[place] for place in swapped]
                kind = ChangeKind(claim.kind)
                self._record_changes(rows, change_of_rewrite(kind, shard, before, rewrites))
            rows.batches.update(swapped)
            rows.versions[shard] += bool(swapped)
            if rewrites:
                rows.look_again(shard, min(rewrite.sequence for rewrite in rewrites))
            self._note(rows, rewrite_note(shard, run, reason), run)
            return Changed((shard,))

    @override
    def note_compacted(
        self, key: GroupKey, shard: ShardId, run: str, compacted: Compacted
    ) -> Changed | Stale:
        with self._rows("note_compacted", key) as rows:
            rows.shard(shard)
            if not _claimed(rows, shard, run):
                return Stale()
            rows.compacted[shard] = compacted
            return Changed((shard,))

    @override
    def compacted(self, key: GroupKey) -> dict[ShardId, Compacted]:
        with self._rows("compacted", key) as rows:
            every = sorted(rows.compacted.items())
            return {shard: compacted for shard, compacted in every if compacted.looked_until}


def _claimed(rows: GroupRows, shard: ShardId, run: str) -> bool:
    """Return True if a run has the claim on a shard's output."""
    claim = rows.rewrites.get(shard)
    return claim is not None and claim.run == run
