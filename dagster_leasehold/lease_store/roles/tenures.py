"""The role for holders: consuming a shard under a tenure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

from dagster_leasehold.lease_store.identifiers import GroupKey, NodeName, ShardId
from dagster_leasehold.lease_store.journal_rows import Gap
from dagster_leasehold.lease_store.outcomes import NotHeld, OpenByOther, Opened, TenureView
from dagster_leasehold.lease_store.roles.batches import Batches
from dagster_leasehold.lease_store.roles.operations import (
    Outcome,
    Rows,
    abandon_intent,
    held,
    journalled,
    locked_shard,
    lost,
)
from dagster_leasehold.lease_store.rules import transitions
from dagster_leasehold.lease_store.rules.gap_policy import check_gap, gap_note, gap_write
from dagster_leasehold.lease_store.rules.isolation import Suspicion, tries_after
from dagster_leasehold.lease_store.rules.ledger import check_onwards, next_in_line
from dagster_leasehold.lease_store.rules.states import ShardState
from dagster_leasehold.lease_store.shard_rows import ShardLease, Tenure
from dagster_leasehold.lease_store.stored_rows import Raced


class Tenures(Batches):
    """The verbs of a shard's holder."""

    def open_tenure(
        self, key: GroupKey, shard: ShardId, node: NodeName, run: str, replaces: str | None = None
    ) -> Opened | OpenByOther | NotHeld:
        """Begin a tenure: epoch + 1, `consumer_run` := run, in one compare-and-set.

        `replaces` names a run that the caller knows to have ended; its tenure is closed.
        """

        def work(rows: Rows, moving: bool) -> Opened | OpenByOther | NotHeld:
            row = locked_shard(rows, shard)
            # Looked at behind the lock: see `lease_store.draining`.
            paused = rows.group().paused
            refused = transitions.opening_refused(row, node, replaces, paused=paused)
            if refused is not None:
                return rows.abandon(refused)
            if row.state is ShardState.TRANSFER:
                if not moving:
                    raise _Moving
                # The holder's run died before it released the shard: no other run would hand it
                # over.
                reason = f"its run {row.consumer_run} had ended"
                step = transitions.closed(row, rows.members(), reason, gave_up=True)
                rows.carry_out([step], str(node))
                return NotHeld(row.state.value, step.after.consumer_owner)
            return _opened(rows, [row], node, run)[shard]

        return self._on_shard("open_tenure", key, shard, work)

    def open_tenures(
        self,
        key: GroupKey,
        shards: Sequence[ShardId],
        node: NodeName,
        run: str,
        *,
        replaces: Mapping[ShardId, str],
    ) -> dict[ShardId, Opened | OpenByOther | NotHeld]:
        """Begin tenures of some shards in one transaction; `replaces` is by shard.

        Left out are shards that the group does not have, and those in transfer that the node could
        open: `open_tenure` raises for the ones, and hands the others over.
        """
        if not shards:
            return {}

        def work(rows: Rows) -> dict[ShardId, Opened | OpenByOther | NotHeld]:
            leases = rows.shards(shards, lock=True)
            # Looked at behind the locks: see `lease_store.draining`.
            paused = rows.group().paused
            outcomes: dict[ShardId, Opened | OpenByOther | NotHeld] = {}
            ready: list[ShardLease] = []
            for shard, row in leases.items():
                refused = transitions.opening_refused(row, node, replaces.get(shard), paused=paused)
                if refused is not None:
                    outcomes[shard] = refused
                elif row.state is not ShardState.TRANSFER:
                    ready.append(row)
            if not ready:
                return rows.abandon(outcomes)
            return outcomes | _opened(rows, ready, node, run)

        return self._writing("open_tenure", key, work, mark=journalled(shards[0]))

    def review(self, tenures: Sequence[Tenure]) -> dict[ShardId, TenureView]:
        """Return the holders' views before their next batch, in one statement; all of one group."""
        if not tenures:
            return {}

        def work(rows: Rows) -> dict[ShardId, TenureView]:
            paused, shards = rows.review([tenure.shard for tenure in tenures])
            return {
                tenure.shard: transitions.tenure_view(
                    shards.get(tenure.shard), tenure, paused=paused
                )
                for tenure in tenures
            }

        return self._reading("review", tenures[0].key, work)

    def announce(self, tenure: Tenure, *, handoff_eta_s: float) -> None:
        """Publish how long the holder needs to its next batch boundary.

        Raises:
            LeaseLost: the tenure is over.
        """

        def work(rows: Rows, moving: bool) -> None:
            row = held(rows, tenure)
            if row.state is ShardState.TRANSFER and not moving:
                raise _Moving
            _change_current(rows, tenure, handoff_eta_s=handoff_eta_s)

        self._on_shard("announce", tenure.key, tenure.shard, work)

    def announce_all(self, tenures: Sequence[Tenure], *, handoff_eta_s: float) -> set[ShardId]:
        """Publish it for tenures of one group in one transaction; return the shards.

        Left out are shards whose tenure is over and shards in transfer: `announce` raises for the
        ones, and publishes it for the others.
        """
        if not tenures:
            return set()

        def work(rows: Rows) -> set[ShardId]:
            steps = [
                transitions.Step(row, replace(row, handoff_eta_s=handoff_eta_s), ())
                for row in _held_rows(rows, tenures)
            ]
            return set(rows.carry_out(steps, str(tenures[0].holder)).shards)

        return self._writing("announce", tenures[0].key, work)

    def close_tenure(
        self,
        tenure: Tenure,
        *,
        reason: str,
        gave_up: bool = False,
        failed_at: datetime | None = None,
    ) -> None:
        """End a tenure; a shard in transfer goes to the next node at once (edge 6).

        With `gave_up` its try of the intended range has failed, and `reason` says how. With
        `failed_at` its run failed with the shard at that time, and the row keeps `reason` as the
        shard's last error until the next commit.

        Raises:
            LeaseLost: the tenure is over.
        """

        def work(rows: Rows, moving: bool) -> None:
            row = held(rows, tenure)
            if row.state is ShardState.TRANSFER and not moving:
                raise _Moving
            members = rows.members() if moving else set[NodeName]()
            step = transitions.closed(row, members, reason, gave_up=gave_up, failed_at=failed_at)
            rows.carry_out([step], str(tenure.holder))

        self._on_shard("close_tenure", tenure.key, tenure.shard, work)

    def close_tenures(
        self,
        tenures: Sequence[Tenure],
        *,
        reason: str,
        gave_up: bool = False,
        failed_at: datetime | None = None,
    ) -> set[ShardId]:
        """End tenures of one group in one transaction; return the shards that were released.

        Left out are shards whose tenure is over and shards in transfer: `close_tenure` raises for
        the ones, and hands the others over.
        """
        if not tenures:
            return set()

        def work(rows: Rows) -> set[ShardId]:
            steps = [
                transitions.closed(row, set(), reason, gave_up=gave_up, failed_at=failed_at)
                for row in _held_rows(rows, tenures)
            ]
            if not steps:
                return rows.abandon(set[ShardId]())
            return set(rows.carry_out(steps, str(tenures[0].holder)).shards)

        mark = journalled(tenures[0].shard)
        return self._writing("close_tenure", tenures[0].key, work, mark=mark)

    def save_checkpoint(self, tenure: Tenure, cursor: str) -> None:
        """Persist a checkpoint without a batch, for clients that keep no ledger.

        Raises:
            CheckpointRefused: it lies before the one that is stored, or has no place among the
                cursors of the shard (`lease_store.rules.cursors`).
            LeaseLost: the tenure is over.
        """

        def work(rows: Rows) -> None:
            row = rows.shards([tenure.shard], lock=True).get(tenure.shard)
            if row is not None and transitions.holds(row, tenure):
                check_onwards(tenure, row.check_point, cursor)
            _change_current(rows, tenure, check_point=cursor, tries=1, suspicion=None)

        # After a lost reply it runs again, which changes nothing.
        self._writing("save_checkpoint", tenure.key, work)

    def suspect(self, tenure: Tenure, suspicion: Suspicion, *, abandon: bool) -> None:
        """Record what failed tries tell of the records behind the checkpoint, before the next try.

        With `abandon` the intended range is given up with its number: the next one is smaller, and
        no try of it has failed yet.

        Raises:
            LeaseLost: the tenure is over.
        """

        def work(rows: Rows) -> None:
            row = held(rows, tenure)
            tries = tries_after(row.tries, row.suspicion, suspicion, abandon=abandon)
            if abandon:
                abandon_intent(rows, tenure.shard)
            _change_current(rows, tenure, tries=tries, suspicion=suspicion)

        # After a lost reply it runs again, which changes nothing.
        self._writing("suspect", tenure.key, work)

    def record_gap(
        self, tenure: Tenure, *, start: str, end: str, reason: str, skip: bool = True
    ) -> None:
        """Record records that cannot be consumed, and with `skip` move the checkpoint past them.

        Without `skip` nothing moves: the shard holds at `start` until the gap is acknowledged.
        A range that already holds there grows to the new end.

        Raises:
            LeaseLost: the tenure is over.
            CheckpointRefused: the gap does not begin at the checkpoint, or does not lead onwards.
        """
        gap = Gap(tenure.shard, start, end, reason, self._clock())

        def work(rows: Rows) -> None:
            row = held(rows, tenure)
            gaps = list(rows.select(Gap, shard=gap.shard, start=start))
            write = gap_write(gap, gaps, check_point=row.check_point, accepted=skip)
            if write is None:
                return rows.abandon(None)
            check_gap(gap, tenure, row.check_point)
            if write.replaces is None:
                rows.add(write.gap)
            else:
                names = ("end", "reason", "at", "acknowledged", "skipped")
                values = {name: getattr(write.gap, name) for name in names}
                own = {"shard": gap.shard, "start": start, "end": write.replaces.end}
                if rows.change(Gap, values, **own) != 1:
                    raise Raced
            rows.journal([gap_note(write.gap, tenure)], str(tenure.holder))
            if write.moves:
                abandon_intent(rows, tenure.shard)
                _change_current(rows, tenure, check_point=end, tries=1, suspicion=None)
            return None

        # After a lost reply it runs again, which changes nothing.
        self._writing("record_gap", tenure.key, work)

    def _on_shard(
        self, kind: str, key: GroupKey, shard: ShardId, work: Callable[[Rows, bool], Outcome]
    ) -> Outcome:
        """Run an operation on one shard; lock the group's row first only if it is in transfer.

        Locks have one order, group before shard, or two transactions could wait for each other:
        so an operation that finds its shard in transfer starts again from the group's row.
        """
        try:
            mark = journalled(shard)
            return self._writing(kind, key, lambda rows: work(rows, False), mark=mark)
        except _Moving:
            return self._changing(kind, key, lambda rows: work(rows, True))


class _Moving(Exception):
    """The shard is in transfer: the operation must lock the group's row first."""


def _opened(
    rows: Rows, leases: Sequence[ShardLease], node: NodeName, run: str
) -> dict[ShardId, Opened]:
    """Open some locked shards; return what their holder needs to know."""
    newest = rows.newest([row.shard for row in leases])
    steps: list[transitions.Step] = []
    outcomes: dict[ShardId, Opened] = {}
    for row in leases:
        next_sequence, intent = next_in_line(newest.get(row.shard))
        step = transitions.opened(row, run, intent)
        steps.append(step)
        outcomes[row.shard] = transitions.opening(rows.key, step, node, next_sequence, intent)
    rows.carry_out(steps, str(node))
    return outcomes


def _held_rows(rows: Rows, tenures: Sequence[Tenure]) -> list[ShardLease]:
    """Lock the rows of tenures of one group; return the current ones, none in transfer."""
    locked = rows.shards([tenure.shard for tenure in tenures], lock=True)
    return [
        row
        for tenure in tenures
        if (row := locked.get(tenure.shard)) is not None
        and transitions.holds(row, tenure)
        and row.state is not ShardState.TRANSFER
    ]


def _change_current(rows: Rows, tenure: Tenure, **changes: Any) -> None:
    """Change a shard's row if the tenure is still its current one: the fence.

    Raises:
        LeaseLost: it is not.
    """
    changed = rows.change(
        ShardLease,
        changes,
        shard=tenure.shard,
        consumer_owner=tenure.holder,
        consumer_epoch=tenure.epoch,
        consumer_run=tenure.run,
        state={ShardState.ALREADY_ALLOC, ShardState.TRANSFER},
    )
    if changed != 1:
        raise lost(rows, tenure)
