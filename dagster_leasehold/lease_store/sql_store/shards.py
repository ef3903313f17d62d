"""Shards in SQL: the shard list, claims, transfers, accepted gaps."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from typing_extensions import override

from dagster_leasehold.lease_store import tables
from dagster_leasehold.lease_store.identifiers import GroupKey, NodeName, ShardId
from dagster_leasehold.lease_store.journal_rows import Gap
from dagster_leasehold.lease_store.outcomes import Changed, ShardsSynced, Stale
from dagster_leasehold.lease_store.roles.shards import Claims, Shards, Transfers
from dagster_leasehold.lease_store.rules import lineage, transitions
from dagster_leasehold.lease_store.rules.gap_policy import acknowledgement
from dagster_leasehold.lease_store.rules.transitions import Step
from dagster_leasehold.lease_store.shard_rows import ShardLease, ShardListing
from dagster_leasehold.lease_store.sql_store.group_statements import rows_of
from dagster_leasehold.lease_store.sql_store.mapping import GAP
from dagster_leasehold.lease_store.sql_store.verbs import SqlVerbs, chunks
from dagster_leasehold.lease_store.transactions import Transaction

_Rule = Callable[[ShardLease, set[NodeName]], Step | None]
_Move = TypeVar("_Move", bound=tuple[Any, ...])


class SqlShards(SqlVerbs, Shards):
    """The verbs on shards."""

    @override
    def sync_shards(
        self, key: GroupKey, listing: Sequence[ShardListing], *, observer: str
    ) -> ShardsSynced:
        """Add and update shards; an unchanged listing writes nothing and locks nothing.

        A long list is several transactions, each of which reads its own shards and their parents:
        the server ends a transaction that stands still while its process works on rows.
        """
        listed = {entry.shard: entry for entry in listing}

        def look(tx: Transaction) -> Iterator[ShardLease]:
            self._group(tx, key)
            return self._rows_of(tx, key).each_shard()

        rows = {row.shard: row for row in self._read("sync_shards", look)}
        differing = [
            shard
            for shard, entry in sorted(listed.items())
            if shard not in rows or lineage.listed_again(rows[shard], entry, listed) != rows[shard]
        ]
        added, changed = list[ShardId](), list[ShardId]()
        for chunk in chunks(differing):

            def work(tx: Transaction, chunk: Sequence[ShardId] = chunk) -> ShardsSynced:
                return self._sync(tx, key, chunk, listed, observer)

            synced = self._change("sync_shards", key, work)
            added += synced.added
            changed += synced.changed
        return ShardsSynced(tuple(added), tuple(changed))

    def _sync(
        self,
        tx: Transaction,
        key: GroupKey,
        chunk: Sequence[ShardId],
        listed: Mapping[ShardId, ShardListing],
        observer: str,
    ) -> ShardsSynced:
        rows = self._lock_shards(tx, key, chunk)
        relisted = [
            Step(row, after, ())
            for shard, row in rows.items()
            if (after := lineage.listed_again(row, listed[shard], listed)) != row
        ]
        self._carry_out(tx, key, relisted, observer)
        new = [listed[shard] for shard in chunk if shard not in rows]
        parents = {parent for entry in new for parent in entry.parents}
        added = lineage.shards_first_seen(
            new,
            self._shards(tx, key, parents),
            parents & listed.keys(),
            ordered=self._group(tx, key).ordered,
        )
        self._insert_shards(tx, key, [row for row, _ in added])
        self._journal(tx, key, [note for _, note in added], observer)
        synced = ShardsSynced(
            tuple(row.shard for row, _ in added), tuple(step.after.shard for step in relisted)
        )
        return synced if added or relisted else tx.abandon(synced)

    @override
    def claim(
        self, key: GroupKey, claims: Claims, *, observer: str, reason: str
    ) -> dict[ShardId, Changed | Stale]:
        def rule(row: ShardLease, takers: set[NodeName]) -> Step | None:
            node, _ = claims[row.shard]
            return transitions.claimed(row, node, reason) if node in takers else None

        seen = {shard: lease_id for shard, (_, lease_id) in _by_taker(claims)}
        return self._steps("claim", key, seen, rule, by=observer, takers=self._takers)

    @override
    def begin_transfer(
        self, key: GroupKey, transfers: Transfers, *, observer: str
    ) -> dict[ShardId, Changed | Stale]:
        def rule(row: ShardLease, members: set[NodeName]) -> Step | None:
            to, _, reason = transfers[row.shard]
            return transitions.transfer_begun(row, to, reason) if to in members else None

        seen = {shard: lease_id for shard, (_, lease_id, _) in _by_taker(transfers)}
        return self._steps("begin_transfer", key, seen, rule, by=observer)

    @override
    def cancel_transfer(
        self, key: GroupKey, shard: ShardId, seen_lease_id: int, *, observer: str, reason: str
    ) -> Changed | Stale:
        def rule(row: ShardLease, _: object) -> Step | None:
            return transitions.transfer_cancelled(row, reason)

        return self._step("cancel_transfer", key, shard, seen_lease_id, rule, by=observer)

    @override
    def complete_transfer(
        self, key: GroupKey, shard: ShardId, seen_lease_id: int, *, observer: str, reason: str
    ) -> Changed | Stale:
        def rule(row: ShardLease, members: set[NodeName]) -> Step | None:
            next_lives = row.lease_owner in members
            return transitions.transfer_completed(row, reason) if next_lives else None

        return self._step("complete_transfer", key, shard, seen_lease_id, rule, by=observer)

    def _step(
        self, kind: str, key: GroupKey, shard: ShardId, lease_id: int, rule: _Rule, *, by: str
    ) -> Changed | Stale:
        return self._steps(kind, key, {shard: lease_id}, rule, by=by)[shard]

    def _steps(
        self,
        kind: str,
        key: GroupKey,
        seen: Mapping[ShardId, int],
        rule: _Rule,
        *,
        by: str,
        takers: Callable[[Transaction, GroupKey], set[NodeName]] | None = None,
    ) -> dict[ShardId, Changed | Stale]:
        """Take a step for each shard whose `lease_id` is the one seen; `rule` is given the takers.

        Many shards are several transactions, each whole.
        """
        outcomes: dict[ShardId, Changed | Stale] = {}
        for chunk in chunks(list(seen)):

            def work(
                tx: Transaction, chunk: Sequence[ShardId] = chunk
            ) -> dict[ShardId, Changed | Stale]:
                nodes = (takers or self._members)(tx, key)
                steps = [
                    step
                    for shard, row in self._lock_shards(tx, key, chunk).items()
                    if row.lease_id == seen[shard] and (step := rule(row, nodes))
                ]
                stale: dict[ShardId, Changed | Stale] = dict.fromkeys(chunk, Stale())
                if not steps:
                    return tx.abandon(stale)
                self._carry_out(tx, key, steps, by)
                return stale | {step.after.shard: Changed((step.after.shard,)) for step in steps}

            outcomes |= self._change(kind, key, work)
        return outcomes

    def _takers(self, tx: Transaction, key: GroupKey) -> set[NodeName]:
        """Return the members that may claim: none while the group is paused."""
        return set[NodeName]() if self._group(tx, key).paused else self._members(tx, key)

    @override
    def free_orphans(self, key: GroupKey, *, observer: str) -> Changed:
        """Free orphans; nothing is locked where there is none."""

        def steps(tx: Transaction, *, lock: bool) -> list[Step]:
            ordered = self._group(tx, key).ordered
            members = self._members(tx, key)
            shards = self._all_shards(tx, key, lock=lock)
            freed = [step for row in shards if (step := transitions.orphan_freed(row, members))]
            return freed + lineage.freed_to_start(
                shards, ordered=ordered, reason=lineage.PARENTS_OVER
            )

        def work(tx: Transaction) -> Changed:
            freed = steps(tx, lock=True)
            return self._carry_out(tx, key, freed, observer) if freed else tx.abandon(Changed())

        if not self._read("free_orphans", lambda tx: bool(steps(tx, lock=False))):
            return Changed()
        return self._change("free_orphans", key, work)

    @override
    def skip_record(
        self, key: GroupKey, shard: ShardId, cursor: str | None, *, observer: str
    ) -> Changed | Stale:
        def work(tx: Transaction) -> Changed | Stale:
            step = transitions.skipped(self._lock_shard(tx, key, shard), cursor)
            return (
                tx.abandon(Stale()) if step is None else self._carry_out(tx, key, [step], observer)
            )

        return self._write("skip_record", work, mark=self._journalled(key, shard))

    @override
    def acknowledge_gap(self, key: GroupKey, gap: Gap, *, observer: str) -> Changed | Stale:
        def work(tx: Transaction) -> Changed | Stale:
            self._group(tx, key)
            self._lock_shard(tx, key, gap.shard)
            own = {"shard_id": gap.shard, "start_cursor": gap.start, "end_cursor": gap.end}
            row = tx.rows(rows_of(tables.gap, key, **own)).first()
            if row is None or GAP.read(row).acknowledged:
                return tx.abandon(Stale())
            self._change_row(tx, tables.gap, key, {"acknowledged": True}, **own)
            self._journal(tx, key, [acknowledgement(gap)], observer)
            return Changed((gap.shard,))

        mark = self._journalled(key, gap.shard)
        return self._write("acknowledge_gap", work, mark=mark)


def _by_taker(moves: Mapping[ShardId, _Move]) -> list[tuple[ShardId, _Move]]:
    """Return moves in the order of the nodes that gain: theirs are then one statement each.

    Cut in the order of the shards, a transaction would have as many statements as moves.
    """
    return sorted(moves.items(), key=lambda move: (move[1][0], move[0]))
