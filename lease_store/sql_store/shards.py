"""Shards in SQL: the shard list, claims, transfers, forced checkpoints."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from dagster_leasehold.lease_store.identifiers import GroupKey, NodeName, ShardId
from dagster_leasehold.lease_store.ledger_rows import Batch, BatchState
from dagster_leasehold.lease_store.outcomes import Changed, ShardsSynced, Stale
from dagster_leasehold.lease_store.rules.lineage import (
    PARENTS_OVER,
    freed_to_start,
    listed_again,
    shards_first_seen,
)
from dagster_leasehold.lease_store.rules.refusals import unknown_shard
from dagster_leasehold.lease_store.rules.reopening import Reopening, concerned, force
from dagster_leasehold.lease_store.rules.starting_point import bootstrap_reason, may_bootstrap
from dagster_leasehold.lease_store.rules.transitions import (
    Step,
    claimed,
    orphan_freed,
    transfer_begun,
    transfer_cancelled,
    transfer_completed,
)
from dagster_leasehold.lease_store.rules.withdrawal import Ledger
from dagster_leasehold.lease_store.shard_rows import ShardLease, ShardListing
from dagster_leasehold.lease_store.sql_store import history_statements as history
from dagster_leasehold.lease_store.sql_store import statements
from dagster_leasehold.lease_store.sql_store.paging import page_sizes
from dagster_leasehold.lease_store.sql_store.retention_statements import look_again
from dagster_leasehold.lease_store.sql_store.rows import batch_from, shard_from
from dagster_leasehold.lease_store.sql_store.verbs import SqlVerbs, chunks
from dagster_leasehold.lease_store.transactions import Transaction

WITHDRAWN_PER_STATEMENT = 10_000


class SqlShards(SqlVerbs):
    """The verbs on shards."""

    def sync_shards(
        self, key: GroupKey, listing: Sequence[ShardListing], *, observer: str
    ) -> ShardsSynced:
        """See `LeaseStore.sync_shards`.

        An unchanged listing writes nothing and locks nothing.
        """
        listed = {entry.shard: entry for entry in listing}

        def unchanged(tx: Transaction) -> bool:
            self._group(tx, key)
            known = {row.shard: row for row in self._all_shards(tx, key)}
            return all(
                shard in known and listed_again(known[shard], entry, listed) == known[shard]
                for shard, entry in listed.items()
            )

        def work(tx: Transaction) -> ShardsSynced:
            group = self._group(tx, key)
            known = {row.shard: row for row in self._all_shards(tx, key)}
            stale = [
                shard
                for shard, row in known.items()
                if shard in listed and listed_again(row, listed[shard], listed) != row
            ]
            relisted = [
                Step(row, listed_again(row, listed[shard], listed), ())
                for shard, row in self._lock_shards(tx, key, stale).items()
            ]
            self._carry_out(tx, key, relisted, observer)
            known |= {step.after.shard: step.after for step in relisted}
            added = shards_first_seen(listing, known, ordered=group.ordered)
            self._insert_shards(tx, key, [row for row, _ in added])
            self._journal(tx, key, [note for _, note in added], observer)
            synced = ShardsSynced(tuple(row.shard for row, _ in added), tuple(stale))
            return synced if added or stale else tx.abandon(synced)

        if self._read("sync_shards", unchanged):
            return ShardsSynced()
        return self._change("sync_shards", key, work)

    def claim(
        self,
        key: GroupKey,
        claims: Mapping[ShardId, tuple[NodeName, int]],
        *,
        observer: str,
        reason: str,
    ) -> dict[ShardId, Changed | Stale]:
        """See `LeaseStore.claim`. Many claims are several transactions, each whole."""
        outcomes: dict[ShardId, Changed | Stale] = {}
        for chunk in chunks(sorted(claims)):
            wanted = {shard: claims[shard] for shard in chunk}
            outcomes |= self._claim(key, wanted, observer=observer, reason=reason)
        return outcomes

    def _claim(
        self,
        key: GroupKey,
        claims: Mapping[ShardId, tuple[NodeName, int]],
        *,
        observer: str,
        reason: str,
    ) -> dict[ShardId, Changed | Stale]:
        def work(tx: Transaction) -> dict[ShardId, Changed | Stale]:
            outcomes: dict[ShardId, Changed | Stale] = dict.fromkeys(claims, Stale())
            paused = self._group(tx, key).paused
            members = self._members(tx, key)
            steps: list[Step] = []
            for shard, row in self._lock_shards(tx, key, claims).items():
                node, seen_lease_id = claims[shard]
                if row.lease_id == seen_lease_id and node in members and not paused:
                    step = claimed(row, node, reason)
                    steps += [step] if step else []
            if not steps:
                return tx.abandon(outcomes)
            self._carry_out(tx, key, steps, observer)
            return outcomes | {step.after.shard: Changed((step.after.shard,)) for step in steps}

        return self._change("claim", key, work)

    def begin_transfer(
        self,
        key: GroupKey,
        shard: ShardId,
        seen_lease_id: int,
        to: NodeName,
        *,
        observer: str,
        reason: str,
    ) -> Changed | Stale:
        """See `LeaseStore.begin_transfer`."""

        def rule(row: ShardLease, members: set[NodeName]) -> Step | None:
            return transfer_begun(row, to, reason) if to in members else None

        return self._step("begin_transfer", key, shard, seen_lease_id, rule, observer=observer)

    def cancel_transfer(
        self, key: GroupKey, shard: ShardId, seen_lease_id: int, *, observer: str, reason: str
    ) -> Changed | Stale:
        """See `LeaseStore.cancel_transfer`."""

        def rule(row: ShardLease, _members: set[NodeName]) -> Step | None:
            return transfer_cancelled(row, reason)

        return self._step("cancel_transfer", key, shard, seen_lease_id, rule, observer=observer)

    def complete_transfer(
        self, key: GroupKey, shard: ShardId, seen_lease_id: int, *, observer: str, reason: str
    ) -> Changed | Stale:
        """See `LeaseStore.complete_transfer`."""

        def rule(row: ShardLease, members: set[NodeName]) -> Step | None:
            return transfer_completed(row, reason) if row.lease_owner in members else None

        return self._step("complete_transfer", key, shard, seen_lease_id, rule, observer=observer)

    def _step(
        self,
        kind: str,
        key: GroupKey,
        shard: ShardId,
        seen_lease_id: int,
        rule: Callable[[ShardLease, set[NodeName]], Step | None],
        *,
        observer: str,
    ) -> Changed | Stale:
        def work(tx: Transaction) -> Changed | Stale:
            members = self._members(tx, key)
            row = self._lock_shards(tx, key, [shard]).get(shard)
            if row is None or row.lease_id != seen_lease_id:
                return tx.abandon(Stale())
            step = rule(row, members)
            if step is None:
                return tx.abandon(Stale())
            return self._carry_out(tx, key, [step], observer)

        return self._change(kind, key, work)

    def free_orphans(self, key: GroupKey, *, observer: str) -> Changed:
        """See `LeaseStore.free_orphans`. Nothing is locked where there is none."""

        def steps(tx: Transaction, *, lock: bool) -> list[Step]:
            ordered = self._group(tx, key).ordered
            members = self._members(tx, key)
            rows = tx.connection.execute(statements.select_shards(key, lock=lock)).mappings()
            shards = [shard_from(row) for row in rows]
            freed = [step for row in shards if (step := orphan_freed(row, members))]
            return freed + freed_to_start(shards, ordered=ordered, reason=PARENTS_OVER)

        def work(tx: Transaction) -> Changed:
            freed = steps(tx, lock=True)
            return self._carry_out(tx, key, freed, observer) if freed else tx.abandon(Changed())

        if not self._read("free_orphans", lambda tx: bool(steps(tx, lock=False))):
            return Changed()
        return self._change("free_orphans", key, work)

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
        """See `LeaseStore.force_checkpoint`."""

        def work(tx: Transaction) -> Changed:
            lineage = self._locked_lineage(tx, key, shard)
            return self._force(
                tx, key, lineage, cursor, observer=observer, reason=reason, reopen=reopen
            )

        return self._change("force_checkpoint", key, work)

    def bootstrap(
        self, key: GroupKey, shard: ShardId, node: NodeName, cursor: str, *, run: str
    ) -> Changed | Stale:
        """See `LeaseStore.bootstrap`."""

        def work(tx: Transaction) -> Changed | Stale:
            lineage = self._locked_lineage(tx, key, shard)
            if not may_bootstrap(lineage[0][0], node, cursor, run):
                return tx.abandon(Stale())
            why = bootstrap_reason(node, cursor)
            return self._force(
                tx, key, lineage, cursor, observer=f"run {run}", reason=why, bootstrap=True
            )

        return self._change("bootstrap", key, work)

    def _locked_lineage(
        self, tx: Transaction, key: GroupKey, shard: ShardId
    ) -> tuple[list[ShardLease], dict[ShardId, Ledger]]:
        """The rows that forcing a shard concerns, its own first, and their ledgers."""
        known = {row.shard: row for row in self._all_shards(tx, key)}
        if shard not in known:
            raise unknown_shard(key, shard)
        names = concerned(known, shard)
        # A holder may commit until its row is locked, so the ledger is read after that.
        rows = self._lock_shards(tx, key, names)
        ledgers = {name: self._ledger(tx, key, name) for name in names}
        return [rows[name] for name in names], ledgers

    def _force(
        self,
        tx: Transaction,
        key: GroupKey,
        lineage: tuple[list[ShardLease], dict[ShardId, Ledger]],
        cursor: str,
        *,
        observer: str,
        reason: str,
        reopen: Reopening = Reopening.REFUSE,
        bootstrap: bool = False,
    ) -> Changed:
        rows, ledgers = lineage
        forcing = force(
            rows,
            ledgers,
            cursor,
            key=key,
            ordered=self._group(tx, key).ordered,
            members=self._members(tx, key),
            reason=reason,
            reopen=reopen,
        )
        if not forcing.steps:
            return tx.abandon(Changed())
        if bootstrap:
            forcing = forcing.bootstrapped(cursor)
        for step in forcing.steps:
            self._abandon_intent(tx, key, step.after.shard)
            tx.connection.execute(statements.raise_version(key, step.after.shard))
        for name, numbers in forcing.withdrawn.items():
            # All in this transaction, but each statement within the time that one may take.
            for first in numbers[::WITHDRAWN_PER_STATEMENT]:
                part = numbers[numbers.index(first) :][:WITHDRAWN_PER_STATEMENT]
                tx.connection.execute(statements.withdraw_batches(key, name, part))
            tx.connection.execute(look_again(key, name, numbers[0]))
        self._journal(tx, key, forcing.marks, observer)
        return self._carry_out(tx, key, forcing.steps, observer)

    def _ledger(self, tx: Transaction, key: GroupKey, shard: ShardId) -> Ledger:
        """The shard's committed batches, read in this transaction: its row is locked."""

        def look(*, numbers: range, newest_first: bool) -> Iterator[Batch]:
            listing = history.batches_of(
                key, shard, BatchState.COMMITTED, numbers, newest_first=newest_first
            )
            last: list[Any] | None = None
            for size in page_sizes(1):
                (run,) = listing.after(last)
                rows = tx.connection.execute(run.limit(size)).mappings().all()
                yield from map(batch_from, rows)
                if len(rows) < size:
                    return
                last = [rows[-1]["sequence"]]

        return look
