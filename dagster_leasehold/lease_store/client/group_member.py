"""A member of a consumer group: the heartbeat surface that any client can be built on.

A client repeats one call: `heartbeat(held)` names the shards that it works on, and the reply names
the shards that are its own. It opens shards that are new in the reply, continues with the ones in
both, and stops missing ones: as long as it still names such a shard it keeps it, so that it can
finish and save; once it does not, the shard goes to the next node.

A heartbeat is a tick of the same rebalancing that Dagster's sensors run: clients and Dagster's
nodes can be members of one group.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Generator, Iterable, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from threading import RLock

from dagster_leasehold.lease_store import errors
from dagster_leasehold.lease_store.errors import (
    CheckpointRefused,
    LeaseLost,
    ShardNotOpen,
    StoreError,
    StoreUnavailable,
    shown,
)
from dagster_leasehold.lease_store.group_rows import BEAT_FRACTION_MAX, Group, Node, Timing
from dagster_leasehold.lease_store.identifiers import GroupKey, NodeName, ShardId
from dagster_leasehold.lease_store.member import Member
from dagster_leasehold.lease_store.outcomes import NotHeld, OpenByOther, Opened, Stale
from dagster_leasehold.lease_store.rebalancing import Rebalancer, TickReport
from dagster_leasehold.lease_store.rules.ledger import check_onwards
from dagster_leasehold.lease_store.rules.lineage import why_waiting
from dagster_leasehold.lease_store.rules.liveness import Clock, steady_clock
from dagster_leasehold.lease_store.rules.refusals import lease_lost
from dagster_leasehold.lease_store.rules.starting_point import resumption
from dagster_leasehold.lease_store.rules.states import ShardState
from dagster_leasehold.lease_store.shard_rows import Progress, ShardLease, Tenure
from dagster_leasehold.lease_store.store import LeaseStore

FLUSH_RETRY_S = 0.5
LET_GO = "its client released it"

_LOG = logging.getLogger(__name__)

FLUSH_DEFAULT_S = 5.0
# Two heartbeats fit into one interval between beats, so that a change is noticed sooner; the
# beat itself, which writes a row, is due at every second one.
HEARTBEATS_PER_BEAT = 1 / 0.45


@dataclass(frozen=True, slots=True)
class Standing:
    """An open tenure, and the checkpoint that the store confirmed; `certain` if none is unknown."""

    tenure: Tenure
    persisted: str | None
    certain: bool


class OpenShard:
    """One open shard of a member; not safe to call from two threads at once.

    Each that writes raises `LeaseLost` once the tenure is over.

    Attributes:
        tenure: the tenure that has the shard open.
        persisted: the checkpoint that the store confirmed, if any.
        unsaved: a newer checkpoint, if any.
        reported: True once a heartbeat named it as held.
        over: the reason why the tenure ended; empty while it continues.
    """

    def __init__(self, store: LeaseStore, opened: Opened, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self.tenure = opened.tenure
        self.persisted = opened.check_point
        self.unsaved: str | None = None
        self._saved_at = clock()
        self.reported = False
        self.over = ""
        # A checkpoint whose writing got no answer.
        self._unanswered: str | None = None
        # The end of the ledger that runs keep of this shard; None where they keep none.
        kept_by_runs = opened.intent is not None or bool(opened.next_sequence)
        self._ledger_end = resumption(opened.check_point, opened.intent) if kept_by_runs else None

    @property
    def stands(self) -> Standing:
        """The tenure and its checkpoint now, as far as they are certain."""
        return Standing(self.tenure, self.persisted, self._unanswered is None)

    @property
    def behind(self) -> bool:
        """True if the newest checkpoint is not in the store, as far as this process can tell."""
        return not self.over and self.unsaved not in (None, self.persisted)

    def due(self, interval_s: float) -> bool:
        """Return True if a checkpoint has been unsaved for `interval_s` seconds or longer."""
        waits = not self.over and self.unsaved is not None
        return waits and self._clock() - self._saved_at >= interval_s

    def remember(self, cursor: str) -> None:
        """Keep a checkpoint to be persisted.

        Raises:
            CheckpointRefused: it lies before the stored one, which stays.
        """
        check_onwards(self.tenure, self._unanswered or self.persisted or self._ledger_end, cursor)
        self.unsaved = cursor

    def flush(self) -> None:
        """Persist the unsaved checkpoint, after an earlier one whose writing got no answer.

        1. The write of 7 takes effect, and its reply is lost. The client confirms 9.
        2. A write from the checkpoint before 7 to 9 would be refused, and every later one.
           Repeated, the write of 7 changes nothing; 9 then follows it.

        Raises:
            CheckpointRefused: only the store could tell that it lies before the one that is
                stored; it is dropped, and the tenure continues.
            StoreError: the store does not answer.
        """
        if self.unsaved is None or self.unsaved == self.persisted:
            self.unsaved = None
            return
        unsaved = self.unsaved
        for cursor in (self._unanswered, unsaved) if self._unanswered else (unsaved,):
            self._unanswered = cursor
            self._persist(cursor)
            self.persisted, self._unanswered, self._saved_at = cursor, None, self._clock()
        self.unsaved = None

    def flush_remembered(self) -> None:
        """Persist the unsaved checkpoint; if the store refuses it, log that and drop it."""
        try:
            self.flush()
        except CheckpointRefused as error:
            _LOG.warning("%s", error)

    def _persist(self, cursor: str) -> None:
        """Write a checkpoint; a store that contradicts its own confirmation has lost commits.

        Raises:
            CheckpointRefused: the confirmed checkpoint is stored, and does not go back to `cursor`.
            LeaseLost: the tenure is over, or has to be: reading continues where the store is.
        """
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
        """Persist a checkpoint; records that the ledger will never hold become a gap of it.

        1. A run commits `[0, 5)`, intends `[5, 8)`, and dies.
        2. This client takes the shard, reads on from 5, and saves 7.
        3. The next run finds checkpoint 7 beside an intent that begins at 5: were that kept, no
           batch of the shard could ever follow. The gap `[5, 7)` gives the intent up, and says
           that those records are not in committed output.
        """
        end = self._ledger_end
        if end is None or (self.persisted is None and cursor == end):
            self._store.save_checkpoint(self.tenure, cursor)
            return
        self._store.record_gap(
            self.tenure,
            start=end if self.persisted is None else self.persisted,
            end=cursor,
            reason=f"read by {self.tenure.holder}, a client that keeps no ledger",
        )

    def record_gap(self, *, start: str, end: str, reason: str, skip: bool) -> None:
        """Record that `[start, end)` cannot be read; with `skip`, continue at `end`.

        Raises:
            CheckpointRefused: the gap does not begin at the checkpoint.
        """
        self.flush()
        self._store.record_gap(self.tenure, start=start, end=end, reason=reason, skip=skip)
        if skip:
            self.persisted = end

    def announce(self, *, handoff_eta_s: float) -> None:
        """Publish how long the hand-over will take, in seconds."""
        self._store.announce(self.tenure, handoff_eta_s=handoff_eta_s)

    def finish(self, cursor: str) -> None:
        """Edge 8: a read-only shard is consumed up to its end at `cursor`."""
        self.remember(cursor)
        self.flush()
        if isinstance(self._store.finish_empty(self.tenure, cursor), Stale):
            raise self.lost

    def close(self, reason: str) -> None:
        """End the tenure; a shard in transfer is handed over by that."""
        self._store.close_tenure(self.tenure, reason=reason)

    def contradiction(self, stood: Standing, row: Progress | None) -> str:
        """Return the reason why the shard's row ends its tenure; empty if the tenure continues.

        Args:
            stood: the shard when the row was about to be read.
            row: its row, if the member has it still.
        """
        tenure = self.tenure
        if row is None or (row.consumer_epoch, row.consumer_run) != (tenure.epoch, tenure.run):
            return str(self.lost)
        if stood.certain and self.stands == stood and row.check_point != stood.persisted:
            return (
                f"Shard {tenure.shard} of group {tenure.key} has to be opened again: the store "
                f"confirmed the checkpoint {_named(stood.persisted)}, and now has "
                f"{_named(row.check_point)}."
            )
        return ""

    def end(self, reason: str) -> None:
        """Mark the tenure as over, and drop its unsaved checkpoint."""
        self.over, self.unsaved = reason, None

    @property
    def lost(self) -> LeaseLost:
        """The error of a tenure that is over."""
        return lease_lost(self.tenure)


def _named(check_point: str | None) -> str:
    return "none" if check_point is None else shown(check_point)


class HeldShards:
    """Opens, saves and closes under the tenures of one member; safe to use from threads.

    The caller hears once that a tenure is over: the next call that names the shard raises
    `LeaseLost`, and later ones `ShardNotOpen`, as for any shard that is not open here. So does a
    call that names another `tenure` than the open one. Saves of a shard happen one after another,
    so that an older cursor cannot overtake a newer.

    Args:
        member: the one that holds the shards.
        flush_s: the longest time that a checkpoint waits to be persisted, in seconds.
    """

    def __init__(self, store: LeaseStore, member: Member, *, flush_s: float) -> None:
        self._store = store
        self._member = member
        self._flush_s = flush_s
        # Held while the member beats, and before the other one.
        self._beating = RLock()
        self._lock = RLock()
        self._open: dict[ShardId, OpenShard] = {}
        self._untold: dict[ShardId, LeaseLost] = {}
        self._opened = 0

    @property
    def trusted(self) -> bool:
        """True if the member can rely on its leases: a recent beat was confirmed."""
        return self._member.trusted

    @property
    def trusted_until(self) -> float:
        """When trust ends unless a beat renews it, on the clock given."""
        return self._member.trusted_until

    def open(self, shard: ShardId) -> Opened | OpenByOther | NotHeld:
        """Begin to work on a confirmed shard; the outcome says where to resume.

        `NotHeld` is a normal outcome: the shard went elsewhere since the heartbeat.
        """
        if not self.trusted:
            return NotHeld("untrusted", None)
        key, node, incarnation = self._member.key, self._member.node, self._member.incarnation
        with self._lock:
            if self._goes_on(shard):
                return OpenByOther(self._open[shard].tenure.run)
            self._opened += 1
            run = f"{incarnation}.{self._opened}"
            outcome = self._store.open_tenure(key, shard, node, run)
            if isinstance(outcome, OpenByOther) and outcome.run.rpartition(".")[0] == incarnation:
                # Ours, but we do not hold it: its opening got no answer, or we had to stop
                # trusting it. No caller works under it.
                outcome = self._store.open_tenure(key, shard, node, run, replaces=outcome.run)
            if isinstance(outcome, Opened):
                self._untold.pop(shard, None)
                self._open[shard] = OpenShard(self._store, outcome, self._member.clock)
            return outcome

    def holds(self, shard: ShardId) -> bool:
        """Return True if the shard is open here, as far as can be told without the store."""
        with self._lock:
            return self.trusted and self._goes_on(shard)

    def require(self, shard: ShardId, tenure: Tenure | None = None) -> None:
        """Make sure that the shard is open here, under `tenure` if one is given.

        The store is asked only where no beat was confirmed in time.

        Raises:
            LeaseLost: the tenure is over; raised once, `ShardNotOpen` from then on.
            ShardNotOpen: the shard is not open here.
            StoreError: no beat was confirmed in time, nor now: nothing more can be read.
        """
        self._confirm()
        with self._lock:
            self._current(shard, tenure)

    def save_checkpoint(
        self, shard: ShardId, cursor: str, *, persist: bool = False, tenure: Tenure | None = None
    ) -> None:
        """Set a shard's checkpoint: in memory, or in the store at once if `persist`.

        One in memory is persisted by the first heartbeat after `flush_s`, when the shard is let
        go of, and at shutdown. `tenure`, where given, must be the one that is open: it keeps a
        consumer that was replaced within this process from saving for its successor.

        Raises:
            CheckpointRefused: it lies before the one that is stored. The shard stays open, and
                its next save counts; to read records again, force the checkpoint.
            LeaseLost: the tenure is over; raised once, `ShardNotOpen` from then on.
            ShardNotOpen: the shard is not open here.
            StoreError: it could not be persisted now; a later heartbeat tries again.
        """
        # Remembered first: it is saved once the store says that the tenure continues.
        with self._fenced(shard, tenure) as open_shard:
            open_shard.remember(cursor)
        try:
            self._confirm()
        except StoreError:
            if persist:
                raise
            return
        with self._fenced(shard, tenure) as open_shard:
            open_shard.remember(cursor)
            if persist:
                open_shard.flush()

    def persisted(self, shard: ShardId) -> str | None:
        """Return the checkpoint of an open shard that the store confirmed, if any."""
        with self._lock:
            return self._open[shard].persisted if shard in self._open else None

    def record_gap(
        self, shard: ShardId, *, start: str, end: str, reason: str, skip: bool = True
    ) -> None:
        """Record that `[start, end)` of an open shard cannot be read; `skip` continues at `end`.

        Raises:
            LeaseLost, ShardNotOpen, StoreError: as for `save_checkpoint`.
            CheckpointRefused: the gap does not begin at the checkpoint.
        """
        self._confirm()
        with self._fenced(shard) as open_shard:
            open_shard.record_gap(start=start, end=end, reason=reason, skip=skip)

    def accepted_gap_end(self, shard: ShardId, start: str) -> str | None:
        """Return the end of the accepted gap at `start`, or None."""
        gaps = self._store.gaps(self._member.key, shard, start=start, acknowledged=True)
        return gaps[0].end if gaps else None

    def announce(self, shard: ShardId, *, handoff_eta_s: float) -> None:
        """Publish how long the hand-over of an open shard will take, in seconds.

        Raises:
            LeaseLost, ShardNotOpen, StoreError: as for `save_checkpoint`.
        """
        with self._fenced(shard) as open_shard:
            open_shard.announce(handoff_eta_s=handoff_eta_s)

    def finish(self, shard: ShardId, cursor: str) -> None:
        """Take note that a read-only shard was consumed up to its end: it is over for this group.

        Raises:
            LeaseLost, ShardNotOpen, StoreError: as for `save_checkpoint`.
        """
        self._confirm()
        with self._fenced(shard) as open_shard:
            open_shard.finish(cursor)
            del self._open[shard]

    def release(self, shard: ShardId, reason: str = LET_GO) -> None:
        """Persist the checkpoint and end the tenure; one in transfer goes to the next node.

        A shard that the plan gives to this member stays its own, and can be opened again.

        Raises:
            LeaseLost, ShardNotOpen: as for `save_checkpoint`.
            StoreError: the store does not answer; the shard is still open here, until a heartbeat
                does not report it.
        """
        self._confirm()
        self._release(shard, reason)

    # -- trust --------------------------------------------------------------------------------

    def _confirm(self) -> None:
        """Beat first where no beat was confirmed in time, and learn which tenures continue.

        1. The last beat is confirmed; then the process stalls for longer than its trust. By
           its own clock it stops: it reads, saves and opens nothing.
        2. A beat under its incarnation is confirmed. So it was not evicted, which takes the
           incarnation away; and from here an eviction needs the whole timeout again.
        3. After that it reads its shards' rows. One that has its epoch and run still was opened by
           no other since: every opening raises the epoch, and none ever falls. No other has read
           on from its checkpoint, so it continues where it stood, under the same tenure.
        4. Had another node taken its shards and saved, 2 would be refused or 3 would differ: its
           tenures are over. After 3, each write names the tenure, and the store
           refuses it once that is over.

        Raises:
            StoreError: the store does not answer. The tenures are kept, but not relied on yet.
        """
        member = self._member
        if self.trusted or member.trusted_until == float("-inf"):
            return
        with self._beating:
            if self.trusted:
                return
            judged = self._standing()
            if not member.beat():
                self._end_all(
                    f"Node {member.node} had no beat confirmed in time, and has lost its place "
                    f"and its shards in group {member.key}."
                )
                return
            self._compare(judged, {row.shard: row for row in member.progress()})
            member.resume_trust()
        if not self.trusted:
            raise StoreUnavailable(
                f"The lease store answers too slowly for the timeout of group {member.key}: node "
                f"{member.node} may not rely on its shards, and tries again."
            )

    def _standing(self) -> dict[ShardId, Standing]:
        """Return the shards whose tenures continue, as far as this process can tell."""
        with self._lock:
            return {
                shard: open_shard.stands
                for shard, open_shard in self._open.items()
                if not open_shard.over
            }

    def _compare(
        self, judged: Mapping[ShardId, Standing], progress: Mapping[ShardId, Progress]
    ) -> None:
        """End the tenures that the store no longer has, or has without the confirmed checkpoint.

        Only shards that stood like this before `progress` was read are judged:

        1. The beat reads the rows; a shard is free.
        2. The caller opens it: epoch 1.
        3. The beat compares the rows that it read in step 1. By that, epoch 1 does not exist.
        """
        with self._lock:
            for shard, stood in judged.items():
                open_shard = self._open.get(shard)
                if open_shard is None or open_shard.over or open_shard.tenure != stood.tenure:
                    continue
                if reason := open_shard.contradiction(stood, progress.get(shard)):
                    self._end(shard, open_shard, reason)

    def _end_all(self, reason: str) -> None:
        """End all tenures, and trust with them: the member has no place in the group now."""
        self._member.end_trust(reason)
        with self._lock:
            for shard, open_shard in self._open.items():
                if not open_shard.over:
                    self._end(shard, open_shard, reason)

    # -- the steps of a heartbeat -------------------------------------------------------------

    def _after_beat(
        self,
        judged: Mapping[ShardId, Standing],
        progress: Mapping[ShardId, Progress],
        reported: Iterable[ShardId],
    ) -> set[ShardId]:
        """Compare, flush and release as a heartbeat does; return the shards that have ended."""
        with self._lock:
            self._compare(judged, progress)
            self._flush_due()
            ended = {shard for shard, open_shard in self._open.items() if open_shard.over}
            self._let_go_of_unreported(reported)
            return ended

    def _flush_due(self) -> None:
        """Write the checkpoints that have waited for longer than the interval.

        The shard's own caller hears of a save that found its tenure over; a store that does not
        answer is asked again at the next beat.
        """
        for shard, open_shard in list(self._open.items()):
            if not open_shard.due(self._flush_s):
                continue
            try:
                with self._fenced(shard):
                    open_shard.flush_remembered()
            except LeaseLost as error:
                self._untold[shard] = error
            except StoreError as error:
                _LOG.warning("The checkpoint of shard %s could not be saved: %s", shard, error)

    def _let_go_of_unreported(self, reported: Iterable[ShardId]) -> None:
        """Release the shards that are no longer reported; retried if unanswered.

        A shard that was opened and never reported stays open:

        1. The beat's thread lists the shards that it will report.
        2. The caller opens one more.
        3. The beat reports the list of step 1. The new shard is not in it, and is not given up.
        """
        named = set(reported)
        for shard, open_shard in list(self._open.items()):
            if shard in named:
                open_shard.reported = True
            elif open_shard.reported:
                self._let_go(shard, open_shard)

    def _let_go(self, shard: ShardId, open_shard: OpenShard) -> None:
        if open_shard.over:
            del self._open[shard]
            try:
                # A holder that had to distrust itself can still own the row: it would stay open.
                open_shard.close(open_shard.over)
            except (LeaseLost, StoreError) as error:
                # Another node has it already, or its own node's next opening will replace it.
                _LOG.info("Shard %s was not closed: %s", shard, error)
            return
        try:
            self._release(shard, "its client stopped reporting it")
        except LeaseLost as error:
            self._untold[shard] = error
            self._open.pop(shard, None)
        except StoreError as error:
            _LOG.warning("Shard %s could not be released: %s", shard, error)

    def _release(self, shard: ShardId, reason: str) -> None:
        with self._fenced(shard) as open_shard:
            open_shard.reported = True
            open_shard.flush_remembered()
            open_shard.close(reason)
            del self._open[shard]

    def _release_all(
        self, lost: list[LeaseLost], *, within_s: float, pause: Callable[[float], None]
    ) -> StoreError | None:
        """Save and close open tenures, with retries for some seconds.

        Losses are added to `lost`; the last failure is returned, or None. A tenure that is saved
        and could not be closed is ended by leaving, so that it needs no retry.
        """
        give_up_at = self._member.clock() + within_s
        while True:
            failure: StoreError | None = None
            for shard in self._standing():
                try:
                    self.release(shard, "its client shut down")
                except LeaseLost as error:
                    lost.append(error)
                except ShardNotOpen:
                    continue
                except StoreError as error:
                    failure = error
                if self._member.clock() >= give_up_at:
                    return failure
            if failure is None or not self._unsaved():
                return failure
            pause(FLUSH_RETRY_S)

    def _unsaved(self) -> set[ShardId]:
        """Return the shards whose newest checkpoint is not in the store, as far as can be told."""
        with self._lock:
            return {shard for shard, open_shard in self._open.items() if open_shard.behind}

    def _take_untold(self) -> list[LeaseLost]:
        """Return the losses that no caller has heard of; they count as told from now on."""
        with self._lock:
            untold = list(self._untold.values())
            self._untold.clear()
            return untold

    # -- one shard ----------------------------------------------------------------------------

    def _goes_on(self, shard: ShardId) -> bool:
        return shard in self._open and not self._open[shard].over

    def _end(self, shard: ShardId, open_shard: OpenShard, reason: str) -> None:
        open_shard.end(reason)
        self._untold[shard] = LeaseLost(reason)

    @contextmanager
    def _fenced(self, shard: ShardId, tenure: Tenure | None = None) -> Generator[OpenShard]:
        """Lend the open shard; where a write finds its tenure over, the caller hears of it once."""
        with self._lock:
            open_shard = self._current(shard, tenure)
            try:
                yield open_shard
            except LeaseLost as error:
                self._end(shard, open_shard, str(error))
                del self._untold[shard]
                raise

    def _current(self, shard: ShardId, tenure: Tenure | None = None) -> OpenShard:
        """Return the open shard; LeaseLost once after its end, ShardNotOpen from then on."""
        untold = self._untold.pop(shard, None)
        if untold is not None:
            raise untold
        open_shard = self._open.get(shard)
        if open_shard is not None and tenure is not None and open_shard.tenure != tenure:
            raise lease_lost(tenure)
        if open_shard is None or open_shard.over:
            raise ShardNotOpen(
                f"Shard {shown(shard)} of group {self._member.key} is not open on node "
                f"{self._member.node}: open it first, once a heartbeat has confirmed it."
            )
        return open_shard


class GroupMember(HeldShards):
    """One node of a consumer group, driven by its caller; no thread of its own.

    `heartbeat` must be called at least every `beat_s` seconds. The calls are safe from several
    threads: usually one beats, and others work.

    Args:
        node: the member's name, or a row that carries its assignment settings and address too.
        incarnation: tells the process that answers to the name apart; new for every process, such
            as a random id.
        clock: monotonic seconds.
        flush_s: the longest time that a checkpoint waits in memory to be persisted, in seconds.
        pause: waits for some seconds between two tries to save, while the member shuts down.
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
        member = Member(store, key, replace(settings, incarnation=incarnation), clock=clock)
        super().__init__(store, member, flush_s=flush_s)
        self._pause = pause
        self._rebalancer: Rebalancer | None = None
        self._report: TickReport | None = None

    @property
    def node(self) -> NodeName:
        """The member's name."""
        return self._member.node

    @property
    def beat_s(self) -> float:
        """The longest time between two heartbeats, in seconds: a third of the group's timeout."""
        return self._member.beat_s

    @property
    def group(self) -> Group:
        """The group as the last heartbeat saw it."""
        return self._last().snapshot.group

    @property
    def members(self) -> tuple[Node, ...]:
        """The group's members as the last heartbeat saw them."""
        return tuple(row for row in self._last().snapshot.nodes if row.member)

    @property
    def refusals(self) -> tuple[errors.LeaseholdError, ...]:
        """The errors that the last heartbeat found in this member's assignment settings."""
        if self._report is None:
            return ()
        return tuple(
            refusal.error for refusal in self._report.refusals if refusal.node == self.node
        )

    def register(self) -> None:
        """Join the group; the same call again, after a refusal, tries again.

        Raises:
            NodeNameTaken: another live process answers to the name.
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
            # Two members that joined at the same moment can both have been let in.
            for error in self.refusals:
                if isinstance(error, errors.AssignmentConflict):
                    self._rebalancer.leave()
                    raise error

    def offer(self, settings: Node) -> None:
        """Change the assignment settings; `register` or the next heartbeat sends them."""
        with self._beating:
            self._member.offer(settings)

    @property
    def settings(self) -> Node:
        """The assignment settings that this member offers."""
        return self._member.settings

    def heartbeat(self, held: Collection[ShardId]) -> tuple[ShardId, ...]:
        """Beat, carry out what concerns this member, and learn which shards are its own.

        `held` names the shards that the caller works on. The reply names exactly the ones that are
        this member's and `already_alloc`, and that the source lets it read. A shard that is named
        and not in the reply is to be stopped: it is on its way to another node, and stays here as
        long as it is named; or it cannot be read now; or its tenure is over, and saving it raises
        `LeaseLost`. The reply is empty while the group is paused.

        Raises:
            NodeNameTaken, AssignmentConflict: the member lost its place and cannot join again.
            StoreError, UnknownGroup: the store does not answer, or no longer has this group.
        """
        with self._beating:
            rebalancer = self._joined()
            judged = self._standing()
            started = self._member.clock()
            report = rebalancer.tick()
            self._report = report
            group = report.snapshot.group
            if not report.has_member(self.node, self._member.incarnation):
                self._end_all(f"Node {self.node} is no member of group {group.key} now.")
                expelled = errors.NodeNameTaken(
                    f"Node {self.node} lost its place in group {group.key} while it was joining: "
                    "register it again."
                )
                raise next(iter(self.refusals), expelled)
            self._member.beat_s = group.timeout_s * BEAT_FRACTION_MAX
            ended = self._after_beat(judged, report.progress, held) & set(held)
            # A beat that failed is a trouble of the tick alone: only a confirmed one renews trust.
            beaten_at = self._member.beaten_at
            if beaten_at is not None and beaten_at >= started:
                self._member.resume_trust()
            return tuple(shard for shard in report.ready(self.node) if shard not in ended)

    def start(self, heartbeat: Callable[[], None]) -> None:
        """Repeat a heartbeat on a thread, while the caller works, polls or sleeps."""
        self._member.start(heartbeat, per_beat=HEARTBEATS_PER_BEAT)

    def stop(self) -> None:
        """End that thread after its present heartbeat."""
        self._member.stop()

    @property
    def problem(self) -> errors.UserMistake | None:
        """The mistake that a heartbeat of the thread met, until the next one succeeds."""
        return self._member.problem

    def shutdown(self) -> None:
        """Persist all checkpoints, release all shards and leave the group.

        A checkpoint that cannot be persisted is tried again for as long as the group's timeout.
        Where that does not help either, the member does not leave: no node is given a shard at a
        checkpoint that its reader had passed. It can be called again then; without that, the
        member's shards are free after the timeout, and records since the last saved checkpoint are
        read again.

        Raises:
            LeaseLost: a loss was not yet reported to the caller; all other shards are saved.
            CheckpointUnsaved: a checkpoint is not persisted; the member has not left.
            StoreError: all is persisted, but the store did not let the member leave: its shards
                are free after the timeout.
        """
        with self._beating:
            lost: list[errors.LeaseLost] = self._take_untold()
            cause = None
            if self._report is not None:
                within_s = self.group.timeout_s
                cause = self._release_all(lost, within_s=within_s, pause=self._pause)
            if unsaved := self._unsaved():
                names = ", ".join(sorted(unsaved))
                raise errors.CheckpointUnsaved(
                    f"Node {self.node} could not save the checkpoint of shard {names} of group "
                    f"{self._member.key}, so it has not left: shut it down again once the lease "
                    "store answers, or the records since then are read again."
                    f"{f' {cause}' if cause else ''}"
                ) from cause
            if self._rebalancer is not None:
                self._rebalancer.leave()
                self._rebalancer = None
            self._member.end_trust("it has left the group")
            lost += self._take_untold()
            if lost:
                raise lost[0]

    def force_checkpoint(self, shard: ShardId, cursor: str, *, reason: str) -> None:
        """Set the checkpoint of a shard that is open nowhere; the journal has the reason."""
        self._store.force_checkpoint(
            self._member.key, shard, cursor, observer=str(self.node), reason=reason
        )

    def lease(self, shard: ShardId) -> ShardLease | None:
        """Return the shard's row as the last heartbeat saw it."""
        rows = self._last().snapshot.shards
        return next((row for row in rows if row.shard == shard), None)

    def why_waiting(self, lease: ShardLease) -> str:
        """Return what a waiting shard waits for and what to do, as the end of a sentence."""
        states: dict[str, ShardState] = {
            row.shard: row.state for row in self._last().snapshot.shards
        }
        return f"it {why_waiting(lease, states)}"

    def _joined(self) -> Rebalancer:
        if self._rebalancer is None:
            raise RuntimeError("Register the member first.")
        return self._rebalancer

    def _last(self) -> TickReport:
        if self._report is None:
            raise RuntimeError("Register the member first.")
        return self._report
