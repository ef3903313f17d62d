"""Rolling a ledger that was restored from a backup forward to its table, in SQL."""

from __future__ import annotations

from typing_extensions import override

from dagster_leasehold.lease_store.identifiers import GroupKey
from dagster_leasehold.lease_store.ledger_rows import ShardTotals
from dagster_leasehold.lease_store.outcomes import Changed, Stale, TurnOver
from dagster_leasehold.lease_store.publication_rows import PublishTurn, ShardAhead
from dagster_leasehold.lease_store.rules import rolling_forward as rules
from dagster_leasehold.lease_store.rules.ledger import next_in_line
from dagster_leasehold.lease_store.rules.lineage import first_seen
from dagster_leasehold.lease_store.rules.refusals import shard_never_listed
from dagster_leasehold.lease_store.rules.withdrawal import NUMBERS_END
from dagster_leasehold.lease_store.shard_rows import ShardLease, ShardListing
from dagster_leasehold.lease_store.sql_store import ledger_statements, shard_statements
from dagster_leasehold.lease_store.sql_store.group_statements import insert_into
from dagster_leasehold.lease_store.sql_store.ledger_statements import look_again
from dagster_leasehold.lease_store.sql_store.mapping import batch_row
from dagster_leasehold.lease_store.sql_store.publication_statements import lock_places
from dagster_leasehold.lease_store.sql_store.publishing import SqlPublishing
from dagster_leasehold.lease_store.tables import batch as batch_table
from dagster_leasehold.lease_store.tables import publication as publication_table
from dagster_leasehold.lease_store.transactions import Transaction


class SqlRollingForward(SqlPublishing):
    """The verb that rolls a shard forward; the group's row is locked first, as for a force."""

    @override
    def roll_forward(self, turn: PublishTurn, ahead: ShardAhead) -> Changed | TurnOver | Stale:
        key, shard = turn.key, ahead.shard

        def work(tx: Transaction) -> Changed | TurnOver | Stale:
            if not self._has_publish_turn(tx, turn):
                return tx.abandon(TurnOver())
            row = self._lock_shards(tx, key, [shard]).get(shard) or self._added(tx, key, ahead)
            (place,) = tx.rows(lock_places(key, [shard])).all()
            if not rules.may_roll_forward(row, place["ledger_version"], ahead):
                return tx.abandon(Stale())
            next_number, intent = next_in_line(self._newest(tx, key, [shard]).get(shard))
            if intent is not None:
                self._abandon_intent(tx, key, shard)
                next_number += 1
            rolled = rules.roll_forward(
                row, ahead, self._members(tx, key), next_number=next_number, at=self._clock()
            )
            self._write_rolled(tx, key, ahead, rolled)
            before = self._locked_publication(tx, key)
            after = rules.unsettled(before, ahead)
            values = {"last_publication": after.last, "number": after.number}
            self._change_row(tx, publication_table, key, values)
            return self._carry_out(tx, key, [rolled.step], rules.HOLDER)

        return self._change("roll_forward", key, work)

    def _added(self, tx: Transaction, key: GroupKey, ahead: ShardAhead) -> ShardLease:
        """Add a shard that the group does not have."""
        if self._group(tx, key).ordered:
            raise shard_never_listed(key, ahead.shard)
        row, note = first_seen(ShardListing(ahead.shard), ordered=False, states={})
        self._insert_shards(tx, key, [row])
        self._journal(tx, key, [note], rules.HOLDER)
        return row

    def _write_rolled(
        self, tx: Transaction, key: GroupKey, ahead: ShardAhead, rolled: rules.RolledForward
    ) -> None:
        shard, numbers = ahead.shard, range(ahead.first, NUMBERS_END)
        # The table follows no change here: it has what it should have, in other files.
        tx.connection.execute(ledger_statements.withdraw_batches(key, shard, numbers))
        tx.connection.execute(look_again(key, shard, ahead.first))
        for batch in rolled.batches:
            tx.connection.execute(insert_into(batch_table), [batch_row(key, batch)])
        added = rolled.totals(ShardTotals(shard))
        until, rows = rolled.next_number, len(rolled.batches)
        changed = tx.connection.execute(
            shard_statements.add_published(key, shard, until, added, rows)
        ).rowcount
        assert changed == 1, "The row is locked."
