"""Opening a shard for a pull client: asked for, forced to a bootstrap cursor, or refused."""

from __future__ import annotations

from contextlib import suppress

from dagster_leasehold.lease_store.client.connections import Connection
from dagster_leasehold.lease_store.client.feed import ShardFeed
from dagster_leasehold.lease_store.client.group_member import GroupMember
from dagster_leasehold.lease_store.client.pinning import PinnedShards
from dagster_leasehold.lease_store.client.starting import starting_cursor
from dagster_leasehold.lease_store.errors import LeaseholdError, ShardOccupied, shown
from dagster_leasehold.lease_store.group_rows import AssignmentMode
from dagster_leasehold.lease_store.identifiers import ShardId
from dagster_leasehold.lease_store.outcomes import NotHeld, OpenByOther, Opened
from dagster_leasehold.lease_store.roles.shards import Shards


class Connector:
    """Opens the shards of one client.

    Args:
        store: where a bootstrap cursor is forced.
        member: the client's place in the group.
        feed: reads the log.
        pinned: the shards that the client asks for by name, in a pinned group.
    """

    def __init__(
        self, store: Shards, member: GroupMember, feed: ShardFeed, pinned: PinnedShards
    ) -> None:
        self._store = store
        self._member = member
        self._feed = feed
        self._pinned = pinned

    def connect(self, shard: ShardId, bootstrap: str | None) -> Connection:
        """Open a shard, and store the place where its reading begins.

        Raises:
            ShardOccupied, UnknownShard, CursorInvalid, StoreError: as for `PullClient.connect`.
        """
        if bootstrap is not None:
            self._feed.clamp(shard, bootstrap)  # Refuses nonsense before anything is changed.
        if self._member.group.assignment is AssignmentMode.PINNED:
            self._pinned.ask(shard, bootstrap)
        opened = self._open_at(shard, bootstrap)
        try:
            cursor = starting_cursor(self._member, self._feed, shard, opened, bootstrap)
        except BaseException:
            with suppress(LeaseholdError):
                self._member.release(shard)
            raise
        return Connection(opened.tenure, cursor)

    def disconnect(self, shard: ShardId) -> None:
        """Persist the checkpoint of a shard, and ask for it no more.

        Raises:
            LeaseLost, ShardNotOpen, StoreError: as for `GroupMember.release`.
        """
        self._member.release(shard)
        if self._member.group.assignment is AssignmentMode.PINNED:
            self._pinned.withdraw(shard)

    def _open_at(self, shard: ShardId, bootstrap: str | None) -> Opened:
        """Open a shard; a stored checkpoint that differs from `bootstrap` is forced there."""
        opened = self._open(shard)
        if bootstrap is None or opened.check_point in (None, bootstrap):
            return opened
        self._member.release(shard)
        self._store.force_checkpoint(
            self._member.group.key,
            shard,
            bootstrap,
            observer=str(self._member.node),
            reason=f"connected with the bootstrap cursor {bootstrap}",
        )
        return self._open(shard)

    def _open(self, shard: ShardId) -> Opened:
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
            f"Shard {shown(shard)} of group {self._member.group.key} cannot be connected on node "
            f"{self._member.node}: {why}."
        )
