"""The pull loop over a member's shards, and the client with which a program polls records.

A shard is connected, its records are polled and confirmed, and it is released. A shard with a
polled batch is transferred once the batch is confirmed or its protect time has passed. So another
node reads confirmed records again only if this node dies.
"""

from __future__ import annotations

import itertools
import logging
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from threading import RLock

from dagster_leasehold.lease_store.client.feed import Fetched, Record, ShardFeed
from dagster_leasehold.lease_store.client.group_member import FLUSH_DEFAULT_S, GroupMember
from dagster_leasehold.lease_store.errors import (
    BatchUnconfirmed,
    ConfirmedTooLate,
    CursorExpired,
    GapHeld,
    LeaseholdError,
    LeaseLost,
    ShardNotOpen,
    ShardOccupied,
    StoreError,
    UnknownShard,
    shown,
)
from dagster_leasehold.lease_store.group_rows import AssignmentMode, GapPolicy
from dagster_leasehold.lease_store.identifiers import GroupKey, NodeName, ShardId
from dagster_leasehold.lease_store.outcomes import NotHeld, OpenByOther, Opened
from dagster_leasehold.lease_store.rules import starting_point
from dagster_leasehold.lease_store.rules.assignment_plan import UNSUBSCRIBABLE
from dagster_leasehold.lease_store.rules.cursors import is_before
from dagster_leasehold.lease_store.rules.failing_steps import retry_wait_s
from dagster_leasehold.lease_store.rules.gap_policy import decide_gap, position_after_gap
from dagster_leasehold.lease_store.rules.liveness import Clock, steady_clock
from dagster_leasehold.lease_store.rules.refusals import gap_held
from dagster_leasehold.lease_store.rules.starting_point import Bootstrap
from dagster_leasehold.lease_store.rules.states import ShardState
from dagster_leasehold.lease_store.shard_rows import ShardLease, Tenure
from dagster_leasehold.lease_store.store import LeaseStore

PROTECT_DEFAULT_S = 60.0
RECORDS_DEFAULT = 1000
CONTINUE = "-1"
PINNING_PAUSE_MAX_S = 60.0
_REFUSED_BEFORE = "its last request was refused"

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class PulledBatch:
    """Records of one shard, to be confirmed within the protect time.

    Attributes:
        number: identifies the batch within its client.
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

    def has_cursor(self, cursor: str) -> bool:
        """Return True if the batch can be confirmed up to this cursor."""
        return cursor in {self.start, self.end, *(record.cursor for record in self.records)}


@dataclass(frozen=True, slots=True)
class Offsets:
    """The cursors of a connected shard.

    Attributes:
        polled: the end of the polled records.
        confirmed: the end of the confirmed records.
        persisted: the stored checkpoint, or None.

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
        begin: the cursor where reading began.
        bootstrap: the caller's bootstrap cursor; it can be outside the shard.
        leaving: True if another node waits for the shard, or the group is paused.
        over: True if a read-only shard was confirmed up to its end.
    """

    tenure: Tenure
    begin: str
    confirmed: str
    bootstrap: str | None = None
    outstanding: PulledBatch | None = None
    protected_until: float = 0.0
    ends_shard: bool = False
    fetching: bool = False
    leaving: bool = False
    over: bool = False

    def starts_at(self, cursor: str) -> bool:
        """Return True if connecting at this cursor again changes nothing."""
        untouched = self.confirmed == self.begin
        return cursor == self.confirmed or (untouched and cursor == self.bootstrap)

    def roll_back_if_due(self, now: float) -> None:
        """Drop the outstanding batch after its protect time; its records are delivered again."""
        if self.outstanding and now >= self.protected_until:
            self.outstanding = None


class PullLoop:
    """Opens the shards of a member, delivers their records, and saves confirmed checkpoints.

    Args:
        member: the node's member of the group.
        protect_s: the time that a batch waits for its confirmation, in seconds.
        settles: True to release a shard that is leaving or over once it has no outstanding batch;
            False if the caller calls `settle`.
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
        self._owned: tuple[ShardId, ...] = ()
        self._open: dict[ShardId, Connection] = {}
        self._numbers = itertools.count(1)

    # -- the member's shards ------------------------------------------------------------------

    def beat(self) -> None:
        """Send a heartbeat, update the owned shards, and release shards for waiting nodes.

        Raises as `GroupMember.heartbeat`.
        """
        with self._lock:
            reported = list(self._open)
        owned = self._member.heartbeat(reported)
        with self._lock:
            self._owned = owned
            for shard, connection in list(self._open.items()):
                connection.roll_back_if_due(self._clock())
                if shard in owned:
                    # The next owner has left the group: the shard stays here.
                    connection.leaving = False
                elif shard in reported:
                    self._release_unowned(shard, connection)

    def owned_shards(self) -> tuple[ShardId, ...]:
        """Return the shards that the member owned at the last heartbeat."""
        with self._lock:
            return self._owned

    def leave(self) -> None:
        """Save confirmed checkpoints, drop other records, and leave; see `GroupMember.shutdown`."""
        with self._lock:
            self._open.clear()
            self._owned = ()
            self._member.shutdown()

    def _release_unowned(self, shard: ShardId, connection: Connection) -> None:
        try:
            self._member.require(shard, connection.tenure)
        except ShardNotOpen:
            del self._open[shard]
            return
        except LeaseLost as error:
            # No longer report the shard: it can be assigned to this node again, but the caller
            # might never connect it.
            del self._open[shard]
            self._member.report_later(shard, error)
            return
        announced, connection.leaving = connection.leaving, True
        if not self._settles:
            return
        if connection.outstanding is None and not connection.fetching:
            try:
                self._settle_or_log(shard)
            except LeaseLost as error:
                self._member.report_later(shard, error)
        elif not announced:
            wait_s = max(connection.protected_until - self._clock(), 0.0)
            try:
                self._member.announce(shard, handoff_eta_s=wait_s)
            except (LeaseLost, StoreError) as error:
                # Without an estimate, the group's limit is the deadline.
                _LOG.info("The transfer of shard %s was not announced: %s", shard, error)

    def _settle_or_log(self, shard: ShardId) -> None:
        try:
            self.settle(shard)
        except StoreError as error:
            _LOG.warning("Shard %s could not be transferred: %s", shard, error)

    def settle(self, shard: ShardId) -> None:
        """End the tenure of a connected shard that is leaving or over.

        Raises:
            LeaseLost: the shard was lost, and a confirmed checkpoint could not be saved.
            StoreError: the store does not answer; the next heartbeat retries.
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
        """Return a connection; raise ShardNotOpen without one, and LeaseLost once after a loss."""
        with self._dropping_lost(shard):
            self._member.raise_loss(shard)
        connection = self._open.get(shard)
        if connection is None:
            raise ShardNotOpen(
                f"Shard {shown(shard)} is not connected on node {self._member.node}: it was "
                "disconnected, transferred, or never connected."
            )
        return connection

    def checked(self, shard: ShardId) -> Connection:
        """Return a connection whose tenure has not ended; raises as `GroupMember.require`."""
        with self._lock, self._dropping_lost(shard):
            connection = self.require(shard)
            self._member.require(shard, connection.tenure)
            return connection

    @contextmanager
    def _dropping_lost(self, shard: ShardId) -> Generator[None]:
        """Disconnect the shard if the block finds it lost."""
        try:
            yield
        except (LeaseLost, ShardNotOpen):
            self._open.pop(shard, None)
            raise

    def attach(self, shard: ShardId, begin: Bootstrap | None = None) -> str:
        """Open an owned shard, store the cursor where reading begins, and return it.

        Raises:
            ShardOccupied: the shard is not available now.
            LeaseLost, StoreError: the start could not be stored; the shard is not connected.
        """
        try:
            opened = self._open_at(shard, begin)
            cursor = self._starting_cursor(shard, opened, begin)
        except BaseException:
            with suppress(LeaseholdError):
                self._member.release(shard)
            raise
        bootstrap = None if begin is None else begin.cursor
        with self._lock:
            self._open[shard] = Connection(opened.tenure, cursor, cursor, bootstrap)
        return cursor

    def _open_at(self, shard: ShardId, begin: Bootstrap | None) -> Opened:
        """Open a shard; force its stored checkpoint to the bootstrap cursor if they differ."""
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
            # The reply to an earlier release was lost.
            self._member.release(shard)
        outcome = self._member.open(shard)
        if isinstance(outcome, Opened):
            return outcome
        raise self._unavailable(shard, self._why_not_open(shard, outcome))

    def _unavailable(self, shard: ShardId, reason: str) -> ShardOccupied:
        return ShardOccupied(
            f"Shard {shown(shard)} of group {self._member.group.key} cannot be connected on node "
            f"{self._member.node}: {reason}."
        )

    def _why_not_open(self, shard: ShardId, outcome: NotHeld | OpenByOther) -> str:
        if isinstance(outcome, OpenByOther):
            return f"run {outcome.run} of this node has it open"
        if outcome.state == "unsubscribable":
            return UNSUBSCRIBABLE
        if (
            outcome.state == ShardState.WAIT.value
            and (lease := self._member.lease(shard)) is not None
        ):
            return self._member.why_waiting(lease)
        if outcome.consumer_owner is None or outcome.consumer_owner == self._member.node:
            return f"it is in state {outcome.state}"
        return f"it belongs to {outcome.consumer_owner}"

    def _starting_cursor(self, shard: ShardId, opened: Opened, begin: Bootstrap | None) -> str:
        """Return and store the cursor where reading begins.

        This is the bootstrap cursor, otherwise the stored checkpoint, otherwise the group's initial
        position. A bootstrap cursor outside the shard is clamped; the difference is a gap. Without
        a stored cursor, records can be lost:

        1. A client begins at the log's end, polls records, and dies before it confirms them.
        2. The log has grown. The next client begins at the new end, after these records.
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
        """Return the next records of a shard, or None. Raises as `PullClient.poll`.

        The log is read without the lock, so that a slow log does not delay heartbeats.
        """
        with self._lock:
            connection = self.checked(shard)
            connection.roll_back_if_due(self._clock())
            if connection.outstanding or connection.fetching:
                raise BatchUnconfirmed(
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
        except CursorExpired:
            with self._lock, self._dropping_lost(shard):
                start = self._cursor_after_gap(shard, start)
                if (connection := self._open.get(shard)) is not None:
                    connection.confirmed = start
            return self._feed.fetch(shard, start, records_max=records_max)

    def _cursor_after_gap(self, shard: ShardId, cursor: str) -> str:
        """Record a gap from `cursor` on; return where reading resumes, or raise GapHeld."""
        member, feed = self._member, self._feed
        policy = member.group.gap_policy
        remaining = feed.cursor_at(shard, position_after_gap(policy))
        holds = policy is GapPolicy.HOLD
        verdict = decide_gap(
            cursor,
            policy=policy,
            resumption=feed.clamp(shard, cursor) if is_before(remaining, cursor) else remaining,
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
                    # Some logs renew an idle shard's cursor, so that it does not expire.
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
        """Confirm the records of a batch, or only the records before the cursor `upto`.

        The checkpoint is stored after `flush_s`, at a transfer and at shutdown, or at once if
        `persist`. Records from `upto` on are delivered again.

        Raises:
            ConfirmedTooLate: the protect time ended first, and the batch was rolled back.
            LeaseLost: the shard was lost, so another node reads the records; raised once.
            ShardNotOpen: the shard is no longer connected.
            ValueError: `upto` is not a cursor of the batch.
        """
        end = batch.end if upto is None else upto
        if not batch.has_cursor(end):
            raise ValueError(f"{shown(end)} is not a cursor of this batch of shard {batch.shard}.")
        with self._lock:
            connection = self.require(batch.shard)
            connection.roll_back_if_due(self._clock())
            if connection.outstanding != batch:
                raise ConfirmedTooLate(
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
        """Deliver the records of an unconfirmed batch again."""
        with self._lock:
            connection = self._open.get(batch.shard)
            if connection is not None and connection.outstanding == batch:
                connection.outstanding = None


class PullClient(PullLoop):
    """Consumes shards of a group when its caller polls.

    Args:
        name: the node's name in the group.
        incarnation: unique to this process, such as a random id.
        protect_s: the time that a polled batch waits for its confirmation, in seconds.
        flush_s: the longest time that a confirmed checkpoint stays in memory, in seconds.
        background: True to send heartbeats on a thread; False if the caller calls `beat`.
        pause: sleeps between two attempts to save during `shutdown`.
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
        self._turns = itertools.count()
        # For each refused shard: the time of the next request, and the number of requests written.
        self._refused: dict[ShardId, tuple[float, int]] = {}

    def start(self, source_count: int = -1, node_id: int = 0) -> None:
        """Join the group.

        In a group that assigns by modulo, this node takes the shards whose rank is `node_id`
        modulo `source_count`; a negative count disables the rule. Other groups ignore both.

        Raises:
            NodeNameTaken: another live process uses the name.
            AssignmentConflict: count and id contradict another member's.
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
        """Stop the heartbeats, and `leave`. After an error, call it again to retry."""
        self._member.stop()
        self.leave()

    @property
    def trusted_until(self) -> float:
        """The time on the client's clock until which it can rely on its shards."""
        return self._member.trusted_until

    def partitions(self) -> tuple[ShardId, ...]:
        """Return the shards that this node owned at the last heartbeat."""
        self._raise_problem()
        return self.owned_shards()

    def connect(self, shard: ShardId, bootstrap: str | None = None) -> str:
        """Open a shard, store the cursor where reading begins, and return it.

        `bootstrap` is the cursor to begin at; None or "-1" continues from the stored checkpoint,
        or from the group's initial position. If it differs from a stored checkpoint, the
        checkpoint is forced first. In a pinned group this call also requests the shard, and
        withdraws the request if the shard cannot be opened. A connected shard stays unchanged.

        Raises:
            LeaseLost: it was connected and lost; call again.
            ShardOccupied: another node owns it, another run of this node has it open, or it is
                connected and is not at `bootstrap`.
            UnknownShard: the group has no such shard.
            CursorInvalid: `bootstrap` is not a cursor of the shard.
            StoreError: the store does not answer, so the cursor could not be stored.
        """
        self._raise_problem()
        start = None if bootstrap == CONTINUE else bootstrap
        with self._lock:
            with self._dropping_lost(shard):
                self._member.raise_loss(shard)
            if (connection := self._open.get(shard)) is not None:
                if start is None or connection.starts_at(start):
                    return connection.confirmed
                raise ShardOccupied(
                    f"Shard {shown(shard)} is already connected, at cursor {connection.confirmed}: "
                    "disconnect it before you begin elsewhere."
                )
            # An invalid cursor is refused before anything is changed.
            begin = None if start is None else Bootstrap(start, self._feed.clamp(shard, start))
            if not self._pins:
                return self.attach(shard, begin)
            self._request(shard, start)
            try:
                return self.attach(shard, begin)
            except BaseException:
                self._withdraw(shard)
                raise

    def disconnect(self, shard: ShardId) -> None:
        """Release a shard: save its confirmed checkpoint, and drop unconfirmed records.

        If the store does not answer, the next heartbeats do both. Raises as `require`.
        """
        with self._lock:
            self.require(shard)
            del self._open[shard]
            if self._pins:
                self._withdraw(shard)
            self._member.release(shard)
            if self._pins:
                self.beat()

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
        """Return the next records of a shard, or of the connected shards in turn; None if empty.

        Raises:
            BatchUnconfirmed: the shard's last batch is not confirmed yet.
            LeaseLost: the shard was lost; raised once.
            ShardNotOpen: it is not connected, or was transferred.
            GapHeld: records were removed before they were read, and the group holds at gaps.
            SourceUnavailable: the log does not answer.
            StoreError: no beat was confirmed in time, and the store does not answer.
        """
        self._raise_problem()
        if shard is not None:
            return self.next_batch(shard, records_max)
        with self._lock:
            self._member.raise_loss()
            shards = list(self._open)
            turn = next(self._turns) % max(len(shards), 1)
        gap: GapHeld | None = None
        for candidate in shards[turn:] + shards[:turn]:
            with self._lock:
                connection = self._open.get(candidate)
                if connection is None:
                    continue
                connection.roll_back_if_due(self._clock())
                if connection.outstanding or connection.fetching or connection.leaving:
                    continue
            try:
                batch = self.next_batch(candidate, records_max)
            except GapHeld as error:
                gap = error  # The other shards continue.
                continue
            if batch is not None:
                return batch
        if gap is not None:
            raise gap
        return None

    def _raise_problem(self) -> None:
        if self._member.problem is not None:
            raise self._member.problem

    # -- a pinned group -----------------------------------------------------------------------

    @property
    def _pins(self) -> bool:
        return self._member.group.assignment is AssignmentMode.PINNED

    def _request(self, shard: ShardId, bootstrap: str | None) -> None:
        """Request a shard; withdraw the request if the shard is not available.

        Each change of a request writes to the store and its journal. So a shard that was occupied
        at the last heartbeat is refused without a request. After a refused request, the pause
        before the next one doubles up to a minute.
        """
        until, writes = self._refused.get(shard, (0.0, 0))
        early = shard in self._refused and self._clock() < until
        if not early:
            self.beat()
        reason = self._obstacle(shard)
        if not reason and early and writes:
            reason = _REFUSED_BEFORE
        requests = not reason
        if requests:
            self._offer_pinned((self._member.settings.pinned or {}) | {shard: bootstrap})
            try:
                self.beat()
            except BaseException:
                self._withdraw(shard)
                raise
            if shard in self._owned:
                self._refused.pop(shard, None)
                return
            reason = self._obstacle(shard) or _REFUSED_BEFORE
            self._withdraw(shard)
            self.beat()
        if requests or not early:
            writes = writes + 1 if requests else 0
            beat_s = self._member.beat_s
            most_s = max(PINNING_PAUSE_MAX_S, beat_s)
            pause_s = retry_wait_s(writes, first_s=beat_s, max_s=most_s)
            self._refused[shard] = (self._clock() + pause_s, writes)
        raise self._unavailable(shard, reason)

    def _withdraw(self, shard: ShardId) -> None:
        pinned = self._member.settings.pinned or {}
        self._offer_pinned({each: start for each, start in pinned.items() if each != shard})

    def _offer_pinned(self, pinned: dict[ShardId, str | None]) -> None:
        self._member.offer(replace(self._member.settings, pinned=pinned))

    def _obstacle(self, shard: ShardId) -> str:
        """Return why the shard was not available at the last heartbeat; empty if it was."""
        lease = self._member.lease(shard)
        if lease is None:
            raise UnknownShard(
                f"Group {self._member.group.key} has no shard {shown(shard)}: connect one of its "
                "shards."
            )
        if lease.state is ShardState.WAIT:
            return self._member.why_waiting(lease)
        if lease.state is ShardState.OVER:
            return "it is over"
        if self._member.group.paused:
            return "the group is paused"
        return self._rivalry(lease) if lease.subscribable else UNSUBSCRIBABLE

    def _rivalry(self, lease: ShardLease) -> str:
        """Return the reason if another node requests the shard, or is about to release it.

        A node that owns the shard without a request transfers it to this node, by the plan.
        """
        node, holder = self._member.node, lease.consumer_owner
        rivals = [
            row.name
            for row in self._member.members
            if row.name != node and lease.shard in (row.pinned or {})
        ]
        for owner in (holder, lease.lease_owner):
            if owner in rivals:
                return f"it belongs to {owner}"
        if rivals:
            return f"{rivals[0]} requests it"
        if lease.state is ShardState.TRANSFER and holder != node:
            return f"{holder} transfers it once its batch is done"
        return ""
