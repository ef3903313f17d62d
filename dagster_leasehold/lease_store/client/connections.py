"""The shards that a pull client has connected, and the losses that its caller has not heard of."""

from __future__ import annotations

import logging
from collections.abc import Collection, Generator
from contextlib import contextmanager
from dataclasses import dataclass, field

from dagster_leasehold.lease_store.client.feed import Record
from dagster_leasehold.lease_store.client.group_member import GroupMember
from dagster_leasehold.lease_store.errors import LeaseLost, ShardNotOpen, StoreError, shown
from dagster_leasehold.lease_store.identifiers import ShardId
from dagster_leasehold.lease_store.rules.liveness import Clock
from dagster_leasehold.lease_store.shard_rows import Tenure

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class PulledBatch:
    """Records of one shard, to be confirmed within the protect time.

    Attributes:
        number: tells the batches of one client apart.
        start: the cursor of the first record.
        end: the cursor after the last record.
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
        confirmed: the end of those that were confirmed.
        persisted: the checkpoint that the store confirmed, or None.
    """

    polled: str
    confirmed: str
    persisted: str | None


@dataclass(slots=True)
class Connection:
    """A connected shard. At most one batch is outstanding, protected until `protected_until`.

    Attributes:
        confirmed: the end of the records that were confirmed, at first the start of reading.
        asked: the bootstrap cursor that its caller asked for, which may lie outside the shard.
    """

    tenure: Tenure
    confirmed: str
    asked: str | None = None
    outstanding: PulledBatch | None = None
    protected_until: float = 0.0
    ends_shard: bool = False
    fetching: bool = False
    leaving: bool = False
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


@dataclass(slots=True)
class Connections:
    """The connected shards of one client; its caller holds the client's lock.

    Attributes:
        member: the client's place in the group.
        clock: monotonic seconds.
        open: the connected shards, in the order of their connecting.
    """

    member: GroupMember
    clock: Clock
    open: dict[ShardId, Connection] = field(default_factory=dict[ShardId, Connection])
    _untold: dict[ShardId, LeaseLost] = field(default_factory=dict[ShardId, LeaseLost])

    def require(self, shard: ShardId) -> Connection:
        """Return a connection.

        Raises:
            LeaseLost: the shard was lost (told once).
            ShardNotOpen: it is not connected.
        """
        self.tell(shard)
        connection = self.open.get(shard)
        if connection is None:
            raise ShardNotOpen(
                f"Shard {shown(shard)} is not connected on node {self.member.node}: it was "
                "disconnected, handed over, or never connected."
            )
        return connection

    def tell(self, shard: ShardId | None = None) -> None:
        """Raise a loss that the caller has not heard of: of a shard, or of any.

        Raises:
            LeaseLost: there is one.
        """
        if shard is None:
            shard = next(iter(self._untold), None)
        untold = self._untold.pop(shard, None) if shard is not None else None
        if untold is not None:
            raise untold

    def offsets(self) -> dict[ShardId, Offsets]:
        """Return the cursors of each connected shard."""
        return {
            shard: Offsets(
                each.outstanding.end if each.outstanding else each.confirmed,
                each.confirmed,
                self.member.persisted(shard),
            )
            for shard, each in self.open.items()
        }

    @contextmanager
    def dropping_lost(self, shard: ShardId) -> Generator[None]:
        """Disconnect a shard that turns out to be lost; its caller hears of it by the error."""
        try:
            yield
        except (LeaseLost, ShardNotOpen):
            self.open.pop(shard, None)
            raise

    def follow(self, reported: Collection[ShardId], confirmed: Collection[ShardId]) -> None:
        """Hand over the shards that a heartbeat reported and that were not confirmed."""
        for shard, connection in list(self.open.items()):
            connection.roll_back_if_due(self.clock())
            if shard in confirmed:
                # Whoever was to have it is gone: without this it would be read no more.
                connection.leaving = False
            elif shard in reported:
                self._give_way(shard, connection)

    def _give_way(self, shard: ShardId, connection: Connection) -> None:
        """Hand over a shard that is not confirmed any more: now, or once its batch is settled."""
        try:
            self.member.require(shard, connection.tenure)
        except (LeaseLost, ShardNotOpen) as error:
            # Named no more, it can be given to this node again even if the caller, who goes by
            # `partitions`, never asks for it; the first one to ask hears of the loss.
            del self.open[shard]
            if isinstance(error, LeaseLost):
                self._untold[shard] = error
            return
        if connection.outstanding is None and not connection.fetching:
            try:
                self.hand_over(shard)
            except LeaseLost as error:
                self._untold[shard] = error
        elif not connection.leaving:
            connection.leaving = True
            wait_s = max(connection.protected_until - self.clock(), 0.0)
            try:
                self.member.announce(shard, handoff_eta_s=wait_s)
            except (LeaseLost, StoreError) as error:
                # The hand-over then takes as long as the group's limit allows.
                _LOG.info("The hand-over of shard %s was not announced: %s", shard, error)

    def hand_over(self, shard: ShardId) -> None:
        """End the tenure; tried again by the next beat where the store does not answer.

        Raises:
            LeaseLost: the shard was lost before, and what was confirmed could not be persisted.
        """
        connection = self.open[shard]
        try:
            with self.dropping_lost(shard):
                self.member.release(shard)
        except StoreError as error:
            connection.leaving = True
            _LOG.warning("Shard %s could not be handed over: %s", shard, error)
        else:
            del self.open[shard]

    def finish(self, shard: ShardId, cursor: str) -> None:
        """Let go of a read-only shard that was consumed up to its end."""
        self.member.finish(shard, cursor)
        del self.open[shard]
