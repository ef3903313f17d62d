"""A small pull client: connect shards, poll records, confirm them.

Until a batch is confirmed, or its protect time has passed, its shard is not handed over: the
records of a confirmed batch are not delivered to another node again, unless this one dies.
"""

from __future__ import annotations

import itertools
import logging
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from dataclasses import replace
from threading import RLock

from dagster_leasehold.lease_store.client.beating import BackgroundBeats
from dagster_leasehold.lease_store.client.connections import Connection, Offsets, PulledBatch
from dagster_leasehold.lease_store.client.feed import Fetched, ShardFeed
from dagster_leasehold.lease_store.client.group_member import FLUSH_DEFAULT_S, GroupMember
from dagster_leasehold.lease_store.client.pinning import PinnedShards
from dagster_leasehold.lease_store.client.starting import cursor_after_gap, starting_cursor
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
    shown,
)
from dagster_leasehold.lease_store.group_rows import AssignmentMode
from dagster_leasehold.lease_store.identifiers import GroupKey, NodeName, ShardId
from dagster_leasehold.lease_store.outcomes import NotHeld, OpenByOther, Opened
from dagster_leasehold.lease_store.rules.liveness import Clock, steady_clock
from dagster_leasehold.lease_store.store import LeaseStore

_LOG = logging.getLogger(__name__)
PROTECT_DEFAULT_S = 60.0
RECORDS_DEFAULT = 1000
CONTINUE = "-1"


class PullClient:
    """Consumes shards of a group at its caller's own pace.

    Args:
        store: the lease store.
        key: the group.
        feed: reads the log.
        name: the node's name in the group.
        incarnation: new for every process, such as a random id.
        clock: monotonic seconds.
        protect_s: how long a polled batch waits for its confirmation.
        flush_s: how long a confirmed checkpoint may wait in memory before it is persisted.
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
        self._store = store
        self._key = key
        self._feed = feed
        self._clock = clock
        self._protect_s = protect_s
        self._background = background
        self._beats: BackgroundBeats | None = None
        self._lock = RLock()
        self._confirmed: tuple[ShardId, ...] = ()
        self._pinned = PinnedShards(self._member, self.beat, lambda: self._confirmed, clock)
        self._connections: dict[ShardId, Connection] = {}
        self._untold: dict[ShardId, LeaseLost] = {}
        self._numbers = itertools.count(1)
        self._turns = 0

    # -- joining and leaving --------------------------------------------------------------------

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
                self._beats = BackgroundBeats(
                    self.beat, lambda: self._member.beat_s, str(self._member.node)
                )
                self._beats.start()

    def beat(self) -> None:
        """One heartbeat: learn the assignment, and hand over what is wanted elsewhere.

        Raises:
            NodeNameTaken, AssignmentConflict: the node lost its place and cannot join again.
            StoreError: the store does not answer.
        """
        with self._lock:
            held = list(self._connections)
        confirmed = self._member.heartbeat(held)
        with self._lock:
            self._confirmed = confirmed
            for shard, connection in list(self._connections.items()):
                self._roll_back_if_due(connection)
                if shard in confirmed:
                    # Whoever was to have it is gone: without this it would be read no more.
                    connection.leaving = False
                elif shard in held:
                    self._give_way(shard, connection)

    def shutdown(self) -> None:
        """Roll back what is unconfirmed, persist what is confirmed, and leave the group.

        Raises:
            LeaseLost: a shard was lost, and nobody had been told; all others have been saved.
            CheckpointUnsaved: a checkpoint is not persisted, and the client has not left: it may
                be called again.
            StoreError: all is persisted, but the store did not let the client leave: its shards
                are free after the group's timeout.
        """
        if self._beats is not None:
            self._beats.stop()
            self._beats = None
        with self._lock:
            self._connections.clear()
            self._confirmed = ()
            self._member.shutdown()
            self._tell()

    @property
    def trusted_until(self) -> float:
        """The moment, on the clock given, until which the client may rely on its shards."""
        return self._member.trusted_until

    # -- shards ---------------------------------------------------------------------------------

    def partitions(self) -> tuple[ShardId, ...]:
        """The shards that are this node's, as of the last beat."""
        self._raise_problem()
        with self._lock:
            return self._confirmed

    def connect(self, shard: ShardId, bootstrap: str | None = None) -> str:
        """Open a shard, and say where its reading begins; that place is stored then.

        `bootstrap` is the cursor to begin at; None or "-1" continues from the stored checkpoint,
        or from the group's initial position. Where it differs from a stored checkpoint, that is
        set first, as a recorded force. In a pinned group the shard is asked for by this call. Where
        the shard is connected already, the answer is where it stands.

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
            self._tell(shard)
            if (connection := self._connections.get(shard)) is not None:
                if wanted in (None, connection.confirmed):
                    return connection.confirmed
                raise ShardOccupied(
                    f"Shard {shown(shard)} is connected already, and stands at "
                    f"{connection.confirmed}: disconnect it before you begin elsewhere."
                )
            if wanted is not None:
                self._feed.clamp(shard, wanted)  # Refuses nonsense before anything is changed.
            if self._member.group.assignment is AssignmentMode.PINNED:
                self._pinned.ask(shard, wanted)
            opened = self._open(shard, wanted)
            try:
                cursor = starting_cursor(self._member, self._feed, shard, opened, wanted)
            except BaseException:
                with suppress(LeaseholdError):
                    self._member.release(shard)
                raise
            self._connections[shard] = Connection(opened.tenure, cursor)
            return cursor

    def disconnect(self, shard: ShardId) -> None:
        """Let go of a shard: what is unconfirmed is rolled back, what is confirmed is persisted.

        Raises:
            LeaseLost: the shard was lost (told once).
            ShardNotOpen: it is not connected.
        """
        with self._lock:
            self._connection(shard)
            del self._connections[shard]
            self._member.release(shard)
            if self._member.group.assignment is AssignmentMode.PINNED:
                self._pinned.withdraw(shard)

    def current_offsets(self) -> dict[ShardId, Offsets]:
        """Where each connected shard stands."""
        with self._lock:
            offsets: dict[ShardId, Offsets] = {}
            for shard, connection in self._connections.items():
                batch = connection.outstanding
                polled = batch.end if batch else connection.confirmed
                persisted = self._member.persisted(shard)
                offsets[shard] = Offsets(polled, connection.confirmed, persisted)
            return offsets

    # -- records --------------------------------------------------------------------------------

    def poll(
        self, shard: ShardId | None = None, *, records_max: int = RECORDS_DEFAULT
    ) -> PulledBatch | None:
        """The next records of a shard, or of any connected one in turn; None where there are none.

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
            return self._poll(shard, records_max)
        with self._lock:
            self._tell()
            shards = list(self._connections)
            turn = self._turns % max(len(shards), 1)
            self._turns += 1
        held_back: GapHeld | None = None
        for candidate in shards[turn:] + shards[:turn]:
            with self._lock:
                connection = self._connections.get(candidate)
                if connection is None or self._busy(connection):
                    continue
            try:
                batch = self._poll(candidate, records_max)
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
        """The records of a batch are done: all, or those before the cursor `upto`.

        The checkpoint is persisted by interval, at hand-over and at shutdown, or at once if
        `persist`. Records from `upto` on are delivered again.

        Raises:
            ConfirmedTooLate: the protect time ended first, and the batch was rolled back.
            LeaseLost: the shard was lost (told once): the records are another node's to do.
            ShardNotOpen: the shard is not connected any more.
            ValueError: `upto` is no cursor of the batch.
        """
        end = batch.end if upto is None else upto
        if end not in {batch.start, batch.end, *(record.cursor for record in batch.records)}:
            raise ValueError(f"{shown(end)} is no cursor of this batch of shard {batch.shard}.")
        with self._lock:
            connection = self._connection(batch.shard)
            self._roll_back_if_due(connection)
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
                if connection.ends_shard and end == batch.end:
                    self._finish(batch.shard, end)
                elif connection.leaving:
                    self._hand_over(batch.shard)

    # -- inside ---------------------------------------------------------------------------------

    def _raise_problem(self) -> None:
        problem = self._beats.problem if self._beats else None
        if problem is not None:
            raise problem

    def _tell(self, shard: ShardId | None = None) -> None:
        """Raise what nobody has been told yet: of a shard, or of any."""
        if shard is None:
            shard = next(iter(self._untold), None)
        untold = self._untold.pop(shard, None) if shard is not None else None
        if untold is not None:
            raise untold

    def _connection(self, shard: ShardId) -> Connection:
        self._tell(shard)
        connection = self._connections.get(shard)
        if connection is None:
            raise ShardNotOpen(
                f"Shard {shown(shard)} is not connected on node {self._member.node}: it was "
                "disconnected, handed over, or never connected."
            )
        return connection

    def _busy(self, connection: Connection) -> bool:
        self._roll_back_if_due(connection)
        waiting = connection.outstanding is not None
        return waiting or connection.fetching or connection.leaving

    def _roll_back_if_due(self, connection: Connection) -> None:
        if connection.outstanding and self._clock() >= connection.protected_until:
            connection.outstanding = None

    @contextmanager
    def _dropping_lost(self, shard: ShardId) -> Generator[None]:
        """A shard that was lost is connected no more; its caller hears of it here."""
        try:
            yield
        except (LeaseLost, ShardNotOpen):
            self._connections.pop(shard, None)
            raise

    def _poll(self, shard: ShardId, records_max: int) -> PulledBatch | None:
        """Fetch without the lock, so that a slow log does not hold up the beats."""
        with self._lock:
            connection = self._connection(shard)
            with self._dropping_lost(shard):
                self._member.require(shard, connection.tenure)
            self._roll_back_if_due(connection)
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
            if self._connections.get(shard) is not connection or connection.leaving:
                return None
            return self._delivered(shard, connection, fetched)

    def _fetch(self, shard: ShardId, start: str, records_max: int) -> Fetched:
        try:
            return self._feed.fetch(shard, start, records_max=records_max)
        except CursorExpired:
            with self._lock, self._dropping_lost(shard):
                start = cursor_after_gap(self._member, self._feed, shard, start)
                if shard in self._connections:
                    self._connections[shard].confirmed = start
            return self._feed.fetch(shard, start, records_max=records_max)

    def _delivered(
        self, shard: ShardId, connection: Connection, fetched: Fetched
    ) -> PulledBatch | None:
        connection.ends_shard = fetched.last
        if not fetched.records:
            with self._dropping_lost(shard):
                if fetched.last:
                    self._finish(shard, fetched.end)
                elif fetched.end != connection.confirmed:
                    # Some logs renew the cursor of an idle shard, which else ages with its records.
                    self._member.save_checkpoint(shard, fetched.end, tenure=connection.tenure)
                    connection.confirmed = fetched.end
            return None
        batch = PulledBatch(next(self._numbers), shard, fetched.start, fetched.end, fetched.records)
        connection.outstanding = batch
        connection.protected_until = self._clock() + self._protect_s
        return batch

    def _finish(self, shard: ShardId, cursor: str) -> None:
        self._member.finish(shard, cursor)
        del self._connections[shard]

    def _give_way(self, shard: ShardId, connection: Connection) -> None:
        """The shard is not confirmed any more: hand it over, now or once its batch is settled."""
        try:
            self._member.require(shard, connection.tenure)
        except (LeaseLost, ShardNotOpen) as error:
            # Named no more, it can be given to this node again even if the caller, who goes by
            # `partitions`, never asks for it; whoever asks first is told.
            del self._connections[shard]
            if isinstance(error, LeaseLost):
                self._untold[shard] = error
            return
        if connection.outstanding is None and not connection.fetching:
            try:
                self._hand_over(shard)
            except LeaseLost as error:
                self._untold[shard] = error
        elif not connection.leaving:
            connection.leaving = True
            wait_s = max(connection.protected_until - self._clock(), 0.0)
            try:
                self._member.announce(shard, handoff_eta_s=wait_s)
            except (LeaseLost, StoreError) as error:
                # The hand-over then takes as long as the group's limit allows.
                _LOG.info("The hand-over of shard %s was not announced: %s", shard, error)

    def _hand_over(self, shard: ShardId) -> None:
        """End the tenure; tried again by the next beat where the store does not answer.

        Raises:
            LeaseLost: the shard was lost before, and what was confirmed could not be persisted.
        """
        connection = self._connections[shard]
        try:
            with self._dropping_lost(shard):
                self._member.release(shard)
        except StoreError as error:
            connection.leaving = True
            _LOG.warning("Shard %s could not be handed over: %s", shard, error)
        else:
            del self._connections[shard]

    def _open(self, shard: ShardId, bootstrap: str | None) -> Opened:
        opened = self._opened(shard)
        if bootstrap is None or opened.check_point in (None, bootstrap):
            return opened
        self._member.release(shard)
        self._store.force_checkpoint(
            self._key,
            shard,
            bootstrap,
            observer=str(self._member.node),
            reason=f"connected with the bootstrap cursor {bootstrap}",
        )
        return self._opened(shard)

    def _opened(self, shard: ShardId) -> Opened:
        if self._member.holds(shard):
            # Left open by an attempt whose end got no answer: nobody reads under it.
            self._member.release(shard)
        outcome = self._member.open(shard)
        if isinstance(outcome, Opened):
            return outcome
        raise self._refused(shard, outcome)

    def _refused(self, shard: ShardId, outcome: NotHeld | OpenByOther) -> ShardOccupied:
        if isinstance(outcome, OpenByOther):
            why = f"run {outcome.run} of this node has it open"
        elif outcome.consumer_owner is None or outcome.consumer_owner == self._member.node:
            why = f"it is in state {outcome.state}"
        else:
            why = f"it is {outcome.consumer_owner}'s"
        return ShardOccupied(
            f"Shard {shown(shard)} of group {self._key} cannot be connected on node "
            f"{self._member.node}: {why}."
        )
