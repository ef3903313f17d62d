"""Asking for shards by name, in a group with pinned assignment.

Each change of a node's requests is written and journalled, so a shard that cannot be had is
refused by looking, and what looked free and was not is asked for again after a growing pause.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace

from dagster_leasehold.lease_store.client.group_member import GroupMember
from dagster_leasehold.lease_store.errors import ShardOccupied, UnknownShard, shown
from dagster_leasehold.lease_store.identifiers import ShardId
from dagster_leasehold.lease_store.rules.assignment_plan import UNSUBSCRIBABLE
from dagster_leasehold.lease_store.rules.failing_steps import retry_wait_s
from dagster_leasehold.lease_store.rules.liveness import Clock
from dagster_leasehold.lease_store.rules.states import ShardState
from dagster_leasehold.lease_store.shard_rows import ShardLease

PAUSE_MAX_S = 60.0
REFUSED_BEFORE = "it was refused a moment ago"


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
            self._offer((self.member.settings.pinned or {}) | {shard: bootstrap})
            try:
                self.beat()
            except BaseException:
                self.withdraw(shard)
                raise
            if shard in self.confirmed():
                self._refusals.pop(shard, None)
                return
            why = self._obstacle(shard) or REFUSED_BEFORE
            self.withdraw(shard)
            self.beat()
        if asks or not early:
            self._refusals[shard] = self._refused(refusal, asked=asks)
        raise ShardOccupied(
            f"Shard {shown(shard)} of group {self.member.group.key} cannot be connected on node "
            f"{self.member.node}: {why}."
        )

    def withdraw(self, shard: ShardId) -> None:
        """Stop asking for a shard; the next heartbeat says so to the group."""
        pinned = self.member.settings.pinned or {}
        self._offer({each: start for each, start in pinned.items() if each != shard})

    def _offer(self, pinned: dict[ShardId, str | None]) -> None:
        self.member.offer(replace(self.member.settings, pinned=pinned))

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
        lease = self.member.lease(shard)
        if lease is None:
            raise UnknownShard(
                f"Group {self.member.group.key} has no shard {shown(shard)}: connect one that it "
                "has."
            )
        return self._unreadable(lease) or self._rivalry(lease)

    def _unreadable(self, lease: ShardLease) -> str:
        if lease.state is ShardState.WAIT:
            return self.member.why_waiting(lease)
        if lease.state is ShardState.OVER:
            return "it is over"
        if self.member.group.paused:
            return "the group is paused"
        return "" if lease.subscribable else UNSUBSCRIBABLE

    def _rivalry(self, lease: ShardLease) -> str:
        """Return which other node has the shard: one that asks for it, or hands it over now.

        A node that has it and does not ask for it gives it to this one, by the plan.
        """
        node, holder = self.member.node, lease.consumer_owner
        asking = [
            row.name
            for row in self.member.members
            if row.name != node and lease.shard in (row.pinned or {})
        ]
        for owner in (holder, lease.lease_owner):
            if owner in asking:
                return f"it is {owner}'s"
        if asking:
            return f"{asking[0]} asks for it"
        if lease.state is ShardState.TRANSFER and holder != node:
            return f"{holder} hands it over once its batch is done"
        return ""
