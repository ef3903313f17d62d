"""The role for holders: writing the ledger of a shard under a tenure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from dagster_leasehold.lease_store.identifiers import ShardId
from dagster_leasehold.lease_store.journal_rows import OutboxEvent
from dagster_leasehold.lease_store.ledger_rows import Batch, BatchCommit, BatchState, Intent
from dagster_leasehold.lease_store.outcomes import Changed, Stale
from dagster_leasehold.lease_store.roles.operations import Operations, Rows, abandon_intent
from dagster_leasehold.lease_store.rules import ledger as rules
from dagster_leasehold.lease_store.rules.lineage import PARENTS_OVER, freed_to_start
from dagster_leasehold.lease_store.rules.transitions import FINISHED, finished, holds
from dagster_leasehold.lease_store.shard_rows import ShardLease, Tenure


class Batches(Operations):
    """The operations that write batches."""

    def record_intents(self, intents: Sequence[Intent]) -> dict[ShardId, Changed | Stale]:
        """Record the ranges about to be consumed; an equal intent of an earlier tenure is adopted.

        `Stale` for a shard means that its tenure is over.

        Raises:
            IntentConflict: a range is not the next of its shard, or ends before it starts.
            CheckpointRefused: a cursor has no place among the shard's.
        """
        if not intents:
            return {}
        own = {intent.tenure.shard: intent for intent in intents}

        def work(rows: Rows) -> dict[ShardId, Changed | Stale]:
            rows.group()
            leases, newest = rows.shards(own, lock=True), rows.newest(own)
            outcomes: dict[ShardId, Changed | Stale] = {}
            new: list[Batch] = []
            adopted: list[Batch] = []
            for shard, intent in own.items():
                row = leases.get(shard)
                if row is None or not holds(row, intent.tenure):
                    outcomes[shard] = Stale()
                    continue
                next_sequence, open_intent = rules.next_in_line(newest.get(shard))
                rules.check_next_in_line(
                    intent,
                    intended=open_intent,
                    next_sequence=next_sequence,
                    check_point=row.check_point,
                )
                (adopted if open_intent else new).append(rules.intended_batch(intent))
                outcomes[shard] = Changed((shard,))
            rows.add(*new)
            rows.write(*adopted, state=BatchState.INTENT)
            return outcomes

        # After a lost reply it runs again, which changes nothing.
        key = rules.group_of([intent.tenure for intent in intents])
        return self._writing("record_intents", key, work)

    def commit(self, commits: Sequence[BatchCommit]) -> dict[ShardId, Changed | Stale]:
        """Make batches visible: tenure check, ledger, checkpoint, state, journal, outbox.

        One transaction; a shard whose tenure is over is left out (`Stale`), the others commit.
        `Changed.shards` names the shards that this commit let start (edge 2). Repeating a commit
        that already happened under the same tenure and attempt is `Changed` again.
        """
        if not commits:
            return {}
        key = rules.group_of([commit.tenure for commit in commits])
        own = {commit.tenure.shard: commit for commit in commits}
        numbers = {commit.tenure.shard: commit.sequence for commit in commits}
        last_accepted: set[ShardId] = set()

        def work(rows: Rows) -> dict[ShardId, Changed | Stale]:
            if any(commit.finished for commit in commits):
                rows.bump()
            else:
                rows.group()
            outcomes: dict[ShardId, Changed | Stale] = dict.fromkeys(own, Stale())
            leases, batches = rows.shards(own, lock=True), rows.numbered(numbers)
            accepted: list[tuple[ShardLease, BatchCommit]] = []
            for shard, commit in own.items():
                batch, row = batches.get(shard), leases.get(shard)
                if rules.already_committed(batch, commit):
                    outcomes[shard] = Changed()
                elif row is not None and holds(row, commit.tenure):
                    rules.check_intended(batch, commit)
                    if rules.may_advance(row.check_point, commit.start):
                        accepted.append((row, commit))
            if not accepted:
                return rows.abandon(outcomes)
            last_accepted.clear()
            last_accepted.update(row.shard for row, _ in accepted)
            return outcomes | self._commit(rows, accepted)

        def mark(rows: Rows) -> bool:
            # A batch that an earlier transaction committed says nothing about this one.
            rows.shards(own, lock=True)
            batches = rows.numbered(numbers)
            return all(
                rules.already_committed(batches.get(shard), own[shard]) for shard in last_accepted
            )

        return self._writing("commit", key, work, mark=mark)

    def finish_empty(self, tenure: Tenure, cursor: str) -> Changed | Stale:
        """Finish a read-only shard (edge 8) that has nothing left to read at `cursor`."""

        def work(rows: Rows) -> Changed | Stale:
            row = rows.shards([tenure.shard], lock=True).get(tenure.shard)
            if (
                row is None
                or not holds(row, tenure)
                or not rules.may_advance(row.check_point, cursor)
            ):
                return rows.abandon(Stale())
            rules.check_place(tenure.key, tenure.shard, cursor)
            abandon_intent(rows, tenure.shard)
            return _finish(rows, row, tenure, cursor)

        return self._changing("finish_empty", tenure.key, work)

    def _commit(
        self, rows: Rows, commits: Sequence[tuple[ShardLease, BatchCommit]]
    ) -> dict[ShardId, Changed | Stale]:
        at, events = self._clock(), list[OutboxEvent]()
        batches = [replace(rules.committed_batch(commit), committed_at=at) for _, commit in commits]
        rows.write(*batches, state=BatchState.INTENT)
        moved = [
            replace(
                row,
                check_point=commit.end,
                watermark=rules.raised(row.watermark, commit.watermark),
                tries=1,
                suspicion=commit.suspicion,
            )
            for row, commit in commits
        ]
        rows.move_checkpoints(moved, [commit for _, commit in commits])
        for batch, (_, commit) in zip(batches, commits, strict=True):
            events += rules.events_of(batch, commit)
        rows.add(*events)
        return {
            row.shard: _finish(rows, row, commit.tenure, commit.end)
            if commit.finished
            else Changed()
            for row, (_, commit) in zip(moved, commits, strict=True)
        }


def _finish(rows: Rows, row: ShardLease, tenure: Tenure, cursor: str) -> Changed:
    """Finish a shard (edge 8) and free its children (edge 2); the group's row is locked."""
    observer = str(tenure.holder)
    rows.carry_out([finished(row, cursor, FINISHED)], observer)
    reason = f"{PARENTS_OVER}, {tenure.shard} last"
    freed = freed_to_start(rows.each_shard(), ordered=rows.group().ordered, reason=reason)
    return rows.carry_out(freed, observer)
