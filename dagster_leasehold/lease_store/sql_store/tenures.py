"""Tenures in SQL: opening, reviewing and ending the consumption of a shard."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any, Protocol, TypeVar

from typing_extensions import override

from dagster_leasehold.lease_store import tables
from dagster_leasehold.lease_store.identifiers import GroupKey, NodeName, ShardId
from dagster_leasehold.lease_store.journal_rows import Gap
from dagster_leasehold.lease_store.outcomes import NotHeld, OpenByOther, Opened, TenureView
from dagster_leasehold.lease_store.roles.tenures import Tenures
from dagster_leasehold.lease_store.rules import transitions
from dagster_leasehold.lease_store.rules.gap_policy import check_gap, gap_note, gap_write
from dagster_leasehold.lease_store.rules.isolation import Suspicion, suspicion_values, tries_after
from dagster_leasehold.lease_store.rules.ledger import check_onwards, next_in_line
from dagster_leasehold.lease_store.rules.refusals import unknown_group
from dagster_leasehold.lease_store.rules.states import ShardState
from dagster_leasehold.lease_store.shard_rows import ShardLease, Tenure
from dagster_leasehold.lease_store.sql_store import ledger_statements, shard_statements
from dagster_leasehold.lease_store.sql_store.mapping import GAP, SHARD
from dagster_leasehold.lease_store.sql_store.verbs import SqlVerbs
from dagster_leasehold.lease_store.transactions import Outcome, Transaction

_NO_TRY_FAILED: dict[str, Any] = {"tries": 1, "suspicion": None}
"""The columns of a shard whose checkpoint has just moved under the open tenure."""
Outcome_co = TypeVar("Outcome_co", covariant=True)


class _Moving(Exception):
    """The shard is in transfer: the verb must take the group's row first."""


class _MovingWork(Protocol[Outcome_co]):
    def __call__(self, tx: Transaction, *, moving: bool) -> Outcome_co: ...


class SqlTenures(SqlVerbs, Tenures):
    """The verbs on tenures."""

    @override
    def open_tenure(
        self, key: GroupKey, shard: ShardId, node: NodeName, run: str, replaces: str | None = None
    ) -> Opened | OpenByOther | NotHeld:
        def work(tx: Transaction, *, moving: bool) -> Opened | OpenByOther | NotHeld:
            row = self._lock_shard(tx, key, shard)
            # Looked at behind the lock: see `lease_store.draining`.
            paused = self._group(tx, key).paused
            refused = transitions.opening_refused(row, node, replaces, paused=paused)
            if refused is not None:
                return tx.abandon(refused)
            if row.state is ShardState.TRANSFER:
                if not moving:
                    raise _Moving
                # The holder's run died before it let go: nobody else would hand the shard over.
                reason = f"its run {row.consumer_run} had ended"
                step = transitions.closed(row, self._members(tx, key), reason, gave_up=True)
                self._carry_out(tx, key, [step], str(node))
                return NotHeld(row.state.value, step.after.consumer_owner)
            return self._opened(tx, key, [row], node, run)[shard]

        return self._held_still("open_tenure", key, shard, work)

    @override
    def open_tenures(
        self,
        key: GroupKey,
        shards: Sequence[ShardId],
        node: NodeName,
        run: str,
        *,
        replaces: Mapping[ShardId, str],
    ) -> dict[ShardId, Opened | OpenByOther | NotHeld]:
        if not shards:
            return {}

        def work(tx: Transaction) -> dict[ShardId, Opened | OpenByOther | NotHeld]:
            rows = self._lock_shards(tx, key, shards)
            # Looked at behind the locks: see `lease_store.draining`.
            paused = self._group(tx, key).paused
            outcomes: dict[ShardId, Opened | OpenByOther | NotHeld] = {}
            ready: list[ShardLease] = []
            for shard, row in rows.items():
                refused = transitions.opening_refused(row, node, replaces.get(shard), paused=paused)
                if refused is not None:
                    outcomes[shard] = refused
                elif row.state is not ShardState.TRANSFER:
                    ready.append(row)
            if not ready:
                return tx.abandon(outcomes)
            return outcomes | self._opened(tx, key, ready, node, run)

        mark = self._journalled(key, shards[0])
        return self._write("open_tenure", work, mark=mark)

    def _opened(
        self, tx: Transaction, key: GroupKey, rows: Sequence[ShardLease], node: NodeName, run: str
    ) -> dict[ShardId, Opened]:
        """Open some locked shards; return what their holder needs to know."""
        newest = self._newest(tx, key, [row.shard for row in rows])
        steps: list[transitions.Step] = []
        outcomes: dict[ShardId, Opened] = {}
        for row in rows:
            next_sequence, intent = next_in_line(newest.get(row.shard))
            step = transitions.opened(row, run, unfinished=intent is not None)
            steps.append(step)
            outcomes[row.shard] = transitions.opening(key, step, node, next_sequence, intent)
        self._carry_out(tx, key, steps, str(node))
        return outcomes

    @override
    def review(self, tenures: Sequence[Tenure]) -> dict[ShardId, TenureView]:
        if not tenures:
            return {}
        key = tenures[0].key

        def work(tx: Transaction) -> dict[ShardId, TenureView]:
            statement = shard_statements.review(key, [tenure.shard for tenure in tenures])
            rows = tx.rows(statement).all()
            if not rows:
                raise unknown_group(key)
            leases = [SHARD.read(row) for row in rows if row["shard_id"] is not None]
            shards = {row.shard: row for row in leases}
            paused = bool(rows[0]["paused"])
            return {
                tenure.shard: transitions.tenure_view(
                    shards.get(tenure.shard), tenure, paused=paused
                )
                for tenure in tenures
            }

        return self._read("review", work)

    @override
    def announce(self, tenure: Tenure, *, handoff_eta_s: float) -> None:
        def work(tx: Transaction, *, moving: bool) -> None:
            row = self._held(tx, tenure)
            if row.state is ShardState.TRANSFER and not moving:
                raise _Moving
            self._write_current(tx, tenure, {"handoff_eta_s": handoff_eta_s})

        self._held_still("announce", tenure.key, tenure.shard, work)

    @override
    def announce_all(self, tenures: Sequence[Tenure], *, handoff_eta_s: float) -> set[ShardId]:
        if not tenures:
            return set()
        key, holder = tenures[0].key, str(tenures[0].holder)

        def work(tx: Transaction) -> set[ShardId]:
            rows = self._held_rows(tx, tenures)
            steps = [
                transitions.Step(row, replace(row, handoff_eta_s=handoff_eta_s), ()) for row in rows
            ]
            return set(self._carry_out(tx, key, steps, holder).shards)

        return self._write("announce", work)

    @override
    def close_tenure(
        self,
        tenure: Tenure,
        *,
        reason: str,
        gave_up: bool = False,
        failed_at: datetime | None = None,
    ) -> None:
        def work(tx: Transaction, *, moving: bool) -> None:
            row = self._held(tx, tenure)
            if row.state is ShardState.TRANSFER and not moving:
                raise _Moving
            members = self._members(tx, tenure.key) if moving else set[NodeName]()
            step = transitions.closed(row, members, reason, gave_up=gave_up, failed_at=failed_at)
            self._carry_out(tx, tenure.key, [step], str(tenure.holder))

        self._held_still("close_tenure", tenure.key, tenure.shard, work)

    @override
    def close_tenures(
        self,
        tenures: Sequence[Tenure],
        *,
        reason: str,
        gave_up: bool = False,
        failed_at: datetime | None = None,
    ) -> set[ShardId]:
        if not tenures:
            return set()
        key, first = tenures[0].key, tenures[0]

        def work(tx: Transaction) -> set[ShardId]:
            steps = [
                transitions.closed(row, set(), reason, gave_up=gave_up, failed_at=failed_at)
                for row in self._held_rows(tx, tenures)
            ]
            if not steps:
                return tx.abandon(set[ShardId]())
            self._carry_out(tx, key, steps, str(first.holder))
            return {step.after.shard for step in steps}

        mark = self._journalled(key, first.shard)
        return self._write("close_tenure", work, mark=mark)

    @override
    def save_checkpoint(self, tenure: Tenure, cursor: str) -> None:
        """Save a checkpoint; saving the same again is harmless."""

        def work(tx: Transaction) -> None:
            row = self._lock_shards(tx, tenure.key, [tenure.shard]).get(tenure.shard)
            if row is not None and transitions.holds(row, tenure):
                check_onwards(tenure, row.check_point, cursor)
            self._write_current(tx, tenure, {"check_point": cursor} | _NO_TRY_FAILED)

        self._write("save_checkpoint", work)

    @override
    def record_gap(
        self, tenure: Tenure, *, start: str, end: str, reason: str, skip: bool = True
    ) -> None:
        """Record a gap; recording the same one again is harmless."""
        key = tenure.key
        gap = Gap(tenure.shard, start, end, reason, self._clock())

        def work(tx: Transaction) -> None:
            row = self._held(tx, tenure)
            gaps = tx.all(ledger_statements.select_gaps_at(key, gap.shard, start), GAP.read)
            write = gap_write(gap, gaps, check_point=row.check_point, accepted=skip)
            if write is None:
                return tx.abandon(None)
            check_gap(gap, tenure, row.check_point)
            if write.replaces is None:
                self._add_row(tx, tables.gap, GAP.row(key, write.gap))
            else:
                values, end_seen = GAP.values(write.gap), write.replaces.end
                own = {"shard_id": gap.shard, "start_cursor": start, "end_cursor": end_seen}
                self._change_row(tx, tables.gap, key, values, **own)
            self._journal(tx, key, [gap_note(write.gap, tenure)], str(tenure.holder))
            if write.moves:
                self._abandon_intent(tx, key, tenure.shard)
                self._write_current(tx, tenure, {"check_point": end} | _NO_TRY_FAILED)
            return None

        self._write("record_gap", work)

    @override
    def suspect(self, tenure: Tenure, suspicion: Suspicion, *, abandon: bool) -> None:
        """Record a suspicion; recording the same one again is harmless."""

        def work(tx: Transaction) -> None:
            row = self._held(tx, tenure)
            tries = tries_after(row.tries, row.suspicion, suspicion, abandon=abandon)
            if abandon:
                self._abandon_intent(tx, tenure.key, tenure.shard)
            values = {"tries": tries, "suspicion": suspicion_values(suspicion)}
            self._write_current(tx, tenure, values)

        self._write("suspect", work)

    def _held_rows(self, tx: Transaction, tenures: Sequence[Tenure]) -> list[ShardLease]:
        """Lock the rows of tenures of one group; return those that hold, none in transfer."""
        locked = self._lock_shards(tx, tenures[0].key, [tenure.shard for tenure in tenures])
        rows = [(locked.get(tenure.shard), tenure) for tenure in tenures]
        return [
            row
            for row, tenure in rows
            if row is not None
            and transitions.holds(row, tenure)
            and row.state is not ShardState.TRANSFER
        ]

    def _held_still(
        self, kind: str, key: GroupKey, shard: ShardId, work: _MovingWork[Outcome]
    ) -> Outcome:
        """Run a verb on one shard; take the group's row first only if the shard is in transfer.

        Locks have one order, group before shard, or two transactions could wait for each other:
        so a verb that finds its shard in transfer starts again from the group's row.
        """

        mark = self._journalled(key, shard)
        try:
            return self._write(kind, lambda tx: work(tx, moving=False), mark=mark)
        except _Moving:
            return self._change(kind, key, lambda tx: work(tx, moving=True))
