"""Shards in memory: the shard list, claims, transfers, forced checkpoints."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from typing_extensions import override

from dagster_leasehold.lease_store.identifiers import GroupKey, NodeName, ShardId
from dagster_leasehold.lease_store.journal_rows import Gap
from dagster_leasehold.lease_store.memory_store.rows import GroupRows
from dagster_leasehold.lease_store.memory_store.table_changes import MemoryTableChanges
from dagster_leasehold.lease_store.outcomes import Changed, ShardsSynced, Stale
from dagster_leasehold.lease_store.publication_rows import ChangeKind
from dagster_leasehold.lease_store.roles.shards import Claims, Shards, Transfers
from dagster_leasehold.lease_store.rules import lineage, transitions
from dagster_leasehold.lease_store.rules.gap_policy import acknowledgement
from dagster_leasehold.lease_store.rules.reopening import Forcing, Reopening, concerned, force
from dagster_leasehold.lease_store.rules.starting_point import bootstrap_reason, may_bootstrap
from dagster_leasehold.lease_store.rules.transitions import Step
from dagster_leasehold.lease_store.rules.withdrawal import ledger_of, withdrawal
from dagster_leasehold.lease_store.shard_rows import ShardLease, ShardListing


class MemoryShards(MemoryTableChanges, Shards):
    """The verbs on shards."""

    @override
    def sync_shards(
        self, key: GroupKey, listing: Sequence[ShardListing], *, observer: str
    ) -> ShardsSynced:
        with self._rows("sync_shards", key) as rows:
            changed: list[ShardId] = []
            listed = {entry.shard: entry for entry in listing}
            for shard, entry in sorted(listed.items()):
                before = rows.shards.get(shard)
                if before and (after := lineage.listed_again(before, entry, listed)) != before:
                    rows.shards[shard] = after
                    changed.append(shard)
            new = [entry for shard, entry in listed.items() if shard not in rows.shards]
            added = lineage.shards_first_seen(
                new, rows.shards.values(), listed, ordered=rows.group.ordered
            )
            for shard, note in added:
                rows.shards[shard.shard] = shard
                self._note(rows, note, observer)
            if added or changed:
                rows.bump()
            return ShardsSynced(tuple(shard.shard for shard, _ in added), tuple(changed))

    @override
    def claim(
        self, key: GroupKey, claims: Claims, *, observer: str, reason: str
    ) -> dict[ShardId, Changed | Stale]:
        with self._rows("claim", key) as rows:
            outcomes: dict[ShardId, Changed | Stale] = {}
            for shard, (node, seen_lease_id) in sorted(claims.items()):
                row = rows.shards.get(shard)
                step = None
                if row and row.lease_id == seen_lease_id and node in rows.members:
                    step = None if rows.group.paused else transitions.claimed(row, node, reason)
                outcomes[shard] = self._owned(rows, step, observer, bump=False)
            if any(isinstance(outcome, Changed) for outcome in outcomes.values()):
                rows.bump()
            return outcomes

    @override
    def begin_transfer(
        self, key: GroupKey, transfers: Transfers, *, observer: str
    ) -> dict[ShardId, Changed | Stale]:
        with self._rows("begin_transfer", key) as rows:
            outcomes: dict[ShardId, Changed | Stale] = {}
            for shard, (to, seen_lease_id, reason) in sorted(transfers.items()):
                row = _seen(rows, shard, seen_lease_id)
                live = row and to in rows.members
                step = transitions.transfer_begun(row, to, reason) if row and live else None
                outcomes[shard] = self._owned(rows, step, observer, bump=False)
            if any(isinstance(outcome, Changed) for outcome in outcomes.values()):
                rows.bump()
            return outcomes

    @override
    def cancel_transfer(
        self, key: GroupKey, shard: ShardId, seen_lease_id: int, *, observer: str, reason: str
    ) -> Changed | Stale:
        with self._rows("cancel_transfer", key) as rows:
            row = _seen(rows, shard, seen_lease_id)
            return self._owned(
                rows, transitions.transfer_cancelled(row, reason) if row else None, observer
            )

    @override
    def complete_transfer(
        self, key: GroupKey, shard: ShardId, seen_lease_id: int, *, observer: str, reason: str
    ) -> Changed | Stale:
        with self._rows("complete_transfer", key) as rows:
            row = _seen(rows, shard, seen_lease_id)
            step = transitions.transfer_completed(row, reason) if row else None
            if step and step.after.lease_owner not in rows.members:
                step = None
            return self._owned(rows, step, observer)

    @override
    def free_orphans(self, key: GroupKey, *, observer: str) -> Changed:
        with self._rows("free_orphans", key) as rows:
            shards = [rows.shards[shard] for shard in sorted(rows.shards)]
            freed = [
                step for shard in shards if (step := transitions.orphan_freed(shard, rows.members))
            ]
            freed += lineage.freed_to_start(
                shards, ordered=rows.group.ordered, reason=lineage.PARENTS_OVER
            )
            if freed:
                rows.bump()
            return Changed(self._write(rows, freed, observer))

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
        with self._rows("force_checkpoint", key) as rows:
            rows.shard(shard)
            forcing = _forcing(rows, shard, cursor, reason, reopen)
            return self._force(rows, forcing, observer)

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
        with self._rows("bootstrap", key) as rows:
            if not may_bootstrap(rows.shard(shard), node, cursor, run):
                return Stale()
            reason = bootstrap_reason(node, cursor, start)
            forcing = _forcing(rows, shard, start or cursor, reason, Reopening.REFUSE)
            return self._force(rows, forcing.bootstrapped(cursor), f"run {run}")

    @override
    def skip_record(
        self, key: GroupKey, shard: ShardId, cursor: str | None, *, observer: str
    ) -> Changed | Stale:
        with self._rows("skip_record", key) as rows:
            step = transitions.skipped(rows.shard(shard), cursor)
            return Stale() if step is None else Changed(self._write(rows, [step], observer))

    @override
    def acknowledge_gap(self, key: GroupKey, gap: Gap, *, observer: str) -> Changed | Stale:
        with self._rows("acknowledge_gap", key) as rows:
            rows.shard(gap.shard)
            for number, each in enumerate(rows.gaps):
                same = (each.shard, each.start, each.end) == (gap.shard, gap.start, gap.end)
                if same and not each.acknowledged:
                    rows.gaps[number] = replace(each, acknowledged=True)
                    self._note(rows, acknowledgement(gap), observer)
                    return Changed((gap.shard,))
            return Stale()

    def _force(self, rows: GroupRows, forcing: Forcing, observer: str) -> Changed:
        if not forcing.steps:
            return Changed()
        for step in forcing.steps:
            rows.abandon_intents(step.after.shard)
            rows.versions[step.after.shard] += 1
        for name, numbers in forcing.withdrawn.items():
            gone = [batch for batch in rows.committed(name) if batch.sequence in numbers]
            self._record_removal(rows, name, ChangeKind.WITHDRAWAL, gone)
            rows.batches.update({(name, each.sequence): withdrawal(each) for each in gone})
            rows.look_again(name, numbers[0])
        for mark in forcing.marks:
            self._note(rows, mark, observer)
        rows.bump()
        return Changed(self._write(rows, forcing.steps, observer))

    def _owned(
        self, rows: GroupRows, step: Step | None, observer: str, *, bump: bool = True
    ) -> Changed | Stale:
        if step is None:
            return Stale()
        if bump:
            rows.bump()
        return Changed(self._write(rows, [step], observer))


def _forcing(
    rows: GroupRows, shard: ShardId, cursor: str, reason: str, reopen: Reopening
) -> Forcing:
    names = concerned(rows.shards, shard)
    return force(
        [rows.shards[name] for name in names],
        {name: ledger_of(rows.committed(name)) for name in names},
        cursor,
        key=rows.group.key,
        ordered=rows.group.ordered,
        members=rows.members,
        reason=reason,
        reopen=reopen,
        begins={name: expired.begin for name in names if (expired := rows.summary(name).expired)},
    )


def _seen(rows: GroupRows, shard: ShardId, seen_lease_id: int) -> ShardLease | None:
    row = rows.shards.get(shard)
    return row if row and row.lease_id == seen_lease_id else None
