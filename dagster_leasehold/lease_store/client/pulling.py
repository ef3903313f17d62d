"""A small pull client: connect shards, poll records, confirm them.

Until a batch is confirmed, or its protect time has passed, its shard is not handed over: the
records of a confirmed batch are not delivered to another node again, unless this one dies.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from threading import RLock

from dagster_leasehold.lease_store import errors
from dagster_leasehold.lease_store.client.connections import (
    Connection,
    Connections,
    Offsets,
    PulledBatch,
)
from dagster_leasehold.lease_store.client.feed import Fetched, ShardFeed
from dagster_leasehold.lease_store.client.group_member import FLUSH_DEFAULT_S, GroupMember
from dagster_leasehold.lease_store.client.pinning import PinnedShards
from dagster_leasehold.lease_store.client.starting import cursor_after_gap, starting_cursor
from dagster_leasehold.lease_store.errors import GapHeld, LeaseholdError, ShardOccupied, shown
from dagster_leasehold.lease_store.group_rows import AssignmentMode
from dagster_leasehold.lease_store.identifiers import GroupKey, NodeName, ShardId
from dagster_leasehold.lease_store.outcomes import NotHeld, OpenByOther, Opened
from dagster_leasehold.lease_store.roles.shards import Shards
from dagster_leasehold.lease_store.rules.assignment_plan import UNSUBSCRIBABLE
from dagster_leasehold.lease_store.rules.liveness import Clock, steady_clock
from dagster_leasehold.lease_store.rules.starting_point import Bootstrap
from dagster_leasehold.lease_store.rules.states import ShardState
from dagster_leasehold.lease_store.store import LeaseStore

PROTECT_DEFAULT_S = 60.0
RECORDS_DEFAULT = 1000
CONTINUE = "-1"


@dataclass(slots=True)
class Deliveries:
    """Delivers batches to one client, at most one of each shard at a time.

    `PullClient` documents the errors.

    Attributes:
        member: the client's place in the group.
        feed: reads the log.
        connections: the connected shards.
        lock: held around whatever changes a connection.
        clock: monotonic seconds.
        protect_s: the time for which a batch waits for its confirmation, in seconds.
    """

    member: GroupMember
    feed: ShardFeed
    connections: Connections
    lock: RLock
    clock: Clock
    protect_s: float
    _numbers: Iterator[int] = field(default_factory=lambda: itertools.count(1))

    def next(self, shard: ShardId, records_max: int) -> PulledBatch | None:
        """Return the next records of a shard; None if there are none.

        They are fetched without the lock, so that a slow log does not hold up the beats.
        """
        with self.lock:
            connection = self.connections.require(shard)
            with self.connections.dropping_lost(shard):
                self.member.require(shard, connection.tenure)
            connection.roll_back_if_due(self.clock())
            if connection.outstanding or connection.fetching:
                raise errors.BatchUnconfirmed(
                    f"The last batch of shard {shard} is not confirmed yet: confirm it, or wait "
                    f"until its protect time of {self.protect_s:g} s ends."
                )
            if connection.leaving:
                return None
            connection.fetching = True
            start = connection.confirmed
        try:
            fetched = self._fetch(shard, start, records_max)
        finally:
            with self.lock:
                connection.fetching = False
        with self.lock:
            if self.connections.open.get(shard) is not connection or connection.leaving:
                return None
            return self._delivered(shard, connection, fetched)

    def _fetch(self, shard: ShardId, start: str, records_max: int) -> Fetched:
        try:
            return self.feed.fetch(shard, start, records_max=records_max)
        except errors.CursorExpired:
            with self.lock, self.connections.dropping_lost(shard):
                start = cursor_after_gap(self.member, self.feed, shard, start)
                if (connection := self.connections.open.get(shard)) is not None:
                    connection.confirmed = start
            return self.feed.fetch(shard, start, records_max=records_max)

    def _delivered(
        self, shard: ShardId, connection: Connection, fetched: Fetched
    ) -> PulledBatch | None:
        connection.ends_shard = fetched.last
        if not fetched.records:
            with self.connections.dropping_lost(shard):
                if fetched.last:
                    self.connections.finish(shard, fetched.end)
                elif fetched.end != connection.confirmed:
                    # Some logs renew the cursor of an idle shard, which else ages with its records.
                    self.member.save_checkpoint(shard, fetched.end, tenure=connection.tenure)
                    connection.confirmed = fetched.end
            return None
        batch = PulledBatch(next(self._numbers), shard, fetched.start, fetched.end, fetched.records)
        connection.outstanding = batch
        connection.protected_until = self.clock() + self.protect_s
        return batch

    def confirm(self, batch: PulledBatch, upto: str | None, *, persist: bool) -> None:
        """Move a shard past the records of a batch that are done; the caller holds the lock."""
        end = batch.end if upto is None else upto
        if end not in {batch.start, batch.end, *(record.cursor for record in batch.records)}:
            raise ValueError(f"{shown(end)} is no cursor of this batch of shard {batch.shard}.")
        connection = self.connections.require(batch.shard)
        connection.roll_back_if_due(self.clock())
        if connection.outstanding != batch:
            raise errors.ConfirmedTooLate(
                f"Batch {batch.number} of shard {batch.shard} was not confirmed within "
                f"{self.protect_s:g} s and was rolled back: its records are delivered again."
            )
        with self.connections.dropping_lost(batch.shard):
            self.member.save_checkpoint(batch.shard, end, persist=persist, tenure=connection.tenure)
            connection.outstanding = None
            connection.confirmed = end
            if connection.ends_shard and end == batch.end:
                self.connections.finish(batch.shard, end)
            elif connection.leaving:
                self.connections.hand_over(batch.shard)


@dataclass(frozen=True, slots=True)
class Connector:
    """Opens the shards of one client; what it raises is said by `PullClient`.

    Attributes:
        store: where a bootstrap cursor is forced.
        member: the client's place in the group.
        feed: reads the log.
        pinned: the shards that the client asks for by name, in a pinned group.
    """

    store: Shards
    member: GroupMember
    feed: ShardFeed
    pinned: PinnedShards

    def connect(self, shard: ShardId, bootstrap: str | None) -> Connection:
        """Open a shard, and store the place where its reading begins.

        In a pinned group, a shard that cannot be opened is not asked for any longer: it would be
        this client's, read by none, and refused to all others.
        """
        begin = None
        if bootstrap is not None:
            # Nonsense is refused before anything is changed.
            begin = Bootstrap(bootstrap, self.feed.clamp(shard, bootstrap))
        if self._pins:
            self.pinned.ask(shard, bootstrap)
        try:
            opened = self._open_at(shard, begin)
            cursor = starting_cursor(self.member, self.feed, shard, opened, begin)
        except BaseException:
            with suppress(LeaseholdError):
                self.disconnect(shard)
            raise
        return Connection(opened.tenure, cursor, asked=bootstrap)

    def disconnect(self, shard: ShardId) -> None:
        """Persist the checkpoint of a shard, and stop asking for it.

        Where the store does not answer, the heartbeats that follow do both.
        """
        if self._pins:
            self.pinned.withdraw(shard)
        self.member.release(shard)
        if self._pins:
            self.pinned.beat()

    @property
    def _pins(self) -> bool:
        return self.member.group.assignment is AssignmentMode.PINNED

    def _open_at(self, shard: ShardId, begin: Bootstrap | None) -> Opened:
        """Open a shard; a stored checkpoint that differs from its beginning is forced there."""
        opened = self._open(shard)
        if begin is None or opened.check_point == begin.start:
            return opened
        if opened.check_point is None and begin.start == begin.cursor:
            return opened
        self.member.release(shard)
        self.store.force_checkpoint(
            self.member.group.key,
            shard,
            begin.start,
            observer=str(self.member.node),
            reason=f"connected with the bootstrap cursor {begin.cursor}",
        )
        return self._open(shard)

    def _open(self, shard: ShardId) -> Opened:
        if self.member.holds(shard):
            # Left open by an attempt whose end got no answer: nobody reads under it.
            self.member.release(shard)
        outcome = self.member.open(shard)
        if isinstance(outcome, Opened):
            return outcome
        raise self._refused(shard, outcome)

    def _refused(self, shard: ShardId, outcome: NotHeld | OpenByOther) -> ShardOccupied:
        if isinstance(outcome, OpenByOther):
            why = f"run {outcome.run} of this node has it open"
        elif outcome.state == "unsubscribable":
            why = UNSUBSCRIBABLE
        elif outcome.state == ShardState.WAIT and (lease := self.member.lease(shard)) is not None:
            why = self.member.why_waiting(lease)
        elif outcome.consumer_owner is None or outcome.consumer_owner == self.member.node:
            why = f"it is in state {outcome.state}"
        else:
            why = f"it is {outcome.consumer_owner}'s"
        return ShardOccupied(
            f"Shard {shown(shard)} of group {self.member.group.key} cannot be connected on node "
            f"{self.member.node}: {why}."
        )


class PullClient:
    """Consumes shards of a group at its caller's own pace.

    Args:
        feed: reads the log.
        name: the node's name in the group.
        incarnation: new for every process, such as a random id.
        clock: monotonic seconds.
        protect_s: the time for which a polled batch waits for its confirmation, in seconds.
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
        self._member = GroupMember(
            store, key, name, incarnation=incarnation, clock=clock, flush_s=flush_s, pause=pause
        )
        self._clock = clock
        self._background = background
        self._lock = RLock()
        self._confirmed: tuple[ShardId, ...] = ()
        pinned = PinnedShards(self._member, self.beat, lambda: self._confirmed, clock)
        self._connector = Connector(store, self._member, feed, pinned)
        self._connections = Connections(self._member, clock)
        self._deliveries = Deliveries(
            self._member, feed, self._connections, self._lock, clock=clock, protect_s=protect_s
        )
        self._turns = 0

    def start(self, source_count: int = -1, node_id: int = 0) -> None:
        """Join the group.

        In a group that assigns by modulo, this node takes the shards whose rank is `node_id`
        modulo `source_count`; a negative count switches the rule off. Other groups ignore both.

        Raises:
            NodeNameTaken: another live process answers to the name.
            AssignmentConflict: count and id do not fit those of the other members.
            StoreError, UnknownGroup: the store does not answer, or has no such group.
        """
        with self._lock:
            row = replace(self._member.settings, source_count=source_count, node_id=node_id)
            self._member.offer(row)
            self._member.register()
            self.beat()
            if self._background:
                self._member.start(self.beat)

    def beat(self) -> None:
        """Beat once: learn the assignment, and hand over what is wanted elsewhere.

        Raises:
            NodeNameTaken, AssignmentConflict: the node lost its place and cannot join again.
            StoreError: the store does not answer.
        """
        with self._lock:
            held = list(self._connections.open)
        confirmed = self._member.heartbeat(held)
        with self._lock:
            self._confirmed = confirmed
            self._connections.follow(held, confirmed)

    def shutdown(self) -> None:
        """Roll back what is unconfirmed, persist what is confirmed, and leave the group.

        Raises:
            LeaseLost: a shard was lost, and nobody had been told; all others have been saved.
            CheckpointUnsaved: a checkpoint is not persisted, and the client has not left: it may
                be called again.
            StoreError: all is persisted, but the store did not let the client leave: its shards
                are free after the group's timeout.
        """
        self._member.stop()
        with self._lock:
            self._connections.open.clear()
            self._confirmed = ()
            self._member.shutdown()
            self._connections.tell()

    @property
    def trusted_until(self) -> float:
        """The moment, on the clock given, until which the client may rely on its shards."""
        return self._member.trusted_until

    def partitions(self) -> tuple[ShardId, ...]:
        """Return the shards that are this node's, as of the last beat."""
        self._raise_problem()
        with self._lock:
            return self._confirmed

    def connect(self, shard: ShardId, bootstrap: str | None = None) -> str:
        """Open a shard, and return the cursor where its reading begins, which is stored then.

        `bootstrap` is the cursor to begin at; None or "-1" continues from the stored checkpoint,
        or from the group's initial position. Where it differs from a stored checkpoint, that is
        set first, as a recorded force. In a pinned group the shard is asked for by this call. Where
        the shard is connected already, its present cursor is returned.

        Raises:
            LeaseLost: it was connected and lost, and nobody has been told yet; call again.
            ShardOccupied: the shard is not to be had: it is another node's, or another run of this
                node has it open, or it is connected and stands elsewhere than at `bootstrap`.
            UnknownShard: the group has no such shard.
            CursorInvalid: `bootstrap` is no cursor of the shard.
            StoreError: the store does not answer, so that the start could not be stored.
        """
        self._raise_problem()
        wanted = None if bootstrap == CONTINUE else bootstrap
        with self._lock:
            self._connections.tell(shard)
            if (connection := self._connections.open.get(shard)) is not None:
                if wanted is None or connection.stands_at(wanted):
                    return connection.confirmed
                raise ShardOccupied(
                    f"Shard {shown(shard)} is connected already, and stands at "
                    f"{connection.confirmed}: disconnect it before you begin elsewhere."
                )
            connection = self._connector.connect(shard, wanted)
            self._connections.open[shard] = connection
            return connection.confirmed

    def disconnect(self, shard: ShardId) -> None:
        """Let go of a shard: what is unconfirmed is rolled back, what is confirmed is persisted.

        Raises:
            LeaseLost: the shard was lost (told once).
            ShardNotOpen: it is not connected.
        """
        with self._lock:
            self._connections.require(shard)
            del self._connections.open[shard]
            self._connector.disconnect(shard)

    def current_offsets(self) -> dict[ShardId, Offsets]:
        """Return the cursors of each connected shard."""
        with self._lock:
            return self._connections.offsets()

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
            return self._deliveries.next(shard, records_max)
        with self._lock:
            self._connections.tell()
            shards = list(self._connections.open)
            turn = self._turns % max(len(shards), 1)
            self._turns += 1
        held_back: GapHeld | None = None
        for candidate in shards[turn:] + shards[:turn]:
            with self._lock:
                connection = self._connections.open.get(candidate)
                if connection is None or connection.busy(self._clock()):
                    continue
            try:
                batch = self._deliveries.next(candidate, records_max)
            except GapHeld as error:
                held_back = error  # A shard that holds does not hold up the others.
                continue
            if batch is not None:
                return batch
        if held_back is not None:
            raise held_back
        return None

    def confirm(
        self, batch: PulledBatch, upto: str | None = None, *, persist: bool = False
    ) -> None:
        """Take note that records of a batch are done: all, or those before the cursor `upto`.

        The checkpoint is persisted by interval, at hand-over and at shutdown, or at once if
        `persist`. Records from `upto` on are delivered again.

        Raises:
            ConfirmedTooLate: the protect time ended first, and the batch was rolled back.
            LeaseLost: the shard was lost (told once): the records are another node's to do.
            ShardNotOpen: the shard is not connected any more.
            ValueError: `upto` is no cursor of the batch.
        """
        with self._lock:
            self._deliveries.confirm(batch, upto, persist=persist)

    def _raise_problem(self) -> None:
        if self._member.problem is not None:
            raise self._member.problem
