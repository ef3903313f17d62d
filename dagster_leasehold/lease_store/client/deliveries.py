"""Batches of a pull client: fetched, protected until they are confirmed, or rolled back."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field
from threading import RLock

from dagster_leasehold.lease_store import errors
from dagster_leasehold.lease_store.client.connections import Connection, Connections, PulledBatch
from dagster_leasehold.lease_store.client.feed import Fetched, ShardFeed
from dagster_leasehold.lease_store.client.group_member import GroupMember
from dagster_leasehold.lease_store.client.starting import cursor_after_gap
from dagster_leasehold.lease_store.errors import shown
from dagster_leasehold.lease_store.identifiers import ShardId
from dagster_leasehold.lease_store.rules.liveness import Clock


@dataclass(slots=True)
class Deliveries:
    """The batches that one client is given, at most one of each shard at a time.

    What they raise is said by `PullClient`.

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
