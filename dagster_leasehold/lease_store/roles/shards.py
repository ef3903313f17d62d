"""The role for planners and operators: the shard list, claims, transfers, checkpoints."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from dagster_leasehold.lease_store.identifiers import GroupKey, NodeName, ShardId
from dagster_leasehold.lease_store.journal_rows import Gap
from dagster_leasehold.lease_store.outcomes import Changed, ShardsSynced, Stale
from dagster_leasehold.lease_store.rules.reopening import Reopening
from dagster_leasehold.lease_store.shard_rows import ShardListing

Claims = Mapping[ShardId, tuple[NodeName, int]]
"""The node that each shard is for, and the `lease_id` that the shard had when it was chosen."""
Transfers = Mapping[ShardId, tuple[NodeName, int, str]]
"""The node that each shard shall go to, the `lease_id` that it had then, and the reason."""


class Shards(Protocol):
    """The verbs on shards that need no tenure: planners and operators call them."""

    def sync_shards(
        self, key: GroupKey, listing: Sequence[ShardListing], *, observer: str
    ) -> ShardsSynced:
        """Add new shards (edge 1), update lineage and flags; never remove one."""
        ...

    def claim(
        self, key: GroupKey, claims: Claims, *, observer: str, reason: str
    ) -> dict[ShardId, Changed | Stale]:
        """Give each shard to its node (edge 3), if its `lease_id` is still the one given."""
        ...

    def begin_transfer(
        self, key: GroupKey, transfers: Transfers, *, observer: str
    ) -> dict[ShardId, Changed | Stale]:
        """Begin transfers (edge 5); a holder without an open run lets go at once (edge 6)."""
        ...

    def cancel_transfer(
        self, key: GroupKey, shard: ShardId, seen_lease_id: int, *, observer: str, reason: str
    ) -> Changed | Stale:
        """Give a shard back to its holder (edge 6): the next node died or is no longer wanted."""
        ...

    def complete_transfer(
        self, key: GroupKey, shard: ShardId, seen_lease_id: int, *, observer: str, reason: str
    ) -> Changed | Stale:
        """Hand over without the holder, who is idle or late (edge 6); its tenure is fenced."""
        ...

    def free_orphans(self, key: GroupKey, *, observer: str) -> Changed:
        """Free shards whose holder, next node or parents ended unnoticed (edges 2, 4, 6, 9).

        Heals what cannot be reached by the other verbs alone: a shard owned by a node that is
        no member, a waiting shard whose parents are all over.
        """
        ...

    def force_checkpoint(
        self,
        key: GroupKey,
        shard: ShardId,
        cursor: str,
        *,
        observer: str,
        reason: str,
        reopen: Reopening = Reopening.REFUSE,
    ) -> Changed:
        """Set a checkpoint as an operator: a new epoch, journalled, an open intent abandoned.

        Committed batches behind the new checkpoint are withdrawn in the same transaction. A shard
        that was over is reopened; `reopen` says what becomes of those that began after it, if
        they were read already: where they were not, they wait again in an ordered group. One that
        is over at just this cursor stays over: `Changed` names no shard then.

        Raises:
            UnknownShard: the group has no such shard.
            CheckpointRefused: the cursor divides a committed batch, or shards that began after
                this one were read and `reopen` refuses.
        """
        ...

    def bootstrap(
        self,
        key: GroupKey,
        shard: ShardId,
        node: NodeName,
        cursor: str,
        *,
        run: str,
        start: str | None = None,
    ) -> Changed | Stale:
        """Force a shard that `node` holds to its bootstrap cursor, each cursor once.

        `start` is the end of the log where that lies before the cursor: the shard begins there.
        `Stale`: done before, not its own, or open in another run. Raises as `force_checkpoint`."""
        ...

    def skip_record(
        self, key: GroupKey, shard: ShardId, cursor: str | None, *, observer: str
    ) -> Changed | Stale:
        """Have the next run quarantine the record at which a shard is held.

        `Stale` where the shard is not held at this cursor.

        Raises:
            UnknownShard: the group has no such shard.
        """
        ...

    def acknowledge_gap(self, key: GroupKey, gap: Gap, *, observer: str) -> Changed | Stale:
        """Accept the loss of exactly this range; `Stale` where it is not waiting for that.

        Raises:
            UnknownShard: the group has no such shard.
        """
        ...
