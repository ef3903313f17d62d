"""Gaps in SQL."""

from __future__ import annotations

from dagster_leasehold.lease_store.identifiers import GroupKey
from dagster_leasehold.lease_store.journal_rows import Gap
from dagster_leasehold.lease_store.outcomes import Changed, Stale
from dagster_leasehold.lease_store.rules.gap_policy import acknowledgement, gap_note, gap_write
from dagster_leasehold.lease_store.rules.refusals import gap_refused
from dagster_leasehold.lease_store.shard_rows import Tenure
from dagster_leasehold.lease_store.sql_store import statements
from dagster_leasehold.lease_store.sql_store.rows import gap_from, gap_values, key_values
from dagster_leasehold.lease_store.sql_store.tenures import SqlTenures
from dagster_leasehold.lease_store.transactions import Transaction


class SqlGaps(SqlTenures):
    """The verbs on gaps; each locks the shard's row first."""

    def record_gap(
        self, tenure: Tenure, *, start: str, end: str, reason: str, skip: bool = True
    ) -> None:
        """See `LeaseStore.record_gap`. Recording the same again is harmless."""
        key = tenure.key
        gap = Gap(tenure.shard, start, end, reason, self._clock())

        def work(tx: Transaction) -> None:
            row = self._held(tx, tenure)
            rows = tx.connection.execute(statements.select_gaps_at(key, gap.shard, start))
            known = [gap_from(found_row) for found_row in rows.mappings()]
            write = gap_write(gap, known, check_point=row.check_point, accepted=skip)
            if write is None:
                return tx.abandon(None)
            if row.check_point not in (None, start):
                raise gap_refused(tenure, start, row.check_point)
            values = gap_values(write.gap)
            if write.replaces is None:
                values |= key_values(key) | {"shard_id": gap.shard}
                tx.connection.execute(statements.insert_gap(values))
            else:
                before = write.replaces
                self._change_row(
                    tx, statements.update_gap(key, gap.shard, before.start, before.end, values)
                )
            self._journal(tx, key, [gap_note(write.gap, tenure)], str(tenure.holder))
            if write.moves:
                self._abandon_intent(tx, key, tenure.shard)
                self._write_current(tx, tenure, {"check_point": end})
            return None

        self._write("record_gap", work)

    def acknowledge_gap(self, key: GroupKey, gap: Gap, *, observer: str) -> Changed | Stale:
        """See `LeaseStore.acknowledge_gap`."""

        def work(tx: Transaction) -> Changed | Stale:
            self._group(tx, key)
            self._lock_shard(tx, key, gap.shard)
            rows = tx.connection.execute(statements.select_gaps_at(key, gap.shard, gap.start))
            known = [gap_from(row) for row in rows.mappings()]
            if not any(each.end == gap.end and not each.acknowledged for each in known):
                return tx.abandon(Stale())
            accepted = statements.update_gap(
                key, gap.shard, gap.start, gap.end, {"acknowledged": True}
            )
            self._change_row(tx, accepted)
            self._journal(tx, key, [acknowledgement(gap)], observer)
            return Changed((gap.shard,))

        mark = self._journalled_of_shard(key, gap.shard)
        return self._write("acknowledge_gap", work, mark=mark)
