"""The role for checks before publication: holds on shards, and new output of checked batches.

A check examines a shard's committed batches before they are published:

1. Batch 7 fails. The publisher holds the shard from the end of batch 6 on. The shard's row has the
   hold, so its size does not depend on the number of held batches, and every publisher obeys it.
2. Batches before the hold are published, now or by the next publisher.
3. The hold ends when batch 7 passes, is withdrawn or is rewritten, or when an operator overrides
   it. An override publishes the batches that are committed at that time.

A hold concerns one shard. If the shard is split, its children are published: the table has the
batches of each shard in order, and no order across shards.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from dagster_leasehold.lease_store.identifiers import GroupKey, ShardId
from dagster_leasehold.lease_store.journal_rows import Note
from dagster_leasehold.lease_store.ledger_rows import (
    Batch,
    BatchRewrite,
    BatchState,
    LedgerCounters,
    PublicationHold,
)
from dagster_leasehold.lease_store.outcomes import Changed, LockOver, Settled, Stale
from dagster_leasehold.lease_store.publication_rows import (
    CheckFailure,
    HeldOutput,
    HoldChange,
    Publication,
    PublishLock,
    ShardBacklog,
    ShardLag,
)
from dagster_leasehold.lease_store.roles.operations import (
    Locks,
    Rows,
    border_in,
    chunks,
    held_lock,
    journalled,
    locked_shard,
)
from dagster_leasehold.lease_store.rules.ledger import rewrite_note, rewritten
from dagster_leasehold.lease_store.stored_rows import Plus

HELD_BATCHES_COUNTED = 1_000
"""The most held batches of a shard that are counted."""
_SHARDS_PER_STATEMENT = 100


class PublicationHolds(Locks):
    """The operations on holds; those of a publisher require its publish lock."""

    def held_output(self, key: GroupKey) -> list[HeldOutput]:
        """Return the held output by shard, up to `HELD_BATCHES_COUNTED` batches of each."""
        counters = self._held(key)
        lags: dict[ShardId, ShardLag] = {}
        for part in chunks(sorted(counters), _SHARDS_PER_STATEMENT):
            holds = {shard: hold for shard, hold in _of(counters) if shard in part}
            spans = {shard: (hold.start, HELD_BATCHES_COUNTED) for shard, hold in holds.items()}

            def work(
                rows: Rows, spans: dict[ShardId, tuple[int, int]] = spans
            ) -> Iterator[ShardLag]:
                return rows.lags(spans)

            lags |= {lag.shard: lag for lag in self._reading("lag", key, work)}
        return [HeldOutput(lags[shard], hold) for shard, hold in _of(counters) if shard in lags]

    def held_shards(self, key: GroupKey) -> list[ShardId]:
        """Return the shards whose publication is held, in one statement."""
        return [*self._held(key)]

    def held_batches(self, key: GroupKey, *, limit: int) -> list[ShardBacklog]:
        """Return the first held batch of the shards whose publication is held."""
        counters = self._held(key)
        spans = {shard: (hold.start, 1) for shard, hold in _of(counters)[:limit]}
        if not spans:
            return []
        batches = self._reading("unpublished", key, lambda rows: rows.committed_from(spans))
        return [
            ShardBacklog(
                batch.shard,
                each.published_until,
                each.version,
                (batch,),
                unchecked_until=each.unchecked_until,
                hold=each.hold,
            )
            for batch in batches
            for each in [counters[batch.shard]]
        ]

    def hold_publication(
        self,
        lock: PublishLock,
        changes: Sequence[HoldChange],
        failures: tuple[CheckFailure, ...] | None = None,
    ) -> Settled | LockOver:
        """Set or end the holds of shards whose ledger has not changed since it was read.

        A new reason is journalled. Repeating the call is harmless.

        Args:
            failures: the failures without holds; None if they have not changed.
        """

        def work(rows: Rows) -> Settled | LockOver:
            before = held_lock(rows, Publication, lock)
            if before is None:
                return rows.abandon(LockOver())
            if failures is not None:
                rows.write(replace(before, failures=failures))
            by_shard = {change.shard: change for change in changes}
            for counters in [*rows.select(LedgerCounters, shard=set(by_shard), lock=True)]:
                change = by_shard[counters.shard]
                if counters.version != change.version or counters.hold == change.hold:
                    continue
                rows.write(replace(counters, hold=change.hold))
                if change.hold is not None:
                    rows.journal([_note(change.shard, change.hold)], str(lock.node or "reader"))
            return Settled()

        return self._writing("hold_publication", lock.key, work)

    def override_hold(
        self, key: GroupKey, shard: ShardId, *, observer: str, reason: str
    ) -> Changed | Stale:
        """Publish the committed batches of a held shard without checks; `Stale` without a hold.

        Later batches are checked again.
        """

        def work(rows: Rows) -> Changed | Stale:
            locked_shard(rows, shard)
            (counters,) = rows.select(LedgerCounters, shard=shard)
            if counters.hold is None:
                return rows.abandon(Stale())
            until = counters.committed_until
            rows.write(replace(counters, unchecked_until=until, hold=None))
            text = f"{reason} (batches {counters.hold.start} to {until - 1}; {counters.hold})"
            rows.journal([Note(kind="override", reason=text, shard=shard)], observer)
            return Changed((shard,))

        return self._writing("override_hold", key, work, mark=journalled(shard))

    def rewrite_unpublished(
        self, lock: PublishLock, shard: ShardId, rewrite: BatchRewrite, reason: str
    ) -> Changed | LockOver | Stale:
        """Swap the output of a batch that no publication has, before it is published.

        `Stale`: the batch has changed, or is possibly in the table.
        """

        def work(rows: Rows) -> Changed | LockOver | Stale:
            if held_lock(rows, Publication, lock) is None:
                return rows.abandon(LockOver())
            locked_shard(rows, shard)
            border = border_in(rows, shard)
            batch = rows.first(Batch, shard=shard, sequence=rewrite.sequence)
            after = rewritten(batch, rewrite)
            if border is None or after is None or rewrite.sequence < border.reached:
                return rows.abandon(Stale())
            rows.write(after, state=BatchState.COMMITTED)
            rows.change(LedgerCounters, {"version": Plus(1)}, shard=shard)
            end_hold(rows, shard, rewrite.sequence)
            observer = str(lock.node or "reader")
            rows.journal([rewrite_note(shard, observer, reason)], observer)
            return Changed((shard,))

        return self._writing("rewrite_unpublished", lock.key, work, mark=journalled(shard))

    def _held(self, key: GroupKey) -> dict[ShardId, LedgerCounters]:
        held = self._reading("held", key, lambda rows: rows.held())
        return {each.shard: each for each in held}


def end_hold(rows: Rows, shard: ShardId, first: int) -> None:
    """End the hold of a locked shard, if batches from `first` on change and it names one."""
    (counters,) = rows.select(LedgerCounters, shard=shard)
    if counters.hold is not None and counters.hold.batch >= first:
        rows.write(replace(counters, hold=None))


def _of(counters: dict[ShardId, LedgerCounters]) -> list[tuple[ShardId, PublicationHold]]:
    return [(shard, each.hold) for shard, each in counters.items() if each.hold is not None]


def _note(shard: ShardId, hold: PublicationHold) -> Note:
    return Note(kind="hold", reason=str(hold), shard=shard)
