"""Rolling a ledger that was restored from a backup forward to its table, in memory."""

from __future__ import annotations

from typing_extensions import override

from dagster_leasehold.lease_store.ledger_rows import ShardTotals
from dagster_leasehold.lease_store.memory_store.publications import MemoryPublications
from dagster_leasehold.lease_store.memory_store.rows import GroupRows
from dagster_leasehold.lease_store.outcomes import Changed, Stale, TurnOver
from dagster_leasehold.lease_store.publication_rows import PublishTurn, ShardAhead
from dagster_leasehold.lease_store.rules import rolling_forward as rules
from dagster_leasehold.lease_store.rules.lineage import first_seen
from dagster_leasehold.lease_store.rules.refusals import shard_never_listed
from dagster_leasehold.lease_store.rules.withdrawal import withdrawal
from dagster_leasehold.lease_store.shard_rows import ShardLease, ShardListing


class MemoryRollingForward(MemoryPublications):
    """The verb that rolls a shard forward."""

    @override
    def roll_forward(self, turn: PublishTurn, ahead: ShardAhead) -> Changed | TurnOver | Stale:
        shard = ahead.shard
        with self._rows("roll_forward", turn.key) as rows:
            if rows.publication is None or not rows.publishing.is_of(turn.node, turn.epoch):
                return TurnOver()
            row = rows.shards.get(shard)
            if row is None:
                row = self._added(rows, ahead)
            if not rules.may_roll_forward(row, rows.versions[shard], ahead):
                return Stale()
            rows.abandon_intents(shard)
            rolled = rules.roll_forward(
                row, ahead, rows.members, next_number=rows.next_sequence(shard), at=self._clock()
            )
            gone = rows.committed(shard, ahead.first)
            rows.batches.update({(shard, each.sequence): withdrawal(each) for each in gone})
            rows.look_again(shard, ahead.first)
            rows.batches.update({(shard, each.sequence): each for each in rolled.batches})
            rows.versions[shard] += 1
            rows.published[shard] = rolled.next_number
            rows.totals[shard] = rolled.totals(rows.totals.get(shard, ShardTotals(shard)))
            rows.publication = rules.unsettled(rows.publication, ahead)
            rows.bump()
            return Changed(self._write(rows, [rolled.step], rules.HOLDER))

    def _added(self, rows: GroupRows, ahead: ShardAhead) -> ShardLease:
        """Add a shard that the group does not have."""
        if rows.group.ordered:
            raise shard_never_listed(rows.group.key, ahead.shard)
        row, note = first_seen(ShardListing(ahead.shard), ordered=False, states={})
        rows.shards[ahead.shard] = row
        self._note(rows, note, rules.HOLDER)
        return row
