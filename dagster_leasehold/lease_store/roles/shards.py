"""The role for planners and operators: the shard list, claims and transfers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from dagster_leasehold.lease_store.identifiers import GroupKey, NodeName, ShardId
from dagster_leasehold.lease_store.journal_rows import Gap
from dagster_leasehold.lease_store.outcomes import Changed, ShardsSynced, Stale
from dagster_leasehold.lease_store.roles.forced_checkpoints import ForcedCheckpoints
from dagster_leasehold.lease_store.roles.operations import (
    ROWS_PER_TRANSACTION,
    Rows,
    chunks,
    journalled,
    locked_shard,
)
from dagster_leasehold.lease_store.rules import lineage, transitions
from dagster_leasehold.lease_store.rules.gap_policy import acknowledgement
from dagster_leasehold.lease_store.rules.transitions import Step
from dagster_leasehold.lease_store.shard_rows import ShardLease, ShardListing

_Move = TypeVar("_Move", bound=tuple[Any, ...])
Claims = Mapping[ShardId, tuple[NodeName, int]]
"""For each shard the node that claims it, and the `lease_id` that the planner read."""
Transfers = Mapping[ShardId, tuple[NodeName, int, str]]
"""For each shard the next node, the `lease_id` that the planner read, and the reason."""


class Shards(ForcedCheckpoints):
    """The operations on shards that need no tenure."""

    def sync_shards(
        self, key: GroupKey, listing: Sequence[ShardListing], *, observer: str
    ) -> ShardsSynced:
        """Add new shards (edge 1), and update lineage and flags; no shard is removed.

        An unchanged listing writes and locks nothing. A long list takes several transactions,
        because the server ends a transaction that stalls while its process works on rows.
        """
        listed = {entry.shard: entry for entry in listing}

        def read(rows: Rows) -> Iterator[ShardLease]:
            rows.group()
            return rows.each_shard()

        leases = {row.shard: row for row in self._reading("sync_shards", key, read)}
        differing = [
            shard
            for shard, entry in sorted(listed.items())
            if shard not in leases
            or lineage.listed_again(leases[shard], entry, listed) != leases[shard]
        ]
        added, changed = list[ShardId](), list[ShardId]()
        for chunk in chunks(differing, ROWS_PER_TRANSACTION):

            def work(rows: Rows, chunk: Sequence[ShardId] = chunk) -> ShardsSynced:
                return _sync(rows, chunk, listed, observer)

            synced = self._changing("sync_shards", key, work)
            added += synced.added
            changed += synced.changed
        return ShardsSynced(tuple(added), tuple(changed))

    def claim(
        self, key: GroupKey, claims: Claims, *, observer: str, reason: str
    ) -> dict[ShardId, Changed | Stale]:
        """Assign each shard to its node (edge 3), if its `lease_id` is unchanged."""

        def rule(row: ShardLease, takers: set[NodeName]) -> Step | None:
            node, _ = claims[row.shard]
            return transitions.claimed(row, node, reason) if node in takers else None

        lease_ids = {shard: lease_id for shard, (_, lease_id) in _by_taker(claims)}
        return self._steps("claim", key, lease_ids, rule, by=observer, takers=_takers)

    def begin_transfer(
        self, key: GroupKey, transfers: Transfers, *, observer: str
    ) -> dict[ShardId, Changed | Stale]:
        """Begin transfers (edge 5); a holder without an open run releases at once (edge 6)."""

        def rule(row: ShardLease, members: set[NodeName]) -> Step | None:
            to, _, reason = transfers[row.shard]
            return transitions.transfer_begun(row, to, reason) if to in members else None

        lease_ids = {shard: lease_id for shard, (_, lease_id, _) in _by_taker(transfers)}
        return self._steps("begin_transfer", key, lease_ids, rule, by=observer)

    def cancel_transfer(
        self, key: GroupKey, shard: ShardId, seen_lease_id: int, *, observer: str, reason: str
    ) -> Changed | Stale:
        """Return a shard to its holder (edge 6): the next node died, or the plan changed."""

        def rule(row: ShardLease, _: object) -> Step | None:
            return transitions.transfer_cancelled(row, reason)

        lease_ids = {shard: seen_lease_id}
        return self._steps("cancel_transfer", key, lease_ids, rule, by=observer)[shard]

    def complete_transfer(
        self, key: GroupKey, shard: ShardId, seen_lease_id: int, *, observer: str, reason: str
    ) -> Changed | Stale:
        """End a transfer without the idle or late holder (edge 6); its tenure is fenced."""

        def rule(row: ShardLease, members: set[NodeName]) -> Step | None:
            next_lives = row.lease_owner in members
            return transitions.transfer_completed(row, reason) if next_lives else None

        lease_ids = {shard: seen_lease_id}
        return self._steps("complete_transfer", key, lease_ids, rule, by=observer)[shard]

    def free_orphans(self, key: GroupKey, *, observer: str) -> Changed:
        """Repair shards that no other operation changes (edges 2, 4, 6, 9).

        Their holder or next node is not a member, or all parents of a waiting shard are over.
        """

        def steps(rows: Rows, *, lock: bool) -> list[Step]:
            ordered, members = rows.group().ordered, rows.members()
            shards = list(rows.each_shard(lock=lock))
            freed = [step for row in shards if (step := transitions.orphan_freed(row, members))]
            return freed + lineage.freed_to_start(
                shards, ordered=ordered, reason=lineage.PARENTS_OVER
            )

        def work(rows: Rows) -> Changed:
            freed = steps(rows, lock=True)
            return rows.carry_out(freed, observer) if freed else rows.abandon(Changed())

        # Nothing is locked if there is no orphan.
        if not self._reading("free_orphans", key, lambda rows: bool(steps(rows, lock=False))):
            return Changed()
        return self._changing("free_orphans", key, work)

    def skip_record(
        self, key: GroupKey, shard: ShardId, cursor: str | None, *, observer: str
    ) -> Changed | Stale:
        """Let the next run quarantine the record at which a shard is held.

        `Stale` if the shard is not held at this cursor.
        """

        def work(rows: Rows) -> Changed | Stale:
            step = transitions.skipped(locked_shard(rows, shard), cursor)
            return rows.abandon(Stale()) if step is None else rows.carry_out([step], observer)

        return self._writing("skip_record", key, work, mark=journalled(shard))

    def acknowledge_gap(self, key: GroupKey, gap: Gap, *, observer: str) -> Changed | Stale:
        """Accept the loss of exactly this range; `Stale` if it was accepted or has changed."""

        def work(rows: Rows) -> Changed | Stale:
            rows.group()
            locked_shard(rows, gap.shard)
            row = rows.first(Gap, shard=gap.shard, start=gap.start, end=gap.end)
            if row is None or row.acknowledged:
                return rows.abandon(Stale())
            rows.write(replace(row, acknowledged=True))
            rows.journal([acknowledgement(gap)], observer)
            return Changed((gap.shard,))

        return self._writing("acknowledge_gap", key, work, mark=journalled(gap.shard))

    def _steps(
        self,
        kind: str,
        key: GroupKey,
        lease_ids: Mapping[ShardId, int],
        rule: Callable[[ShardLease, set[NodeName]], Step | None],
        *,
        by: str,
        takers: Callable[[Rows], set[NodeName]] = lambda rows: rows.members(),
    ) -> dict[ShardId, Changed | Stale]:
        """Take a step for each shard whose `lease_id` is unchanged; `rule` gets the takers."""
        outcomes: dict[ShardId, Changed | Stale] = {}
        for chunk in chunks(list(lease_ids), ROWS_PER_TRANSACTION):

            def work(
                rows: Rows, chunk: Sequence[ShardId] = chunk
            ) -> dict[ShardId, Changed | Stale]:
                nodes = takers(rows)
                steps = [
                    step
                    for shard, row in rows.shards(chunk, lock=True).items()
                    if row.lease_id == lease_ids[shard] and (step := rule(row, nodes))
                ]
                stale: dict[ShardId, Changed | Stale] = dict.fromkeys(chunk, Stale())
                if not steps:
                    return rows.abandon(stale)
                rows.carry_out(steps, by)
                return stale | {step.after.shard: Changed((step.after.shard,)) for step in steps}

            outcomes |= self._changing(kind, key, work)
        return outcomes


def _sync(
    rows: Rows, chunk: Sequence[ShardId], listed: Mapping[ShardId, ShardListing], observer: str
) -> ShardsSynced:
    leases = rows.shards(chunk, lock=True)
    relisted = [
        Step(row, after, ())
        for shard, row in leases.items()
        if (after := lineage.listed_again(row, listed[shard], listed)) != row
    ]
    rows.carry_out(relisted, observer)
    new = [listed[shard] for shard in chunk if shard not in leases]
    parents = {parent for entry in new for parent in entry.parents}
    added = lineage.shards_first_seen(
        new, rows.shards(parents).values(), parents & listed.keys(), ordered=rows.group().ordered
    )
    rows.add(*(row for row, _ in added))
    rows.journal([note for _, note in added], observer)
    synced = ShardsSynced(
        tuple(row.shard for row, _ in added), tuple(step.after.shard for step in relisted)
    )
    return synced if added or relisted else rows.abandon(synced)


def _takers(rows: Rows) -> set[NodeName]:
    """Return the members that can claim: none while the group is paused."""
    return set[NodeName]() if rows.group().paused else rows.members()


def _by_taker(moves: Mapping[ShardId, _Move]) -> list[tuple[ShardId, _Move]]:
    """Sort moves by the gaining node, so that each node's moves are one statement."""
    return sorted(moves.items(), key=lambda move: (move[1][0], move[0]))
