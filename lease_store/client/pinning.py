"""Asking for shards by name, in a group with pinned assignment.

Each change of what a node asks for is written and journalled, so a shard that cannot be had is
refused by looking, and what looked free and was not is asked for again after a growing pause.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace

from dagster_leasehold.lease_store.client.group_member import GroupMember
from dagster_leasehold.lease_store.errors import ShardOccupied, UnknownShard, shown
from dagster_leasehold.lease_store.identifiers import ShardId
from dagster_leasehold.lease_store.rules.failing_steps import retry_wait_s
from dagster_leasehold.lease_store.rules.liveness import Clock
from dagster_leasehold.lease_store.rules.states import ShardState

PAUSE_MAX_S = 60.0
REFUSED_BEFORE = "it was refused a moment ago"
_NOT_FREE = {
    ShardState.WAIT: "it waits for the shards that it comes from",
    ShardState.OVER: "it is over",
}


@dataclass(frozen=True, slots=True)
class _Refusal:
    """The time until which a shard is not asked for again.

    `writes` counts the refusals in a row that took a write to find out.
    """

    until: float
    writes: int


@dataclass(frozen=True, slots=True)
class PinnedShards:
    """The shards that one client asks for by name.

    Attributes:
        member: the client's place in the group.
        beat: one heartbeat of the client.
        confirmed: the shards that are the client's, as of the last heartbeat.
        clock: monotonic seconds.
    """

    member: GroupMember
    beat: Callable[[], None]
    confirmed: Callable[[], Collection[ShardId]]
    clock: Clock
    _refusals: dict[ShardId, _Refusal] = field(default_factory=dict[ShardId, _Refusal])

    def ask(self, shard: ShardId, bootstrap: str | None) -> None:
        """Ask for a shard, and withdraw that if it is not to be had.

        After a refusal the store is not looked at again before a heartbeat's interval, and not
        written to again before a pause that doubles up to a minute.

        Raises:
            UnknownShard: the group has no such shard.
            ShardOccupied: the shard is not to be had now.
            StoreError: the store does not answer.
        """
        refusal = self._refusals.get(shard)
        early = refusal is not None and self.clock() < refusal.until
        if not early:
            self.beat()
        why = self._obstacle(shard)
        if not why and early and refusal is not None and refusal.writes:
            why = REFUSED_BEFORE
        asks = not why
        if asks:
            settings = self.member.settings
            pinned = {**(settings.pinned or {}), shard: bootstrap}
            self.member.offer(replace(settings, pinned=pinned))
            self.beat()
            if shard in self.confirmed():
                self._refusals.pop(shard, None)
                return
            why = self._obstacle(shard) or REFUSED_BEFORE
            self.withdraw(shard)
        if asks or not early:
            self._refusals[shard] = self._refused(refusal, asked=asks)
        raise ShardOccupied(
            f"Shard {shown(shard)} of group {self.member.group.key} cannot be connected on node "
            f"{self.member.node}: {why}."
        )

    def withdraw(self, shard: ShardId) -> None:
        """Ask for a shard no more."""
        pinned = dict(self.member.settings.pinned or {})
        pinned.pop(shard, None)
        self.member.offer(replace(self.member.settings, pinned=pinned))
        self.beat()

    def _refused(self, before: _Refusal | None, *, asked: bool) -> _Refusal:
        beat_s = self.member.beat_s
        writes = (before.writes if before is not None else 0) + 1 if asked else 0
        pause_s = retry_wait_s(writes, first_s=beat_s, max_s=max(PAUSE_MAX_S, beat_s))
        return _Refusal(self.clock() + pause_s, writes)

    def _obstacle(self, shard: ShardId) -> str:
        """Return why the shard was not to be had as of the last heartbeat; empty if it was.

        Raises:
            UnknownShard: the group has no such shard.
        """
        lease, node = self.member.lease(shard), self.member.node
        if lease is None:
            raise UnknownShard(
                f"Group {self.member.group.key} has no shard {shown(shard)}: connect one that it "
                "has."
            )
        if lease.state in _NOT_FREE:
            return _NOT_FREE[lease.state]
        owner = lease.consumer_owner if lease.consumer_owner != node else lease.lease_owner
        if owner not in (None, node):
            return f"it is {owner}'s"
        if self.member.group.paused:
            return "the group is paused"
        if not lease.subscribable:
            return "its source lets nobody subscribe to it now"
        others = (row for row in self.member.members if row.name != node)
        rival = next((row.name for row in others if shard in (row.pinned or {})), None)
        return f"{rival} asks for it" if rival is not None else ""
