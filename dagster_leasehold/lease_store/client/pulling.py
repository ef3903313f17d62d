"""A pull loop over the shards of a member, and the client that is asked for records through it.

A shard is connected, its records are polled and confirmed, and it is released. Until a batch is
confirmed, or its protect time has passed, its shard is not handed over: the records of a confirmed
batch are not delivered to another node again, unless this one dies.
"""

from __future__ import annotations

import itertools
import logging
import time
from collections.abc import Callable, Collection, Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from threading import RLock

from dagster_leasehold.lease_store import errors
from dagster_leasehold.lease_store.client.feed import Fetched, Record, ShardFeed
from dagster_leasehold.lease_store.client.group_member import FLUSH_DEFAULT_S, GroupMember
from dagster_leasehold.lease_store.client.pinning import PinnedShards
from dagster_leasehold.lease_store.errors import (
    GapHeld,
    LeaseholdError,
    LeaseLost,
    ShardNotOpen,
    ShardOccupied,
    StoreError,
    shown,
)
from dagster_leasehold.lease_store.group_rows import AssignmentMode, GapPolicy
from dagster_leasehold.lease_store.identifiers import GroupKey, NodeName, ShardId
from dagster_leasehold.lease_store.outcomes import NotHeld, OpenByOther, Opened
from dagster_leasehold.lease_store.rules import starting_point
from dagster_leasehold.lease_store.rules.assignment_plan import UNSUBSCRIBABLE
from dagster_leasehold.lease_store.rules.cursors import is_before
from dagster_leasehold.lease_store.rules.gap_policy import judged_gap, position_behind
from dagster_leasehold.lease_store.rules.liveness import Clock, steady_clock
from dagster_leasehold.lease_store.rules.refusals import gap_held
from dagster_leasehold.lease_store.rules.starting_point import Bootstrap
from dagster_leasehold.lease_store.rules.states import ShardState
from dagster_leasehold.lease_store.shard_rows import Tenure
from dagster_leasehold.lease_store.store import LeaseStore

PROTECT_DEFAULT_S = 60.0
RECORDS_DEFAULT = 1000
CONTINUE = "-1"

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class PulledBatch:
    """Records of one shard, to be confirmed within the protect time.

    Attributes:
        number: tells the batches of one client apart.
        start: the cursor of the first record.
        end: the cursor after the last record.

    Examples:
        >>> PulledBatch(1, ShardId("0"), "0", "2", ()).end
        '2'
    """

    number: int
    shard: ShardId
    start: str
    end: str
    records: tuple[Record, ...]


@dataclass(frozen=True, slots=True)
class Offsets:
    """The cursors of a connected shard.

    Attributes:
        polled: the end of the records that were delivered.
        confirmed: the end of the confirmed records.
        persisted: the checkpoint that the store confirmed, or None.

    Examples:
        >>> Offsets(polled="12", confirmed="10", persisted="8").confirmed
        '10'
    """

    polled: str
    confirmed: str
    persisted: str | None


@dataclass(slots=True)
class Connection:
    """A connected shard. At most one batch is outstanding, protected until `protected_until`.

    Attributes:
        confirmed: the end of the records that were confirmed, at first the start of reading.
        asked: the bootstrap cursor that its caller asked for, which can lie outside the shard.
        leaving: it is wanted elsewhere.
        over: a read-only shard was confirmed up to its end.
    """

    tenure: Tenure
    confirmed: str
    asked: str | None = None
    outstanding: PulledBatch | None = None
    protected_until: float = 0.0
    ends_shard: bool = False
    fetching: bool = False
    leaving: bool = False
    over: bool = False
    _start: str = field(init=False)

    def __post_init__(self) -> None:
        """Remember where reading began."""
        self._start = self.confirmed

    def stands_at(self, cursor: str) -> bool:
        """Return True if a connection that asks for a cursor would begin where this one stands."""
        untouched = self.confirmed == self._start
        return cursor == self.confirmed or (untouched and cursor == self.asked)

    def roll_back_if_due(self, now: float) -> None:
        """Forget the outstanding batch once its protect time is over: it is delivered again."""
        if self.outstanding and now >= self.protected_until:
            self.outstanding = None

    def busy(self, now: float) -> bool:
        """Return True if no records can be delivered now."""
        self.roll_back_if_due(now)
        return self.outstanding is not None or self.fetching or self.leaving


class PullLoop:
    """Opens the shards of a member, delivers their records, and saves confirmed checkpoints.

    Args:
        member: the place in the group.
        feed: reads the log.
        clock: monotonic seconds.
        protect_s: the time that a batch waits for its confirmation, in seconds.
        settles: release a shard as soon as nothing of it is outstanding. Else its caller does,
            with `settle`, once `leaving` or `over` is set.
    """

    def __init__(
        self,
        member: GroupMember,
        feed: ShardFeed,
        *,
        clock: Clock,
        protect_s: float,
        settles: bool = True,
    ) -> None:
        self._member = member
        self._feed = feed
        self._clock = clock
        self._protect_s = protect_s
        self._settles = settles
        self._lock = RLock()
        self._confirmed: tuple[ShardId, ...] = ()
        self._open: dict[ShardId, Connection] = {}
        # Losses that the caller has not heard of.
        self._untold: dict[ShardId, LeaseLost] = {}
        self._numbers = itertools.count(1)

    # -- the member's place -------------------------------------------------------------------

    def beat(self) -> None:
        """Beat once: learn the assignment, and hand over shards that are wanted elsewhere.

        Raises:
            NodeNameTaken, AssignmentConflict: the node lost its place and cannot join again.
            StoreError: the store does not answer.
        """
        with self._lock:
            shards = list(self._open)
        confirmed = self._member.heartbeat(shards)
        with self._lock:
            self._confirmed = confirmed
            self._follow(shards, confirmed)

    def confirmed_shards(self) -> tuple[ShardId, ...]:
        """The shards that are the member's, as of the last beat."""
        with self._lock:
            return self._confirmed

    def leave(self) -> None:
        """Save the confirmed checkpoints, drop unconfirmed records, and leave the group.

        Raises:
            LeaseLost: a loss was not yet reported to the caller; all other shards are saved.
            CheckpointUnsaved: a checkpoint is not persisted, and the member has not left: it may
                be called again.
            StoreError: all is persisted, but the store did not let the member leave: its shards
                are free after the group's timeout.
        """
        with self._lock:
            self._open.clear()
            self._confirmed = ()
            self._member.shutdown()
            self._tell()

    def _follow(self, reported: Collection[ShardId], confirmed: Collection[ShardId]) -> None:
        """Hand over the shards that a heartbeat reported and that were not confirmed."""
        for shard, connection in list(self._open.items()):
            connection.roll_back_if_due(self._clock())
            if shard in confirmed:
                # The next owner has left: without this the shard would no longer be read.
                connection.leaving = False
            elif shard in reported:
                self._give_way(shard, connection)

    def _give_way(self, shard: ShardId, connection: Connection) -> None:
        """Release a shard that is no longer confirmed: now, or once its batch is settled."""
        try:
            self._member.require(shard, connection.tenure)
        except (LeaseLost, ShardNotOpen) as error:
            # Named no more, it can be given to this node again even if the caller, who goes by
            # `partitions`, never asks for it; the first one to ask hears of the loss.
            del self._open[shard]
            if isinstance(error, LeaseLost):
                self._untold[shard] = error
            return
        announced, connection.leaving = connection.leaving, True
        if not self._settles:
            return
        if connection.outstanding is None and not connection.fetching:
            try:
                self._settle_or_log(shard)
            except LeaseLost as error:
                self._untold[shard] = error
        elif not announced:
            wait_s = max(connection.protected_until - self._clock(), 0.0)
            try:
                self._member.announce(shard, handoff_eta_s=wait_s)
            except (LeaseLost, StoreError) as error:
                # The hand-over then takes as long as the group's limit allows.
                _LOG.info("The hand-over of shard %s was not announced: %s", shard, error)

    def _settle_or_log(self, shard: ShardId) -> None:
        try:
            self.settle(shard)
        except StoreError as error:
            _LOG.warning("Shard %s could not be handed over: %s", shard, error)

    def settle(self, shard: ShardId) -> None:
        """End the tenure of a connected shard, which is over for the group or goes elsewhere.

        Raises:
            LeaseLost: the shard was lost before, and a confirmed checkpoint could not be saved.
            StoreError: the store does not answer; the next beat tries a hand-over again.
        """
        with self._lock, self._dropping_lost(shard):
            connection = self.require(shard)
            if connection.over:
                self._member.finish(shard, connection.confirmed)
            else:
                self._member.release(shard)
            del self._open[shard]

    # -- connections --------------------------------------------------------------------------

    def require(self, shard: ShardId) -> Connection:
        """Return a connection.

        Raises:
            LeaseLost: the shard was lost (told once).
            ShardNotOpen: it is not connected.
        """
        self._tell(shard)
        connection = self._open.get(shard)
        if connection is None:
            raise ShardNotOpen(
                f"Shard {shown(shard)} is not connected on node {self._member.node}: it was "
                "disconnected, handed over, or never connected."
            )
        return connection

    def checked(self, shard: ShardId) -> Connection:
        """Return a connection whose tenure continues: its word can be relied on now.

        Raises:
            LeaseLost, ShardNotOpen: as `require`.
            StoreError: no beat was confirmed in time, nor now: nothing more can be read.
        """
        with self._lock, self._dropping_lost(shard):
            connection = self.require(shard)
            self._member.require(shard, connection.tenure)
            return connection

    def _tell(self, shard: ShardId | None = None) -> None:
        """Raise a loss that the caller has not heard of: of a shard, or of any."""
        if shard is None:
            shard = next(iter(self._untold), None)
        untold = self._untold.pop(shard, None) if shard is not None else None
        if untold is not None:
            raise untold

    @contextmanager
    def _dropping_lost(self, shard: ShardId) -> Generator[None]:
        """Disconnect a shard that turns out to be lost; its caller hears of it by the error."""
        try:
            yield
        except (LeaseLost, ShardNotOpen):
            self._open.pop(shard, None)
            raise

    def attach(self, shard: ShardId, begin: Bootstrap | None = None) -> str:
        """Open a confirmed shard, and return where its reading begins, which is stored then.

        Raises:
            ShardOccupied: the shard is not to be had now.
            LeaseLost, StoreError: the start could not be stored: nothing can be read yet.
        """
        self._untold.pop(shard, None)
        try:
            opened = self._open_at(shard, begin)
            cursor = self._starting_cursor(shard, opened, begin)
        except BaseException:
            with suppress(LeaseholdError):
                self._member.release(shard)
            raise
        with self._lock:
            self._open[shard] = Connection(
                opened.tenure, cursor, asked=None if begin is None else begin.cursor
            )
        return cursor

    def _open_at(self, shard: ShardId, begin: Bootstrap | None) -> Opened:
        """Open a shard; a stored checkpoint that differs from its beginning is forced there."""
        opened = self._opened(shard)
        if begin is None or opened.check_point == begin.start:
            return opened
        if opened.check_point is None and begin.start == begin.cursor:
            return opened
        self._member.release(shard)
        reason = f"connected with the bootstrap cursor {begin.cursor}"
        self._member.force_checkpoint(shard, begin.start, reason=reason)
        return self._opened(shard)

    def _opened(self, shard: ShardId) -> Opened:
        if self._member.holds(shard):
            # Left open by an attempt whose end got no answer: no reader uses it.
            self._member.release(shard)
        outcome = self._member.open(shard)
        if isinstance(outcome, Opened):
            return outcome
        raise ShardOccupied(
            f"Shard {shown(shard)} of group {self._member.group.key} cannot be connected on node "
            f"{self._member.node}: {self._why_not_open(shard, outcome)}."
        )

    def _why_not_open(self, shard: ShardId, outcome: NotHeld | OpenByOther) -> str:
        if isinstance(outcome, OpenByOther):
            return f"run {outcome.run} of this node has it open"
        if outcome.state == "unsubscribable":
            return UNSUBSCRIBABLE
        if outcome.state == ShardState.WAIT and (lease := self._member.lease(shard)) is not None:
            return self._member.why_waiting(lease)
        if outcome.consumer_owner is None or outcome.consumer_owner == self._member.node:
            return f"it is in state {outcome.state}"
        return f"it is {outcome.consumer_owner}'s"

    def _starting_cursor(self, shard: ShardId, opened: Opened, begin: Bootstrap | None) -> str:
        """Return where reading begins.

        That is the bootstrap cursor if there is one, otherwise the stored checkpoint, otherwise the
        group's initial position. A bootstrap cursor outside the shard is clamped, and
        the difference recorded as a gap. The start is in the store when this returns:

        1. A client begins at the log's end, is given records, and dies before it confirms them.
        2. The log has grown. Were nothing stored, its successor would begin at the new end.
        """
        member, stored = self._member, self._member.persisted(shard)
        if begin is not None:
            if begin.gap:
                member.record_gap(shard, start=begin.start, end=begin.readable, reason=begin.gap)
            elif stored is None:
                member.save_checkpoint(shard, begin.readable, persist=True, tenure=opened.tenure)
            return begin.readable
        if (cursor := starting_point.resumption(stored, opened.intent)) is not None:
            return cursor
        lease = member.lease(shard)
        child = lease is not None and bool(lease.parents)
        position = starting_point.first_position(member.group.initial_position, child=child)
        feed = self._feed
        cursor = feed.first_cursor(shard) if position is None else feed.cursor_at(shard, position)
        member.save_checkpoint(shard, cursor, persist=True, tenure=opened.tenure)
        return cursor

    # -- batches ------------------------------------------------------------------------------

    def next_batch(self, shard: ShardId, records_max: int) -> PulledBatch | None:
        """Return the next records of a shard; None if there are none. `PullClient.poll` raises.

        They are fetched without the lock, so that a slow log does not hold up the beats.
        """
        with self._lock:
            connection = self.checked(shard)
            connection.roll_back_if_due(self._clock())
            if connection.outstanding or connection.fetching:
                raise errors.BatchUnconfirmed(
                    f"The last batch of shard {shard} is not confirmed yet: confirm it, or wait "
                    f"until its protect time of {self._protect_s:g} s ends."
                )
            if connection.leaving:
                return None
            connection.fetching = True
            start = connection.confirmed
        try:
            fetched = self._fetch(shard, start, records_max)
        finally:
            with self._lock:
                connection.fetching = False
        with self._lock:
            if self._open.get(shard) is not connection or connection.leaving:
                return None
            return self._delivered(shard, connection, fetched)

    def _fetch(self, shard: ShardId, start: str, records_max: int) -> Fetched:
        try:
            return self._feed.fetch(shard, start, records_max=records_max)
        except errors.CursorExpired:
            with self._lock, self._dropping_lost(shard):
                start = self._cursor_after_gap(shard, start)
                if (connection := self._open.get(shard)) is not None:
                    connection.confirmed = start
            return self._feed.fetch(shard, start, records_max=records_max)

    def _cursor_after_gap(self, shard: ShardId, cursor: str) -> str:
        """Return where reading continues when retention has removed the record at `cursor`.

        The gap is recorded in any case.

        Raises:
            GapHeld: the group holds at gaps, and this one is not accepted yet.
            CursorExpired: the log contradicts itself: it begins at the cursor that it calls
                removed.
            LeaseLost: the tenure ended meanwhile.
        """
        member, feed = self._member, self._feed
        policy = member.group.gap_policy
        behind = feed.cursor_at(shard, position_behind(policy))
        holds = policy is GapPolicy.HOLD
        verdict = judged_gap(
            cursor,
            policy=policy,
            behind=feed.clamp(shard, cursor) if is_before(behind, cursor) else behind,
            accepted_end=member.accepted_gap_end(shard, cursor) if holds else None,
            contradiction=f"Shard {shard} begins at {shown(cursor)}, but cannot be read there.",
        )
        reason = f"the log no longer has a record at {cursor}"
        member.record_gap(shard, start=cursor, end=verdict.end, reason=reason, skip=verdict.passes)
        if not verdict.passes:
            raise gap_held(member.group.key, shard, cursor, verdict.end)
        return verdict.end

    def _delivered(
        self, shard: ShardId, connection: Connection, fetched: Fetched
    ) -> PulledBatch | None:
        connection.ends_shard = fetched.last
        if not fetched.records:
            with self._dropping_lost(shard):
                if fetched.end != connection.confirmed:
                    # Some logs renew the cursor of an idle shard, which else ages with its records.
                    self._member.save_checkpoint(shard, fetched.end, tenure=connection.tenure)
                    connection.confirmed = fetched.end
                self._end_if_over(shard, connection)
            return None
        batch = PulledBatch(next(self._numbers), shard, fetched.start, fetched.end, fetched.records)
        connection.outstanding = batch
        connection.protected_until = self._clock() + self._protect_s
        return batch

    def _end_if_over(self, shard: ShardId, connection: Connection) -> None:
        connection.over = connection.ends_shard
        if connection.over and self._settles:
            self.settle(shard)

    def confirm(
        self, batch: PulledBatch, upto: str | None = None, *, persist: bool = False
    ) -> None:
        """Take note that records of a batch are done: all, or those before the cursor `upto`.

        The checkpoint is persisted by interval, at hand-over and at shutdown, or at once if
        `persist`. Records from `upto` on are delivered again.

        Raises:
            ConfirmedTooLate: the protect time ended first, and the batch was rolled back.
            LeaseLost: the shard was lost (told once): the records are another node's to do.
            ShardNotOpen: the shard is no longer connected.
            ValueError: `upto` is no cursor of the batch.
        """
        end = batch.end if upto is None else upto
        if end not in cursors_of(batch):
            raise ValueError(f"{shown(end)} is no cursor of this batch of shard {batch.shard}.")
        with self._lock:
            connection = self.require(batch.shard)
            connection.roll_back_if_due(self._clock())
            if connection.outstanding != batch:
                raise errors.ConfirmedTooLate(
                    f"Batch {batch.number} of shard {batch.shard} was not confirmed within "
                    f"{self._protect_s:g} s and was rolled back: its records are delivered again."
                )
            with self._dropping_lost(batch.shard):
                self._member.save_checkpoint(
                    batch.shard, end, persist=persist, tenure=connection.tenure
                )
                connection.outstanding = None
                connection.confirmed = end
                if end == batch.end:
                    self._end_if_over(batch.shard, connection)
                if connection.leaving and not connection.over and self._settles:
                    self._settle_or_log(batch.shard)

    def roll_back(self, batch: PulledBatch) -> None:
        """Have the records of an unconfirmed batch delivered again."""
        with self._lock:
            connection = self._open.get(batch.shard)
            if connection is not None and connection.outstanding == batch:
                connection.outstanding = None


def cursors_of(batch: PulledBatch) -> set[str]:
    """Return the cursors that confirm a part of a batch."""
    return {batch.start, batch.end, *(record.cursor for record in batch.records)}


class PullClient(PullLoop):
    """Consumes shards of a group at its caller's own pace.

    Args:
        feed: reads the log.
        name: the node's name in the group.
        incarnation: new for every process, such as a random id.
        clock: monotonic seconds.
        protect_s: the time that a polled batch waits for its confirmation, in seconds.
        flush_s: the longest time that a confirmed checkpoint waits to be persisted, in seconds.
        background: beat on a thread; False where the caller calls `beat` itself.
        pause: waits for some seconds between two tries to save, while the client shuts down.
    """

    def __init__(
        self,
        store: LeaseStore,
        key: GroupKey,
        feed: ShardFeed,
        *,
        name: NodeName,
        incarnation: str,
        clock: Clock = steady_clock,
        protect_s: float = PROTECT_DEFAULT_S,
        flush_s: float = FLUSH_DEFAULT_S,
        background: bool = True,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        member = GroupMember(
            store, key, name, incarnation=incarnation, clock=clock, flush_s=flush_s, pause=pause
        )
        super().__init__(member, feed, clock=clock, protect_s=protect_s)
        self._background = background
        self._pinned = PinnedShards(member, self.beat, self.confirmed_shards, clock)
        self._turns = 0

    def start(self, source_count: int = -1, node_id: int = 0) -> None:
        """Join the group.

        In a group that assigns by modulo, this node takes the shards whose rank is `node_id`
        modulo `source_count`; a negative count switches the rule off. Other groups ignore both.

        Raises:
            NodeNameTaken: another live process answers to the name.
            AssignmentConflict: count and id do not fit the other members'.
            StoreError, UnknownGroup: the store does not answer, or has no such group.
        """
        with self._lock:
            row = replace(self._member.settings, source_count=source_count, node_id=node_id)
            self._member.offer(row)
            self._member.register()
            self.beat()
            if self._background:
                self._member.start(self.beat)

    def shutdown(self) -> None:
        """Stop beating, and `leave`; the same call again, after an error, tries again."""
        self._member.stop()
        self.leave()

    @property
    def trusted_until(self) -> float:
        """The moment, on the clock given, until which the client can rely on its shards."""
        return self._member.trusted_until

    def partitions(self) -> tuple[ShardId, ...]:
        """Return the shards that are this node's, as of the last beat."""
        self._raise_problem()
        return self.confirmed_shards()

    def connect(self, shard: ShardId, bootstrap: str | None = None) -> str:
        """Open a shard, and return the cursor where its reading begins, which is stored then.

        `bootstrap` is the cursor to begin at; None or "-1" continues from the stored checkpoint,
        or from the group's initial position. Where it differs from a stored checkpoint, that is
        set first, as a recorded force. In a pinned group the shard is asked for by this call, and
        not any longer if it cannot be opened: it would be this client's, and read by none. Where
        the shard is connected already, its present cursor is returned.

        Raises:
            LeaseLost: it was connected and lost, and the loss is reported now; call again.
            ShardOccupied: the shard is not to be had: it is another node's, or another run of this
                node has it open, or it is connected and stands elsewhere than at `bootstrap`.
            UnknownShard: the group has no such shard.
            CursorInvalid: `bootstrap` is no cursor of the shard.
            StoreError: the store does not answer, so that the start could not be stored.
        """
        self._raise_problem()
        start = None if bootstrap == CONTINUE else bootstrap
        with self._lock:
            self._tell(shard)
            if (connection := self._open.get(shard)) is not None:
                if start is None or connection.stands_at(start):
                    return connection.confirmed
                raise ShardOccupied(
                    f"Shard {shown(shard)} is connected already, and stands at "
                    f"{connection.confirmed}: disconnect it before you begin elsewhere."
                )
            # Nonsense is refused before anything is changed.
            begin = None if start is None else Bootstrap(start, self._feed.clamp(shard, start))
            if not self._pins:
                return self.attach(shard, begin)
            self._pinned.ask(shard, start)
            try:
                return self.attach(shard, begin)
            except BaseException:
                self._pinned.withdraw(shard)
                raise

    def disconnect(self, shard: ShardId) -> None:
        """Release a shard: save its confirmed checkpoint, and drop unconfirmed records.

        Where the store does not answer, the heartbeats that follow do both.

        Raises:
            LeaseLost: the shard was lost (told once).
            ShardNotOpen: it is not connected.
        """
        with self._lock:
            self.require(shard)
            del self._open[shard]
            if self._pins:
                self._pinned.withdraw(shard)
            self._member.release(shard)
            if self._pins:
                self.beat()

    @property
    def _pins(self) -> bool:
        return self._member.group.assignment is AssignmentMode.PINNED

    def current_offsets(self) -> dict[ShardId, Offsets]:
        """Return the cursors of each connected shard."""
        with self._lock:
            return {
                shard: Offsets(
                    each.outstanding.end if each.outstanding else each.confirmed,
                    each.confirmed,
                    self._member.persisted(shard),
                )
                for shard, each in self._open.items()
            }

    def poll(
        self, shard: ShardId | None = None, *, records_max: int = RECORDS_DEFAULT
    ) -> PulledBatch | None:
        """Return the next records of a shard, or of any connected one in turn; None without any.

        Raises:
            BatchUnconfirmed: the shard's last batch still waits for its confirmation.
            LeaseLost: the shard was lost (told once).
            ShardNotOpen: it is not connected, or was handed over.
            GapHeld: records were removed before they were read, and the group holds at gaps.
            SourceUnavailable: the log does not answer.
            StoreError: no beat was confirmed in time, nor now: nothing is read until one is.
        """
        self._raise_problem()
        if shard is not None:
            return self.next_batch(shard, records_max)
        with self._lock:
            self._tell()
            shards = list(self._open)
            turn = self._turns % max(len(shards), 1)
            self._turns += 1
        held_back: GapHeld | None = None
        for candidate in shards[turn:] + shards[:turn]:
            with self._lock:
                connection = self._open.get(candidate)
                if connection is None or connection.busy(self._clock()):
                    continue
            try:
                batch = self.next_batch(candidate, records_max)
            except GapHeld as error:
                held_back = error  # A shard that holds does not hold up the others.
                continue
            if batch is not None:
                return batch
        if held_back is not None:
            raise held_back
        return None

    def _raise_problem(self) -> None:
        if self._member.problem is not None:
            raise self._member.problem
