"""Replacing committed output: the pure rules that all stores share.

What two rewriters could break, and why they do not:

1. A replay reads batch 7 and writes new files for it; its process is paused.
2. Somebody who knows it to be dead takes its claim over and replays the batch.
3. The first wakes up and swaps: its run no longer holds the claim, so that nothing changes.
4. Had its claim been given back and taken again in between, the batch's generation would differ.
"""

from __future__ import annotations

from dataclasses import replace

from dagster_leasehold.lease_store.identifiers import ShardId
from dagster_leasehold.lease_store.ledger_rows import Batch, BatchRewrite, BatchState, RewriteClaim
from dagster_leasehold.lease_store.rules.transitions import Note


def may_claim(known: RewriteClaim | None, run: str, replaces: str | None) -> bool:
    """Whether a run may claim a shard's output, whose claim is `known`."""
    return known is None or known.run in (run, replaces)


def rewritten(batch: Batch | None, rewrite: BatchRewrite) -> Batch | None:
    """The batch with its new output; None where it is not as the rewrite found it."""
    if batch is None or batch.state is not BatchState.COMMITTED:
        return None
    if batch.generation != rewrite.generation:
        return None
    return replace(
        batch,
        generation=batch.generation + 1,
        files=rewrite.files,
        statistics=rewrite.statistics,
    )


def rewrite_note(shard: ShardId, run: str, reason: str) -> Note:
    """The journal entry of a swap."""
    return Note(kind="rewrite", reason=reason, shard=shard, run=run)
