"""Opening a shard for a pull client: asked for, forced to a bootstrap cursor, or refused."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass

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
from dagster_leasehold.lease_store.rules.assignment_plan import UNSUBSCRIBABLE
from dagster_leasehold.lease_store.rules.starting_point import Bootstrap
from dagster_leasehold.lease_store.rules.states import ShardState


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
