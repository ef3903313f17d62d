"""Tenures in memory: opening, reviewing and ending the consumption of a shard."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime

from typing_extensions import override

from dagster_leasehold.lease_store.identifiers import GroupKey, NodeName, ShardId
from dagster_leasehold.lease_store.journal_rows import Gap
from dagster_leasehold.lease_store.memory_store.memory_transactions import MemoryRows
from dagster_leasehold.lease_store.memory_store.rows import GroupRows
from dagster_leasehold.lease_store.outcomes import NotHeld, OpenByOther, Opened, TenureView
from dagster_leasehold.lease_store.roles.tenures import Tenures
from dagster_leasehold.lease_store.rules import transitions
from dagster_leasehold.lease_store.rules.gap_policy import check_gap, gap_note, gap_write
from dagster_leasehold.lease_store.rules.isolation import Suspicion, tries_after
from dagster_leasehold.lease_store.rules.ledger import check_onwards
from dagster_leasehold.lease_store.rules.refusals import lease_lost
from dagster_leasehold.lease_store.rules.states import ShardState
from dagster_leasehold.lease_store.shard_rows import ShardLease, Tenure


class MemoryTenures(MemoryRows, Tenures):
    """The verbs on tenures."""

    @override
    def open_tenure(
        self, key: GroupKey, shard: ShardId, node: NodeName, run: str, replaces: str | None = None
    ) -> Opened | OpenByOther | NotHeld:
        with self._rows("open_tenure", key) as rows:
            row = rows.shard(shard)
            refused = transitions.opening_refused(row, node, replaces, paused=rows.group.paused)
            if refused is not None:
                return refused
            if row.state is ShardState.TRANSFER:
                # The holder's run died before it let go: nobody else would hand the shard over.
                step = transitions.closed(
                    row, rows.members, f"its run {row.consumer_run} had ended", gave_up=True
                )
                rows.bump()
                self._write(rows, [step], str(node))
                return NotHeld(row.state.value, step.after.consumer_owner)
            return self._open(rows, row, node, run)

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
        outcomes: dict[ShardId, Opened | OpenByOther | NotHeld] = {}
        if not shards:
            return outcomes
        with self._rows("open_tenure", key) as rows:
            paused = rows.group.paused
            for row in (rows.shards[shard] for shard in shards if shard in rows.shards):
                refused = transitions.opening_refused(
                    row, node, replaces.get(row.shard), paused=paused
                )
                if refused is not None:
                    outcomes[row.shard] = refused
                elif row.state is not ShardState.TRANSFER:
                    outcomes[row.shard] = self._open(rows, row, node, run)
        return outcomes

    def _open(self, rows: GroupRows, row: ShardLease, node: NodeName, run: str) -> Opened:
        intent = next(iter(rows.intents(row.shard)), None)
        step = transitions.opened(row, run, unfinished=intent is not None)
        self._write(rows, [step], str(node))
        number = rows.next_sequence(row.shard)
        return transitions.opening(rows.group.key, step, node, number, intent)

    @override
    def review(self, tenures: Sequence[Tenure]) -> dict[ShardId, TenureView]:
        if not tenures:
            return {}
        with self._rows("review", tenures[0].key) as rows:
            shards, paused = rows.shards, rows.group.paused
            return {
                tenure.shard: transitions.tenure_view(
                    shards.get(tenure.shard), tenure, paused=paused
                )
                for tenure in tenures
            }

    @override
    def announce(self, tenure: Tenure, *, handoff_eta_s: float) -> None:
        with self._rows("announce", tenure.key) as rows:
            row = held(rows, tenure)
            rows.shards[tenure.shard] = replace(row, handoff_eta_s=handoff_eta_s)
            if row.state is ShardState.TRANSFER:
                rows.bump()

    @override
    def announce_all(self, tenures: Sequence[Tenure], *, handoff_eta_s: float) -> set[ShardId]:
        if not tenures:
            return set()
        with self._rows("announce", tenures[0].key) as rows:
            still = _held_still(rows, tenures)
            for row in still:
                rows.shards[row.shard] = replace(row, handoff_eta_s=handoff_eta_s)
            return {row.shard for row in still}

    @override
    def close_tenure(
        self,
        tenure: Tenure,
        *,
        reason: str,
        gave_up: bool = False,
        failed_at: datetime | None = None,
    ) -> None:
        with self._rows("close_tenure", tenure.key) as rows:
            row = held(rows, tenure)
            step = transitions.closed(
                row, rows.members, reason, gave_up=gave_up, failed_at=failed_at
            )
            self._write(rows, [step], str(tenure.holder))
            if row.state is ShardState.TRANSFER:
                rows.bump()

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
        with self._rows("close_tenure", tenures[0].key) as rows:
            steps = [
                transitions.closed(row, rows.members, reason, gave_up=gave_up, failed_at=failed_at)
                for row in _held_still(rows, tenures)
            ]
            self._write(rows, steps, str(tenures[0].holder))
            return {step.after.shard for step in steps}

    @override
    def save_checkpoint(self, tenure: Tenure, cursor: str) -> None:
        with self._rows("save_checkpoint", tenure.key) as rows:
            row = held(rows, tenure)
            check_onwards(tenure, row.check_point, cursor)
            rows.shards[tenure.shard] = replace(row, check_point=cursor, tries=1, suspicion=None)

    @override
    def record_gap(
        self, tenure: Tenure, *, start: str, end: str, reason: str, skip: bool = True
    ) -> None:
        with self._rows("record_gap", tenure.key) as rows:
            row = held(rows, tenure)
            gap = Gap(tenure.shard, start, end, reason, self._clock())
            others = [each for each in rows.gaps if (each.shard, each.start) == (gap.shard, start)]
            write = gap_write(gap, others, check_point=row.check_point, accepted=skip)
            if write is None:
                return
            check_gap(gap, tenure, row.check_point)
            if write.replaces is not None:
                rows.gaps.remove(write.replaces)
            rows.gaps.append(write.gap)
            self._note(rows, gap_note(write.gap, tenure), str(tenure.holder))
            if write.moves:
                rows.abandon_intents(tenure.shard)
                rows.shards[tenure.shard] = replace(row, check_point=end, tries=1, suspicion=None)

    @override
    def suspect(self, tenure: Tenure, suspicion: Suspicion, *, abandon: bool) -> None:
        with self._rows("suspect", tenure.key) as rows:
            row = held(rows, tenure)
            tries = tries_after(row.tries, row.suspicion, suspicion, abandon=abandon)
            if abandon:
                rows.abandon_intents(tenure.shard)
            rows.shards[tenure.shard] = replace(row, tries=tries, suspicion=suspicion)


def held(rows: GroupRows, tenure: Tenure) -> ShardLease:
    """Return the shard's row where the tenure still holds.

    Raises:
        LeaseLost: it is over.
    """
    row = rows.current(tenure)
    if row is None:
        raise lease_lost(tenure)
    return row


def _held_still(rows: GroupRows, tenures: Sequence[Tenure]) -> list[ShardLease]:
    """Return the rows of the tenures that hold, without shards in transfer."""
    held_rows = (rows.current(tenure) for tenure in tenures)
    return [row for row in held_rows if row is not None and row.state is not ShardState.TRANSFER]
