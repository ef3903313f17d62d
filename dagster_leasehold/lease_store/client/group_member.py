"""A member of a consumer group: the base of every client.

A client calls `heartbeat(held)` repeatedly. `held` names the shards that it works on, and the reply
names the shards that it owns. The client opens shards that are new in the reply, continues with
shards in both, and stops shards that are missing. It keeps a missing shard, and can save it, until
a heartbeat omits the shard from `held`. Then the shard goes to the next node.

A heartbeat is a tick of the same `Rebalancer` that Dagster's sensors use, so clients and Dagster's
nodes can share a group.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Generator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from threading import RLock

from dagster_leasehold.lease_store.errors import (
    AssignmentConflict,
    CheckpointRefused,
    CheckpointUnsaved,
    LeaseholdError,
    LeaseLost,
    NodeNameTaken,
    ShardNotOpen,
    StoreError,
    StoreUnavailable,
    UserMistake,
    shown,
)
from dagster_leasehold.lease_store.group_rows import (
    BEAT_FRACTION_MAX,
    Group,
    Node,
    Snapshot,
    Timing,
)
from dagster_leasehold.lease_store.identifiers import GroupKey, NodeName, ShardId
from dagster_leasehold.lease_store.member import Member
from dagster_leasehold.lease_store.outcomes import NotHeld, OpenByOther, Opened, Stale
from dagster_leasehold.lease_store.rebalancing import Rebalancer, TickReport
from dagster_leasehold.lease_store.rules.ledger import check_onwards
from dagster_leasehold.lease_store.rules.lineage import why_waiting
from dagster_leasehold.lease_store.rules.liveness import Clock, steady_clock
from dagster_leasehold.lease_store.rules.refusals import lease_lost
from dagster_leasehold.lease_store.rules.starting_point import resumption
from dagster_leasehold.lease_store.shard_rows import Progress, ShardLease, Tenure
from dagster_leasehold.lease_store.store import LeaseStore

FLUSH_DEFAULT_S = 5.0
FLUSH_RETRY_S = 0.5
HEARTBEATS_PER_BEAT = 1 / 0.45
"""Only a beat renews the lease. Heartbeats in between notice changes of the assignment sooner."""

_LOG = logging.getLogger(__name__)
_State = tuple[Tenure, str | None, str | None]


class OpenShard:
    """One open shard of a member and its checkpoints; not safe for threads.

    Attributes:
        persisted: the checkpoint that the store confirmed, if any.
        unsaved: a newer checkpoint, if any.
        reported: True once a heartbeat named the shard.
        end_reason: why the tenure ended; empty before that.
    """

    def __init__(self, store: LeaseStore, opened: Opened, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self.tenure = opened.tenure
        self.persisted = opened.check_point
        self.unsaved: str | None = None
        self.reported = False
        self.end_reason = ""
        self._saved_at = clock()
        # A checkpoint that was sent and had no reply.
        self._unanswered: str | None = None
        # The end of the shard's ledger, which only runs write; None without a ledger.
        has_ledger = opened.intent is not None or bool(opened.next_sequence)
        self._ledger_end = resumption(opened.check_point, opened.intent) if has_ledger else None

    @property
    def state(self) -> _State:
        """The tenure, its confirmed checkpoint and the unanswered one."""
        return self.tenure, self.persisted, self._unanswered

    @property
    def behind(self) -> bool:
        """True if the store has not confirmed the newest checkpoint."""
        return not self.end_reason and self.unsaved not in (None, self.persisted)

    def due(self, interval_s: float) -> bool:
        """Return True if a checkpoint has been unsaved for `interval_s` seconds."""
        waits = not self.end_reason and self.unsaved is not None
        return waits and self._clock() - self._saved_at >= interval_s

    def stage(self, cursor: str) -> None:
        """Set the checkpoint for the next flush; raise CheckpointRefused if it goes back."""
        check_onwards(self.tenure, self._unanswered or self.persisted or self._ledger_end, cursor)
        self.unsaved = cursor

    def flush(self) -> None:
        """Persist the unsaved checkpoint; before it, repeat a write that had no reply.

        1. The write of 7 takes effect, and its reply is lost. The client confirms 9.
        2. The store would refuse a write of 9 that names the checkpoint before 7, and refuse all
           later writes. Repeating the write of 7 changes nothing, and 9 can follow it.

        Raises:
            CheckpointRefused: the store has a later checkpoint. This one is dropped, and the
                tenure continues.
            LeaseLost: the tenure is over.
            StoreError: the store does not answer.
        """
        unsaved = self.unsaved
        if unsaved is not None and unsaved != self.persisted:
            for cursor in (self._unanswered, unsaved) if self._unanswered else (unsaved,):
                self._unanswered = cursor
                self._persist(cursor)
                self.persisted, self._unanswered, self._saved_at = cursor, None, self._clock()
        self.unsaved = None

    def flush_or_drop(self) -> None:
        """Persist the unsaved checkpoint; log a refusal."""
        try:
            self.flush()
        except CheckpointRefused as error:
            _LOG.warning("%s", error)

    def _persist(self, cursor: str) -> None:
        """Write a checkpoint; raise LeaseLost if the store has lost the last confirmed one."""
        try:
            self._write_checkpoint(cursor)
        except CheckpointRefused as error:
            rows = self._store.progress(self.tenure.key, [self.tenure.holder])
            row = rows.get(self.tenure.shard)
            if row is not None and row.check_point == self.persisted:
                self.unsaved = self._unanswered = None
                raise
            raise LeaseLost(
                f"Shard {self.tenure.shard} has to be opened again: the store does not have the "
                f"checkpoint that it confirmed. {error}"
            ) from error

    def _write_checkpoint(self, cursor: str) -> None:
        """Persist a checkpoint; a shard with a ledger records the skipped range there as a gap.

        1. A run commits `[0, 5)`, records the intent `[5, 8)`, and dies.
        2. This client takes the shard, reads from 5 on, and saves 7.
        3. The next run finds checkpoint 7 and an intent that starts at 5. If the intent stayed, no
           batch could ever follow it. The gap `[5, 7)` abandons the intent, and shows that these
           records are missing from committed output.
        """
        end = self._ledger_end
        if end is None or (self.persisted is None and cursor == end):
            self._store.save_checkpoint(self.tenure, cursor)
            return
        self._store.record_gap(
            self.tenure,
            start=end if self.persisted is None else self.persisted,
            end=cursor,
            reason=f"read by {self.tenure.holder}, a client without a ledger",
        )

    def contradiction(self, before: _State, row: Progress | None) -> str:
        """Return why the tenure has ended, as the shard's row shows, or an empty text.

        `before` is the shard's state just before its row was read. Without a row, the member no
        longer owns the shard.
        """
        tenure, persisted, unanswered = before
        if row is None or (row.consumer_epoch, row.consumer_run) != (tenure.epoch, tenure.run):
            return str(lease_lost(tenure))
        if unanswered is None and self.state == before and row.check_point != persisted:
            return (
                f"Shard {tenure.shard} of group {tenure.key} has to be opened again: the store "
                f"confirmed the checkpoint {_quoted(persisted)}, and now has "
                f"{_quoted(row.check_point)}."
            )
        return ""

    def end(self, reason: str) -> None:
        """Mark the tenure as over; drop its unsaved checkpoint."""
        self.end_reason, self.unsaved = reason, None


def _quoted(check_point: str | None) -> str:
    return "none" if check_point is None else shown(check_point)


class GroupMember:
    """One node of a consumer group; its caller sends the heartbeats.

    Call `heartbeat` at least every `beat_s` seconds. All methods are thread-safe: usually one
    thread sends heartbeats, and others work.

    A lost tenure is reported once: the next call that names the shard raises `LeaseLost`. Later
    calls raise `ShardNotOpen`, as for any shard that is not open.

    Args:
        node: the member's name, or a row with its assignment settings and address.
        incarnation: identifies this process among processes of this name, such as a random id.
        clock: monotonic seconds.
        flush_s: the longest time that a checkpoint stays in memory, in seconds.
        pause: sleeps between two attempts to save during `shutdown`.
    """

    def __init__(
        self,
        store: LeaseStore,
        key: GroupKey,
        node: NodeName | Node,
        *,
        incarnation: str,
        clock: Clock = steady_clock,
        flush_s: float = FLUSH_DEFAULT_S,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        settings = node if isinstance(node, Node) else Node(node, 0, "")
        self._store = store
        self._member = Member(store, key, replace(settings, incarnation=incarnation), clock=clock)
        self._flush_s = flush_s
        self._pause = pause
        self._rebalancer: Rebalancer | None = None
        self._report: TickReport | None = None
        # One heartbeat at a time. This lock is acquired before the other one.
        self._beating = RLock()
        # Saves are serialized, so that an older cursor cannot overwrite a newer one.
        self._lock = RLock()
        self._open: dict[ShardId, OpenShard] = {}
        self._losses: dict[ShardId, LeaseLost] = {}
        self._openings = 0

    # -- the group ----------------------------------------------------------------------------

    @property
    def node(self) -> NodeName:
        """The member's name."""
        return self._member.node

    @property
    def settings(self) -> Node:
        """The assignment settings that this member registers."""
        return self._member.settings

    @property
    def beat_s(self) -> float:
        """The longest time between two heartbeats: a third of the group's timeout, in seconds."""
        return self._member.beat_s

    @property
    def trusted(self) -> bool:
        """True if the member can rely on its leases, because a recent beat was confirmed."""
        return self._member.trusted

    @property
    def trusted_until(self) -> float:
        """The time when trust ends without a further beat, on the member's clock."""
        return self._member.trusted_until

    @property
    def problem(self) -> UserMistake | None:
        """The user mistake of the thread's last heartbeat, if any."""
        return self._member.problem

    @property
    def group(self) -> Group:
        """The group, as of the last heartbeat."""
        return self._snapshot.group

    @property
    def members(self) -> tuple[Node, ...]:
        """The group's members, as of the last heartbeat."""
        return tuple(row for row in self._snapshot.nodes if row.member)

    @property
    def refusals(self) -> tuple[LeaseholdError, ...]:
        """The errors in this member's assignment settings, as of the last heartbeat."""
        refusals = self._report.refusals if self._report is not None else ()
        return tuple(refusal.error for refusal in refusals if refusal.node == self.node)

    @property
    def _snapshot(self) -> Snapshot:
        if self._report is None:
            raise RuntimeError("Register the member first.")
        return self._report.snapshot

    def lease(self, shard: ShardId) -> ShardLease | None:
        """Return the shard's row, as of the last heartbeat."""
        return next((row for row in self._snapshot.shards if row.shard == shard), None)

    def why_waiting(self, lease: ShardLease) -> str:
        """Return why a shard waits, and the remedy, as the end of a sentence."""
        states = {str(row.shard): row.state for row in self._snapshot.shards}
        return f"it {why_waiting(lease, states)}"

    def offer(self, settings: Node) -> None:
        """Change the assignment settings; `register` or the next heartbeat sends them."""
        with self._beating:
            self._member.offer(settings)

    def register(self) -> None:
        """Join the group. After a refusal, call it again to retry.

        Raises:
            NodeNameTaken: another live process uses the name.
            AssignmentConflict: the settings contradict another member's; the subclass says how.
            StoreError, UnknownGroup: the store does not answer, or has no such group.
        """
        with self._beating:
            if self._rebalancer is None:
                group = self._store.pulse(self._member.key).group
                self._member.beat_s = group.timeout_s * BEAT_FRACTION_MAX
                self._rebalancer = Rebalancer(
                    self._store,
                    self._member.key,
                    serves=(self.node,),
                    timing=Timing(group.timeout_s, self._member.beat_s),
                    clock=self._member.clock,
                    observer=str(self.node),
                    incarnation_of=lambda _: self._member.incarnation,
                    members=(self._member,),
                )
            self.heartbeat(())
            # If two contradicting members join at once, both can be in the group.
            for error in self.refusals:
                if isinstance(error, AssignmentConflict):
                    self._rebalancer.leave()
                    raise error

    def heartbeat(self, held: Collection[ShardId]) -> tuple[ShardId, ...]:
        """Beat, carry out this member's part of the plan, and return the shards that it owns.

        `held` names the shards that the caller works on. Stop a shard that is in `held` and not in
        the reply: another node waits for it, it cannot be read now, or its tenure has ended (then
        saving it raises `LeaseLost`). The reply is empty while the group is paused.

        Raises:
            NodeNameTaken, AssignmentConflict: the member lost its place and cannot join again.
            StoreError, UnknownGroup: the store does not answer, or no longer has this group.
        """
        with self._beating:
            if self._rebalancer is None:
                raise RuntimeError("Register the member first.")
            states, started = self._states(), self._member.clock()
            report = self._report = self._rebalancer.tick()
            group = report.snapshot.group
            if not report.has_member(self.node, self._member.incarnation):
                self._end_all(f"Node {self.node} is no longer a member of group {group.key}.")
                expelled = NodeNameTaken(
                    f"Node {self.node} lost its place in group {group.key} while it was joining: "
                    "register it again."
                )
                raise next(iter(self.refusals), expelled)
            self._member.beat_s = group.timeout_s * BEAT_FRACTION_MAX
            with self._lock:
                self._compare(states, report.progress)
                self._flush_due()
                ended = {shard for shard, each in self._open.items() if each.end_reason}
                self._release_unreported(set(held))
            # A tick can succeed while its beat failed. Only a confirmed beat renews trust.
            beaten_at = self._member.beaten_at
            if beaten_at is not None and beaten_at >= started:
                self._member.resume_trust()
            stopping = ended.intersection(held)
            return tuple(shard for shard in report.ready(self.node) if shard not in stopping)

    def start(self, heartbeat: Callable[[], None]) -> None:
        """Repeat a heartbeat on a thread, while the caller works, polls or sleeps."""
        self._member.start(heartbeat, per_beat=HEARTBEATS_PER_BEAT)

    def stop(self) -> None:
        """End that thread after its current heartbeat."""
        self._member.stop()

    def shutdown(self) -> None:
        """Persist all checkpoints, release all shards and leave the group.

        Saving is retried for up to the group's timeout. If a checkpoint is still not stored, the
        member does not leave, because another node would read its records again; call `shutdown`
        again.

        Raises:
            LeaseLost: a shard was lost and not reported yet; all other shards are saved.
            CheckpointUnsaved: a checkpoint is not stored; the member has not left.
            StoreError: all checkpoints are stored, but the member could not leave: its shards
                become free after the timeout.
        """
        with self._beating:
            losses = self._take_losses()
            cause = self._release_all(losses)
            if unsaved := self._unsaved():
                raise CheckpointUnsaved(
                    f"Node {self.node} could not save the checkpoint of shard "
                    f"{', '.join(sorted(unsaved))} of group {self._member.key}, so it has not "
                    "left: shut it down again once the lease store answers, or the records since "
                    f"then are read again.{f' {cause}' if cause else ''}"
                ) from cause
            if self._rebalancer is not None:
                self._rebalancer.leave()
                self._rebalancer = None
            self._member.end_trust("it has left the group")
            losses += self._take_losses()
            if losses:
                raise losses[0]

    # -- one shard ----------------------------------------------------------------------------

    def open(self, shard: ShardId) -> Opened | OpenByOther | NotHeld:
        """Open an owned shard; the outcome has the cursor to resume at.

        `NotHeld` is a normal outcome: the shard was reassigned since the heartbeat.
        """
        if not self.trusted:
            return NotHeld("untrusted", None)
        key, node, incarnation = self._member.key, self.node, self._member.incarnation
        with self._lock:
            if shard in self._states():
                return OpenByOther(self._open[shard].tenure.run)
            self._openings += 1
            run = f"{incarnation}.{self._openings}"
            outcome = self._store.open_tenure(key, shard, node, run)
            if isinstance(outcome, OpenByOther) and outcome.run.rpartition(".")[0] == incarnation:
                # This process does not use that tenure: the reply to its opening was lost, or its
                # trust ended.
                outcome = self._store.open_tenure(key, shard, node, run, replaces=outcome.run)
            if isinstance(outcome, Opened):
                self._losses.pop(shard, None)
                self._open[shard] = OpenShard(self._store, outcome, self._member.clock)
            return outcome

    def holds(self, shard: ShardId) -> bool:
        """Return True if the shard is open here, without reading the store."""
        return self.trusted and shard in self._states()

    def require(self, shard: ShardId, tenure: Tenure | None = None) -> None:
        """Check that the shard is open here, under `tenure` if one is given.

        It reads the store only if no beat was confirmed in time. Raises as `save_checkpoint`.
        """
        self._confirm()
        with self._lock:
            self._current(shard, tenure)

    def persisted(self, shard: ShardId) -> str | None:
        """Return the stored checkpoint of an open shard, if any."""
        with self._lock:
            return self._open[shard].persisted if shard in self._open else None

    def save_checkpoint(
        self, shard: ShardId, cursor: str, *, persist: bool = False, tenure: Tenure | None = None
    ) -> None:
        """Set a shard's checkpoint: in memory, or in the store at once if `persist`.

        A checkpoint in memory is stored by the first heartbeat after `flush_s`, when the shard is
        released, and at shutdown. `tenure`, if given, must be the open one, so that a replaced
        consumer cannot save for its successor.

        Raises:
            CheckpointRefused: it is before the stored one. The shard stays open. To read records
                again, force the checkpoint.
            LeaseLost: the tenure is over; raised once, then `ShardNotOpen`.
            ShardNotOpen: the shard is not open here.
            StoreError: it could not be stored now; a later heartbeat retries.
        """
        # The cursor is staged before the tenure is checked, so that the next heartbeat saves it.
        with self._fenced(shard, tenure) as open_shard:
            open_shard.stage(cursor)
        try:
            self._confirm()
        except StoreError:
            if persist:
                raise
            return
        with self._fenced(shard, tenure) as open_shard:
            open_shard.stage(cursor)
            if persist:
                open_shard.flush()

    def force_checkpoint(self, shard: ShardId, cursor: str, *, reason: str) -> None:
        """Force the checkpoint of a shard that no run has open."""
        self._store.force_checkpoint(
            self._member.key, shard, cursor, observer=str(self.node), reason=reason
        )

    def record_gap(
        self, shard: ShardId, *, start: str, end: str, reason: str, skip: bool = True
    ) -> None:
        """Record that `[start, end)` of an open shard cannot be read; with `skip`, move to `end`.

        The gap must begin at the checkpoint. Raises as `save_checkpoint`.
        """
        self._confirm()
        with self._fenced(shard) as open_shard:
            open_shard.flush()
            tenure = open_shard.tenure
            self._store.record_gap(tenure, start=start, end=end, reason=reason, skip=skip)
            if skip:
                open_shard.persisted = end

    def accepted_gap_end(self, shard: ShardId, start: str) -> str | None:
        """Return the end of the accepted gap at `start`, or None."""
        gaps = self._store.gaps(self._member.key, shard, start=start, acknowledged=True)
        return gaps[0].end if gaps else None

    def announce(self, shard: ShardId, *, handoff_eta_s: float) -> None:
        """Publish how long the transfer of an open shard will take; raises as `save_checkpoint`."""
        with self._fenced(shard) as open_shard:
            self._store.announce(open_shard.tenure, handoff_eta_s=handoff_eta_s)

    def finish(self, shard: ShardId, cursor: str) -> None:
        """Finish a read-only shard at its end `cursor` (edge 8); raises as `save_checkpoint`."""
        self._confirm()
        with self._fenced(shard) as open_shard:
            open_shard.stage(cursor)
            open_shard.flush()
            if isinstance(self._store.finish_empty(open_shard.tenure, cursor), Stale):
                raise lease_lost(open_shard.tenure)
            del self._open[shard]

    def release(self, shard: ShardId, reason: str = "its client released it") -> None:
        """Persist the checkpoint and end the tenure; a shard in transfer goes to the next node.

        A shard that is assigned to this member stays its own. Raises as `save_checkpoint`; after a
        StoreError the shard stays open until a heartbeat omits it.
        """
        self._confirm()
        self._release(shard, reason)

    def _release(self, shard: ShardId, reason: str) -> None:
        with self._fenced(shard) as open_shard:
            open_shard.reported = True
            open_shard.flush_or_drop()
            self._store.close_tenure(open_shard.tenure, reason=reason)
            del self._open[shard]

    @contextmanager
    def _fenced(self, shard: ShardId, tenure: Tenure | None = None) -> Generator[OpenShard]:
        """Lock the open shard; mark its tenure as over if a write raises `LeaseLost`."""
        with self._lock:
            open_shard = self._current(shard, tenure)
            try:
                yield open_shard
            except LeaseLost as error:
                open_shard.end(str(error))
                raise

    def _current(self, shard: ShardId, tenure: Tenure | None = None) -> OpenShard:
        self.raise_loss(shard)
        open_shard = self._open.get(shard)
        if open_shard is not None and tenure is not None and open_shard.tenure != tenure:
            raise lease_lost(tenure)
        if open_shard is None or open_shard.end_reason:
            raise ShardNotOpen(
                f"Shard {shown(shard)} of group {self._member.key} is not open on node "
                f"{self.node}: open it first, once a heartbeat has confirmed it."
            )
        return open_shard

    # -- losses, each reported once -----------------------------------------------------------

    def raise_loss(self, shard: ShardId | None = None) -> None:
        """Raise an unreported loss, of `shard` or of any shard."""
        with self._lock:
            if shard is None:
                shard = next(iter(self._losses), None)
            loss = self._losses.pop(shard, None) if shard is not None else None
        if loss is not None:
            raise loss

    def report_later(self, shard: ShardId, loss: LeaseLost) -> None:
        """Store a loss; the next call that names the shard raises it."""
        with self._lock:
            self._losses[shard] = loss

    def _take_losses(self) -> list[LeaseLost]:
        with self._lock:
            losses = list(self._losses.values())
            self._losses.clear()
            return losses

    def _end(self, shard: ShardId, reason: str) -> None:
        self._open[shard].end(reason)
        self._losses[shard] = LeaseLost(reason)

    def _end_all(self, reason: str) -> None:
        self._member.end_trust(reason)
        with self._lock:
            for shard in self._states():
                self._end(shard, reason)

    # -- trust and the steps of a heartbeat ---------------------------------------------------

    def _confirm(self) -> None:
        """If no beat was confirmed in time, beat now, and end the tenures that were replaced.

        1. The process stalls for longer than its trust window. Until step 3 it reads, saves and
           opens nothing.
        2. It beats. If the store accepts the beat, the node was not evicted, because an eviction
           removes its incarnation. From now on, an eviction takes the whole timeout again.
        3. It reads the rows of its shards. If a row has the same epoch and run, no other node has
           opened the shard, because every opening increments the epoch. The tenure continues.
        4. If another node took the shards, step 2 is refused or the rows of step 3 differ, and the
           tenures end. If a node takes them after step 3, the store refuses the next write, which
           names the old tenure.

        Raises:
            StoreError: the store does not answer. The tenures stay open, and cannot be used yet.
        """
        member = self._member
        if self.trusted or member.trusted_until == float("-inf"):
            return
        with self._beating:
            if self.trusted:
                return
            states = self._states()
            if not member.beat():
                self._end_all(
                    f"Node {member.node} had no beat confirmed in time, and has lost its place "
                    f"and its shards in group {member.key}."
                )
                return
            self._compare(states, {row.shard: row for row in member.progress()})
            member.resume_trust()
        if not self.trusted:
            raise StoreUnavailable(
                f"The lease store answers too slowly for the timeout of group {member.key}: node "
                f"{member.node} cannot rely on its shards, and retries."
            )

    def _states(self) -> dict[ShardId, _State]:
        with self._lock:
            return {shard: each.state for shard, each in self._open.items() if not each.end_reason}

    def _compare(
        self, states: Mapping[ShardId, _State], progress: Mapping[ShardId, Progress]
    ) -> None:
        """End tenures that the store has replaced, or whose confirmed checkpoint it has lost.

        `states` must be older than `progress`. Otherwise:

        1. The heartbeat reads the rows; a shard is unassigned.
        2. The caller opens it: epoch 1.
        3. The heartbeat compares it with the row of step 1, which lacks epoch 1, and ends it.
        """
        with self._lock:
            for shard, before in states.items():
                open_shard = self._open.get(shard)
                if open_shard is None or open_shard.end_reason or open_shard.tenure != before[0]:
                    continue
                if reason := open_shard.contradiction(before, progress.get(shard)):
                    self._end(shard, reason)

    def _flush_due(self) -> None:
        for shard, open_shard in list(self._open.items()):
            if not open_shard.due(self._flush_s):
                continue
            try:
                with self._fenced(shard):
                    open_shard.flush_or_drop()
            except LeaseLost as error:
                self.report_later(shard, error)
            except StoreError as error:
                _LOG.warning("The checkpoint of shard %s could not be saved: %s", shard, error)

    def _release_unreported(self, reported: Collection[ShardId]) -> None:
        """Release the shards that the caller stopped reporting.

        A shard that was never reported stays open:

        1. The heartbeat thread lists the shards to report.
        2. The caller opens another one.
        3. The heartbeat reports the list of step 1, which lacks the new shard.
        """
        for shard, open_shard in list(self._open.items()):
            if shard in reported:
                open_shard.reported = True
            elif open_shard.reported and open_shard.end_reason:
                del self._open[shard]
                try:
                    # If only trust ended, the tenure is still open in the store.
                    self._store.close_tenure(open_shard.tenure, reason=open_shard.end_reason)
                except (LeaseLost, StoreError) as error:
                    # The next opening replaces the tenure.
                    _LOG.info("Shard %s was not closed: %s", shard, error)
            elif open_shard.reported:
                try:
                    self._release(shard, "its client stopped reporting it")
                except LeaseLost as error:
                    self.report_later(shard, error)
                    self._open.pop(shard, None)
                except StoreError as error:
                    _LOG.warning("Shard %s could not be released: %s", shard, error)

    def _release_all(self, losses: list[LeaseLost]) -> StoreError | None:
        """Save and close the open tenures; add lost ones to `losses`, return the last failure.

        Only unsaved checkpoints are retried, because leaving the group closes the tenures.
        """
        deadline = self._member.clock() + self._member.timeout_s
        while True:
            failure: StoreError | None = None
            for shard in self._states():
                try:
                    self.release(shard, "its client shut down")
                except LeaseLost as error:
                    losses.append(error)
                except ShardNotOpen:
                    continue
                except StoreError as error:
                    failure = error
                if self._member.clock() >= deadline:
                    return failure
            if failure is None or not self._unsaved():
                return failure
            self._pause(FLUSH_RETRY_S)

    def _unsaved(self) -> set[ShardId]:
        with self._lock:
            return {shard for shard, open_shard in self._open.items() if open_shard.behind}
