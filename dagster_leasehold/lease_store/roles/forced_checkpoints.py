"""The role for forced checkpoints: by an operator, or at a pinned node's bootstrap cursor."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from dagster_leasehold.lease_store.identifiers import GroupKey, NodeName, ShardId
from dagster_leasehold.lease_store.ledger_rows import Batch, BatchState, LedgerCounters
from dagster_leasehold.lease_store.outcomes import Changed, Stale
from dagster_leasehold.lease_store.publication_rows import ChangeKind
from dagster_leasehold.lease_store.roles.operations import (
    Operations,
    Rows,
    abandon_intent,
    chunks,
    page_sizes,
    record_removal,
)
from dagster_leasehold.lease_store.roles.publication_holds import end_hold
from dagster_leasehold.lease_store.rules.refusals import unknown_shard
from dagster_leasehold.lease_store.rules.reopening import Forcing, Reopening, concerned, force
from dagster_leasehold.lease_store.rules.starting_point import bootstrap_reason, may_bootstrap
from dagster_leasehold.lease_store.rules.withdrawal import Ledger
from dagster_leasehold.lease_store.shard_rows import ShardLease
from dagster_leasehold.lease_store.shard_summary import ShardSummary
from dagster_leasehold.lease_store.stored_rows import Above, Plus, given

WITHDRAWN_PER_STATEMENT = 10_000


class ForcedCheckpoints(Operations):
    """The operations that force a checkpoint and withdraw the batches after it."""

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
        """Force a checkpoint: begin a new epoch, and abandon the intent.

        Committed batches after it are withdrawn. A finished shard is reopened, and `reopen` selects
        what happens to children that were read; in an ordered group the others wait again. A shard
        that is over at this cursor stays over, and `Changed` is empty.

        Raises:
            UnknownShard: the group has no such shard.
            CheckpointRefused: the cursor divides a committed batch, or children were read and
                `reopen` refuses.
        """

        def work(rows: Rows) -> Changed:
            leases = _locked_lineage(rows, shard)
            return _force(rows, _forcing(rows, leases, cursor, reason, reopen), observer)

        return self._changing("force_checkpoint", key, work)

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
        """Force a shard of `node` to its bootstrap cursor, once for each cursor.

        If the log ends before the cursor, `start` is that end. `Stale`: it was done before, the
        node does not hold the shard, or another run has it open. Raises as `force_checkpoint`.
        """

        def work(rows: Rows) -> Changed | Stale:
            leases = _locked_lineage(rows, shard)
            if not may_bootstrap(leases[0], node, cursor, run):
                return rows.abandon(Stale())
            reason = bootstrap_reason(node, cursor, start)
            forcing = _forcing(rows, leases, start or cursor, reason, Reopening.REFUSE)
            return _force(rows, forcing.bootstrapped(cursor), f"run {run}")

        return self._changing("bootstrap", key, work)


def _locked_lineage(rows: Rows, shard: ShardId) -> list[ShardLease]:
    """Lock the rows that forcing a shard affects, its own first."""
    shards = {row.shard: row for row in rows.each_shard()}
    if shard not in shards:
        raise unknown_shard(rows.key, shard)
    names = concerned(shards, shard)
    locked = rows.shards(names, lock=True)
    return [locked[name] for name in names]


def _forcing(
    rows: Rows, leases: list[ShardLease], cursor: str, reason: str, reopen: Reopening
) -> Forcing:
    names = {row.shard for row in leases}
    summaries = rows.select(ShardSummary, shard=names)
    return force(
        leases,
        # Read after the rows are locked, because a holder can commit until then.
        {name: _ledger(rows, name) for name in names},
        cursor,
        key=rows.key,
        ordered=rows.group().ordered,
        members=rows.members(),
        reason=reason,
        reopen=reopen,
        begins={
            each.shard: each.expired.begin for each in summaries if each.shard and each.expired
        },
    )


def _force(rows: Rows, forcing: Forcing, observer: str) -> Changed:
    if not forcing.steps:
        return rows.abandon(Changed())
    for step in forcing.steps:
        abandon_intent(rows, step.after.shard)
        rows.change(LedgerCounters, {"version": Plus(1)}, shard=step.after.shard)
    for name, numbers in forcing.withdrawn.items():
        record_removal(rows, name, ChangeKind.WITHDRAWAL, _reached(rows, name, numbers))
        withdraw(rows, name, numbers)
    rows.journal(forcing.marks, observer)
    return rows.carry_out(forcing.steps, observer)


def _reached(rows: Rows, shard: ShardId, numbers: range) -> Callable[[int], Iterator[Batch]]:
    def removed(until: int) -> Iterator[Batch]:
        reached = numbers[: max(until - numbers.start, 0)]
        return _ledger(rows, shard)(numbers=reached, newest_first=False)

    return removed


def _ledger(rows: Rows, shard: ShardId) -> Ledger:

    def read(*, numbers: range, newest_first: bool) -> Iterator[Batch]:
        own = given(shard=shard, sequence=numbers, state=BatchState.COMMITTED)
        last: Batch | None = None
        for size in page_sizes(1):
            page = [*rows.select(Batch, limit=size, after=last, newest_first=newest_first, **own)]
            yield from page
            if len(page) < size:
                return
            last = page[-1]

    return read


def withdraw(rows: Rows, shard: ShardId, numbers: range) -> None:
    """Withdraw the last committed batches of a shard, which have these numbers."""
    # In several statements, because the time of each is limited.
    for part in chunks(numbers, WITHDRAWN_PER_STATEMENT):
        changes = {"state": BatchState.WITHDRAWN, "generation": Plus(1)}
        rows.change(Batch, changes, shard=shard, sequence=part, state=BatchState.COMMITTED)
    end = {"committed_until": numbers.start}
    rows.change(LedgerCounters, end, shard=shard, committed_until=Above(numbers.start))
    end_hold(rows, shard, numbers.start)
    reset_folding(rows, shard, numbers.start)


def reset_folding(rows: Rows, shard: ShardId, sequence: int) -> None:
    """Mark ledger rows from `sequence` on as changed, so that folding examines them again."""
    changes = {"folded_until": sequence, "version": Plus(1)}
    rows.change(ShardSummary, changes, shard=shard, folded_until=Above(sequence))
