"""The role for holders: consuming a shard under a tenure, and writing its ledger."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from functools import partial
from typing import Any

from dagster_leasehold.lease_store.identifiers import GroupKey, NodeName, ShardId
from dagster_leasehold.lease_store.journal_rows import Gap, OutboxEvent
from dagster_leasehold.lease_store.ledger_rows import Batch, BatchCommit, BatchState, Intent
from dagster_leasehold.lease_store.outcomes import (
    Changed,
    NotHeld,
    OpenByOther,
    Opened,
    Stale,
    TenureView,
)
from dagster_leasehold.lease_store.roles.operations import (
    Operations,
    Rows,
    abandon_intent,
    current_row,
    journalled,
    loss_of,
)
from dagster_leasehold.lease_store.rules import ledger, transitions
from dagster_leasehold.lease_store.rules.gap_policy import check_gap, gap_note, gap_write
from dagster_leasehold.lease_store.rules.isolation import Suspicion, tries_after
from dagster_leasehold.lease_store.rules.lineage import PARENTS_OVER, freed_to_start
from dagster_leasehold.lease_store.rules.refusals import lease_lost, unknown_shard
from dagster_leasehold.lease_store.rules.states import ShardState
from dagster_leasehold.lease_store.shard_rows import ShardLease, Tenure
from dagster_leasehold.lease_store.stored_rows import Raced


class Tenures(Operations):
    """A shard holder's operations. Unless it is an outcome, an ended tenure raises LeaseLost."""

    def open_tenure(
        self, key: GroupKey, shard: ShardId, node: NodeName, run: str, replaces: str | None = None
    ) -> Opened | OpenByOther | NotHeld:
        """Begin a tenure of one shard, as `open_tenures`; raise UnknownShard without the shard."""
        replaced = {shard: replaces} if replaces is not None else {}
        outcome = self.open_tenures(key, [shard], node, run, replaces=replaced).get(shard)
        if outcome is None:
            raise unknown_shard(key, shard)
        return outcome

    def open_tenures(
        self,
        key: GroupKey,
        shards: Sequence[ShardId],
        node: NodeName,
        run: str,
        *,
        replaces: Mapping[ShardId, str],
    ) -> dict[ShardId, Opened | OpenByOther | NotHeld]:
        """Begin tenures: increment the epoch and set `consumer_run`, in one compare-and-set.

        The tenure of a run in `replaces`, which has certainly ended, is closed. If the shard was in
        transfer, it goes to the next node, in a transaction of its own. Unknown shards are omitted.
        """
        if not shards:
            return {}

        def work(
            rows: Rows, shards: Sequence[ShardId], *, moving: bool
        ) -> dict[ShardId, Opened | OpenByOther | NotHeld]:
            leases = rows.shards(shards, lock=True)
            # Read after the locks are taken: see `lease_store.draining`.
            paused = rows.group().paused
            outcomes: dict[ShardId, Opened | OpenByOther | NotHeld] = {}
            ready: list[ShardLease] = []
            ended: list[transitions.Step] = []
            for shard, row in leases.items():
                refused = transitions.opening_refused(row, node, replaces.get(shard), paused=paused)
                if refused is not None:
                    outcomes[shard] = refused
                elif row.state is not ShardState.TRANSFER:
                    ready.append(row)
                elif moving:
                    # The holder's run died before it released the shard.
                    reason = f"its run {row.consumer_run} had ended"
                    step = transitions.closed(row, rows.members(), reason, attempt_failed=True)
                    ended.append(step)
                    outcomes[shard] = NotHeld(row.state.value, step.after.consumer_owner)
            if not ready and not ended:
                return rows.abandon(outcomes)
            rows.carry_out(ended, str(node))
            return outcomes | _opened(rows, ready, node, run)

        mark = journalled(shards[0])
        first = partial(work, shards=shards, moving=False)
        outcomes = self._writing("open_tenure", key, first, mark=mark)
        if remaining := [shard for shard in shards if shard not in outcomes]:
            second = partial(work, shards=remaining, moving=True)
            outcomes |= self._changing("open_tenure", key, second)
        return outcomes

    def review(self, tenures: Sequence[Tenure]) -> dict[ShardId, TenureView]:
        """Return the state of a group's tenures, in one statement."""
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
        """Store the holder's estimate until its next batch boundary, in seconds."""
        if not self.announce_all([tenure], handoff_eta_s=handoff_eta_s):
            raise lease_lost(tenure)

    def announce_all(self, tenures: Sequence[Tenure], *, handoff_eta_s: float) -> set[ShardId]:
        """Store it for tenures of one group; return their shards, without ended tenures."""

        def rule(row: ShardLease, _: object) -> transitions.Step:
            return transitions.Step(row, replace(row, handoff_eta_s=handoff_eta_s), ())

        return self._steps_of("announce", tenures, rule)

    def close_tenure(
        self,
        tenure: Tenure,
        *,
        reason: str,
        attempt_failed: bool = False,
        failed_at: datetime | None = None,
    ) -> None:
        """End one tenure, as `close_tenures`."""
        if not self.close_tenures(
            [tenure], reason=reason, attempt_failed=attempt_failed, failed_at=failed_at
        ):
            raise lease_lost(tenure)

    def close_tenures(
        self,
        tenures: Sequence[Tenure],
        *,
        reason: str,
        attempt_failed: bool = False,
        failed_at: datetime | None = None,
    ) -> set[ShardId]:
        """End tenures of one group; return their shards, without tenures that had ended.

        A shard in transfer goes to the next node at once (edge 6). With `attempt_failed`, `reason`
        is the error of a failed attempt at the intended range. `failed_at` is when the run failed;
        the row keeps `reason` until the next commit.
        """

        def rule(row: ShardLease, members: set[NodeName]) -> transitions.Step:
            return transitions.closed(
                row, members, reason, attempt_failed=attempt_failed, failed_at=failed_at
            )

        return self._steps_of("close_tenure", tenures, rule)

    def _steps_of(
        self,
        kind: str,
        tenures: Sequence[Tenure],
        rule: Callable[[ShardLease, set[NodeName]], transitions.Step],
    ) -> set[ShardId]:
        """Take a step for each tenure that has not ended; return their shards.

        Shards in transfer take a second transaction, which changes the generation, so that the next
        node reads their rows.
        """
        if not tenures:
            return set()

        def work(rows: Rows, tenures: Sequence[Tenure], *, moving: bool) -> set[ShardId]:
            locked = rows.shards([tenure.shard for tenure in tenures], lock=True)
            members = rows.members() if moving else set[NodeName]()
            steps = [
                rule(row, members)
                for tenure in tenures
                if (row := locked.get(tenure.shard)) is not None
                and transitions.holds(row, tenure)
                and (moving or row.state is not ShardState.TRANSFER)
            ]
            if not steps:
                return rows.abandon(set[ShardId]())
            return set(rows.carry_out(steps, str(tenures[0].holder)).shards)

        key, mark = tenures[0].key, journalled(tenures[0].shard)
        done = self._writing(kind, key, partial(work, tenures=tenures, moving=False), mark=mark)
        if remaining := [tenure for tenure in tenures if tenure.shard not in done]:
            done |= self._changing(kind, key, partial(work, tenures=remaining, moving=True))
        return done

    def save_checkpoint(self, tenure: Tenure, cursor: str) -> None:
        """Persist a checkpoint without a batch, for clients without a ledger.

        Raises:
            CheckpointRefused: it is before the stored one, or cannot be ordered (`rules.cursors`).
        """

        def work(rows: Rows) -> None:
            row = rows.shards([tenure.shard], lock=True).get(tenure.shard)
            if row is not None and transitions.holds(row, tenure):
                ledger.check_onwards(tenure, row.check_point, cursor)
            _change_current(rows, tenure, check_point=cursor, tries=1, suspicion=None)

        # Repeated after a lost reply, it changes nothing.
        self._writing("save_checkpoint", tenure.key, work)

    def suspect(self, tenure: Tenure, suspicion: Suspicion, *, abandon: bool) -> None:
        """Record the findings of failed attempts about the next records, before the next attempt.

        With `abandon`, the intended range and its number are abandoned, and the next range is
        smaller.
        """

        def work(rows: Rows) -> None:
            row = current_row(rows, tenure)
            tries = tries_after(row.tries, row.suspicion, suspicion, abandon=abandon)
            if abandon:
                abandon_intent(rows, tenure.shard)
            _change_current(rows, tenure, tries=tries, suspicion=suspicion)

        # Repeated after a lost reply, it changes nothing.
        self._writing("suspect", tenure.key, work)

    def record_gap(
        self, tenure: Tenure, *, start: str, end: str, reason: str, skip: bool = True
    ) -> None:
        """Record records that cannot be consumed; with `skip`, move the checkpoint after them.

        Without `skip` the shard holds at `start` until the gap is accepted, and an existing gap
        there grows to the new end.

        Raises:
            CheckpointRefused: the gap does not begin at the checkpoint, or leads back.
        """
        gap = Gap(tenure.shard, start, end, reason, self._clock())

        def work(rows: Rows) -> None:
            row = current_row(rows, tenure)
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

        # Repeated after a lost reply, it changes nothing.
        self._writing("record_gap", tenure.key, work)

    # -- the ledger -----------------------------------------------------------------------------

    def record_intents(self, intents: Sequence[Intent]) -> dict[ShardId, Changed | Stale]:
        """Record the next ranges to consume; an equal intent of an earlier tenure is adopted.

        A shard is `Stale` if its tenure is over.

        Raises:
            IntentConflict: a range is not the next one of its shard, or ends before it starts.
            CheckpointRefused: a cursor cannot be ordered.
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
                if row is None or not transitions.holds(row, intent.tenure):
                    outcomes[shard] = Stale()
                    continue
                next_sequence, open_intent = ledger.next_in_line(newest.get(shard))
                ledger.check_next_in_line(
                    intent,
                    intended=open_intent,
                    next_sequence=next_sequence,
                    check_point=row.check_point,
                )
                (adopted if open_intent else new).append(ledger.intended_batch(intent))
                outcomes[shard] = Changed((shard,))
            rows.add(*new)
            rows.write(*adopted, state=BatchState.INTENT)
            return outcomes

        # Repeated after a lost reply, it changes nothing.
        key = ledger.group_of([intent.tenure for intent in intents])
        return self._writing("record_intents", key, work)

    def commit(self, commits: Sequence[BatchCommit]) -> dict[ShardId, Changed | Stale]:
        """Commit batches: tenure check, ledger, checkpoint, state, journal and outbox.

        All shards share one transaction. A shard whose tenure is over is omitted (`Stale`).
        `Changed.shards` has the shards that became free to start (edge 2). Repeating a commit
        under the same tenure and attempt is harmless.
        """
        if not commits:
            return {}
        key = ledger.group_of([commit.tenure for commit in commits])
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
                if ledger.already_committed(batch, commit):
                    outcomes[shard] = Changed()
                elif row is not None and transitions.holds(row, commit.tenure):
                    ledger.check_intended(batch, commit)
                    if ledger.may_advance(row.check_point, commit.start):
                        accepted.append((row, commit))
            if not accepted:
                return rows.abandon(outcomes)
            last_accepted.clear()
            last_accepted.update(row.shard for row, _ in accepted)
            return outcomes | self._commit(rows, accepted)

        def mark(rows: Rows) -> bool:
            # The transaction took effect if its batches are committed.
            rows.shards(own, lock=True)
            batches = rows.numbered(numbers)
            return all(
                ledger.already_committed(batches.get(shard), own[shard]) for shard in last_accepted
            )

        return self._writing("commit", key, work, mark=mark)

    def finish_empty(self, tenure: Tenure, cursor: str) -> Changed | Stale:
        """Finish a read-only shard (edge 8) that was read up to its end at `cursor`."""

        def work(rows: Rows) -> Changed | Stale:
            row = rows.shards([tenure.shard], lock=True).get(tenure.shard)
            if (
                row is None
                or not transitions.holds(row, tenure)
                or not ledger.may_advance(row.check_point, cursor)
            ):
                return rows.abandon(Stale())
            ledger.check_place(tenure.key, tenure.shard, cursor)
            abandon_intent(rows, tenure.shard)
            return _finish(rows, row, tenure, cursor)

        return self._changing("finish_empty", tenure.key, work)

    def _commit(
        self, rows: Rows, commits: Sequence[tuple[ShardLease, BatchCommit]]
    ) -> dict[ShardId, Changed | Stale]:
        at, events = self._clock(), list[OutboxEvent]()
        batches = [
            replace(ledger.committed_batch(commit), committed_at=at) for _, commit in commits
        ]
        rows.write(*batches, state=BatchState.INTENT)
        moved = [
            replace(
                row,
                check_point=commit.end,
                watermark=ledger.raised(row.watermark, commit.watermark),
                tries=1,
                suspicion=commit.suspicion,
            )
            for row, commit in commits
        ]
        rows.move_checkpoints(moved, [commit for _, commit in commits])
        for batch, (_, commit) in zip(batches, commits, strict=True):
            events += ledger.events_of(batch, commit)
        rows.add(*events)
        return {
            row.shard: _finish(rows, row, commit.tenure, commit.end)
            if commit.finished
            else Changed()
            for row, (_, commit) in zip(moved, commits, strict=True)
        }


def _opened(
    rows: Rows, leases: Sequence[ShardLease], node: NodeName, run: str
) -> dict[ShardId, Opened]:
    newest = rows.newest([row.shard for row in leases])
    steps: list[transitions.Step] = []
    outcomes: dict[ShardId, Opened] = {}
    for row in leases:
        next_sequence, intent = ledger.next_in_line(newest.get(row.shard))
        step = transitions.opened(row, run, intent)
        steps.append(step)
        outcomes[row.shard] = transitions.opening(rows.key, step, node, next_sequence, intent)
    rows.carry_out(steps, str(node))
    return outcomes


def _change_current(rows: Rows, tenure: Tenure, **changes: Any) -> None:
    """Change a shard's row if the tenure is current; otherwise raise LeaseLost: the fence."""
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
        raise loss_of(rows, tenure)


def _finish(rows: Rows, row: ShardLease, tenure: Tenure, cursor: str) -> Changed:
    """Finish a shard (edge 8) and free its children (edge 2); the group's row is locked."""
    observer = str(tenure.holder)
    rows.carry_out([transitions.finished(row, cursor, transitions.FINISHED)], observer)
    reason = f"{PARENTS_OVER}, {tenure.shard} last"
    freed = freed_to_start(rows.each_shard(), ordered=rows.group().ordered, reason=reason)
    return rows.carry_out(freed, observer)
