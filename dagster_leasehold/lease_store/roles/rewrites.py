"""The role for replay and compaction: other output for committed batches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from dagster_leasehold.lease_store.identifiers import GroupKey, ShardId
from dagster_leasehold.lease_store.ledger_rows import (
    BatchRewrite,
    Compacted,
    RewriteClaim,
    RewriteKind,
)
from dagster_leasehold.lease_store.outcomes import Changed, RewriteByOther, Stale, Unpublished


class Rewrites(Protocol):
    """The verbs on rewriting a shard's committed output."""

    def claim_rewrite(
        self, key: GroupKey, shard: ShardId, run: str, kind: RewriteKind, *, replaces: str = ""
    ) -> Changed | RewriteByOther:
        """Reserve the shard's committed output for one rewriting run, beside its consumption.

        `replaces` names a run that the caller knows to have ended; its claim is over then.

        Raises:
            UnknownShard: the group has no such shard.
        """
        ...

    def release_rewrite(self, key: GroupKey, shard: ShardId, run: str) -> Changed | Stale:
        """Give the claim of `run` back; `Stale` where it is over already."""
        ...

    def rewrites(self, key: GroupKey) -> list[RewriteClaim]:
        """Return all claims that were not given back, by shard."""
        ...

    def rewrite_batches(
        self, key: GroupKey, shard: ShardId, run: str, rewrites: Sequence[BatchRewrite], reason: str
    ) -> Changed | Stale | Unpublished:
        """Swap the output of committed batches: all of them in one transaction, or none.

        `Stale` where `run` does not hold the claim any more, or a batch has another generation.
        Where somebody publishes the group's output, its table follows by a change; `Unpublished`
        where a batch is not in the table yet.
        """
        ...

    def note_compacted(
        self, key: GroupKey, shard: ShardId, run: str, compacted: Compacted
    ) -> Changed | Stale:
        """Remember how far a shard is compacted; `Stale` where `run` holds the claim no more."""
        ...

    def compacted(self, key: GroupKey) -> dict[ShardId, Compacted]:
        """Return how far each shard is compacted, of those that ever were; one statement."""
        ...
