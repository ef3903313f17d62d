"""What every lease store does: one conditional write per verb, with a typed outcome.

Implemented by `lease_store.sql_store` (SQLite, MariaDB, MySQL) and by `lease_store.memory_store`
(the executable specification); one conformance suite runs on all of them.

Every method may raise `StoreUnavailable` (nothing changed), `StoreReadOnly` (nothing changed) or
`OutcomeUnknown` (the reply was lost and a re-read did not settle it), and `UnknownGroup` where
the group does not exist. An outcome is returned, an error is raised: losing a race is an outcome.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from dagster_leasehold.lease_store.draining import Draining
from dagster_leasehold.lease_store.event_windows import WindowStore
from dagster_leasehold.lease_store.history import History
from dagster_leasehold.lease_store.identifiers import GroupKey, NodeName, ShardId, StreamName
from dagster_leasehold.lease_store.outbox import Outbox
from dagster_leasehold.lease_store.records import (
    Batch,
    BatchCommit,
    BatchRewrite,
    Gap,
    Group,
    Intent,
    Node,
    Progress,
    Pulse,
    RewriteClaim,
    RewriteKind,
    ShardListing,
    Snapshot,
    Tenure,
)
from dagster_leasehold.lease_store.retention import Retention
from dagster_leasehold.lease_store.rules.reopening import Reopening


@dataclass(frozen=True, slots=True)
class Registered:
    """The name is ours; `lease_id` is its counter now."""

    lease_id: int


@dataclass(frozen=True, slots=True)
class NameTaken:
    """Another incarnation answers to the name; its counter is what to watch."""

    incarnation: str
    lease_id: int


@dataclass(frozen=True, slots=True)
class Beaten:
    """The beat counted."""

    lease_id: int


@dataclass(frozen=True, slots=True)
class BeatRefused:
    """The name is no longer this incarnation's: it was evicted or taken."""


@dataclass(frozen=True, slots=True)
class Changed:
    """The conditional write took effect for these shards."""

    shards: tuple[ShardId, ...] = ()


@dataclass(frozen=True, slots=True)
class Stale:
    """The condition no longer held; nothing was changed. A normal outcome of a race."""


@dataclass(frozen=True, slots=True)
class ShardsSynced:
    """What a new shard list changed."""

    added: tuple[ShardId, ...] = ()
    changed: tuple[ShardId, ...] = ()


@dataclass(frozen=True, slots=True)
class Opened:
    """A tenure began.

    Attributes:
        check_point: where to resume, or None where nothing is stored.
        next_sequence: the number of the next batch.
        intent: a range that an earlier tenure intended and did not commit: it comes first, with
            the same bounds and the same batch id.
    """

    tenure: Tenure
    check_point: str | None
    next_sequence: int
    intent: Batch | None


@dataclass(frozen=True, slots=True)
class OpenByOther:
    """Another run has the shard open under the same node."""

    run: str


@dataclass(frozen=True, slots=True)
class NotHeld:
    """The node may not consume the shard now."""

    state: str
    consumer_owner: NodeName | None


@dataclass(frozen=True, slots=True)
class RewriteByOther:
    """Another run is replacing output of the shard."""

    claim: RewriteClaim


@dataclass(frozen=True, slots=True)
class TenureView:
    """What a holder sees of its own shard at a batch boundary.

    Attributes:
        current: the tenure still holds.
        transfer_to: the node that waits for the shard, if any.
        paused: the group is paused.
    """

    current: bool
    transfer_to: NodeName | None = None
    paused: bool = False


class LeaseStore(History, Outbox, WindowStore, Retention, Protocol):
    """The lease store of a deployment.

    Attributes:
        statements: how often each kind of statement was sent since the store was opened: `pulse`,
            `beat`, `progress`, `claim` and so on; the model in memory counts its verbs.
    """

    statements: Counter[str]

    def close(self) -> None:
        """Let go of all connections; the store opens new ones when it is used again."""
        ...

    # -- groups ---------------------------------------------------------------------------------

    def create_group(self, group: Group) -> None:
        """Insert a group.

        Raises:
            GroupExists: the stream has a group of this name.
            GroupLimitReached: the stream has as many groups as allowed.
        """
        ...

    def groups(self, stream: StreamName | None = None) -> list[Group]:
        """All groups, or those of one stream, in order of stream and name."""
        ...

    def update_group(self, group: Group, *, observer: str) -> Group:
        """Replace a group's settings and bump its generation; its order takes effect at once.

        Ordered to unordered frees every waiting shard (edge 2); unordered to ordered leaves
        running shards alone.
        """
        ...

    def delete_group(self, key: GroupKey, *, force: bool = False) -> None:
        """Remove a group with all that belongs to it.

        Raises:
            GroupInUse: a node of it is a member and `force` is not given.
        """
        ...

    # -- reading --------------------------------------------------------------------------------

    def pulse(self, key: GroupKey) -> Pulse:
        """The group and its nodes' counters, in one statement."""
        ...

    def snapshot(self, key: GroupKey) -> Snapshot:
        """The group, its nodes and its shards, read in one transaction."""
        ...

    def draining(self, key: GroupKey) -> Draining:
        """What is under way on each shard; once a pause is committed, nothing more can begin.

        All rows are locked for the reading, so that an opening that overtook the pause is seen.
        """
        ...

    def progress(self, key: GroupKey, nodes: Collection[NodeName]) -> dict[ShardId, Progress]:
        """Checkpoint and tenure of every shard that one of `nodes` may consume; one statement."""
        ...

    # -- nodes ----------------------------------------------------------------------------------

    def register(
        self, key: GroupKey, node: Node, *, observer: str, displaced_lease_id: int | None = None
    ) -> Registered | NameTaken:
        """Answer to a node's name under `node.incarnation`.

        Takes effect when nobody answers to the name, when this incarnation already does, or when
        the other's counter is still `displaced_lease_id` (the caller watched it stand still for
        longer than T); displacing releases what the other held.

        Raises:
            AssignmentConflict: the group assigns by modulo, and the node's settings contradict
                those of its members; checked under the same lock, so that of two nodes that join
                at once one is refused.
        """
        ...

    def beat(self, key: GroupKey, node: NodeName, incarnation: str) -> Beaten | BeatRefused:
        """Add 1 to the node's counter, if this incarnation still answers to the name."""
        ...

    def leave(self, key: GroupKey, node: NodeName, incarnation: str) -> Changed | Stale:
        """Release all that the node holds and stop answering to its name, in one transaction."""
        ...

    def evict(
        self, key: GroupKey, node: NodeName, seen_lease_id: int, *, observer: str, reason: str
    ) -> Changed | Stale:
        """Release all that a dead node holds (edges 4, 6 and 9), if its counter has not moved."""
        ...

    # -- shards ---------------------------------------------------------------------------------

    def sync_shards(
        self, key: GroupKey, listing: Sequence[ShardListing], *, observer: str
    ) -> ShardsSynced:
        """Add shards that are new (edge 1), update lineage and flags; never removes one."""
        ...

    def claim(
        self,
        key: GroupKey,
        claims: Mapping[ShardId, tuple[NodeName, int]],
        *,
        observer: str,
        reason: str,
    ) -> dict[ShardId, Changed | Stale]:
        """Edge 3 for each shard whose `lease_id` is still the one given with its node."""
        ...

    def begin_transfer(
        self,
        key: GroupKey,
        shard: ShardId,
        seen_lease_id: int,
        to: NodeName,
        *,
        observer: str,
        reason: str,
    ) -> Changed | Stale:
        """Edge 5; a holder without an open run lets go in the same transaction (edge 6)."""
        ...

    def cancel_transfer(
        self, key: GroupKey, shard: ShardId, seen_lease_id: int, *, observer: str, reason: str
    ) -> Changed | Stale:
        """Edge 6, back to the holder: the next node died or is no longer wanted."""
        ...

    def complete_transfer(
        self, key: GroupKey, shard: ShardId, seen_lease_id: int, *, observer: str, reason: str
    ) -> Changed | Stale:
        """Edge 6 without the holder: it is idle, or its deadline has passed; fences its tenure."""
        ...

    def free_orphans(self, key: GroupKey, *, observer: str) -> Changed:
        """Edges 2, 4, 6 and 9 for shards whose holder, next or parents ended unnoticed.

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
        self, key: GroupKey, shard: ShardId, node: NodeName, cursor: str, *, run: str
    ) -> Changed | Stale:
        """Force a shard that `node` holds to its bootstrap cursor, each cursor once.

        `Stale`: done before, not its own, or open in another run. Raises as `force_checkpoint`."""
        ...

    # -- tenures --------------------------------------------------------------------------------

    def open_tenure(
        self,
        key: GroupKey,
        shard: ShardId,
        node: NodeName,
        run: str,
        *,
        replaces: str | None = None,
    ) -> Opened | OpenByOther | NotHeld:
        """Begin a tenure: epoch + 1, `consumer_run` := run, in one compare-and-set.

        `replaces` names a run that the caller knows to have ended; its tenure is closed.
        """
        ...

    def review(self, tenures: Sequence[Tenure]) -> dict[ShardId, TenureView]:
        """What holders look at before each batch, in one statement; all of one group."""
        ...

    def announce(self, tenure: Tenure, *, handoff_eta_s: float) -> None:
        """Publish how long the holder needs to its next batch boundary.

        Raises:
            LeaseLost: the tenure is over.
        """
        ...

    def close_tenure(self, tenure: Tenure, *, reason: str) -> None:
        """End a tenure; a shard in transfer goes to the next node at once (edge 6).

        Raises:
            LeaseLost: the tenure is over.
        """
        ...

    def save_checkpoint(self, tenure: Tenure, cursor: str) -> None:
        """Persist a checkpoint without a batch, for clients that keep no ledger.

        Raises:
            CheckpointRefused: it is known to lie before the one that is stored.
            LeaseLost: the tenure is over.
        """
        ...

    # -- batches --------------------------------------------------------------------------------

    def record_intents(self, intents: Sequence[Intent]) -> dict[ShardId, Changed | Stale]:
        """Record the ranges about to be consumed; an equal intent of an earlier tenure is adopted.

        `Stale` for a shard means that its tenure is over.
        """
        ...

    def commit(self, commits: Sequence[BatchCommit]) -> dict[ShardId, Changed | Stale]:
        """Make batches visible: tenure check, ledger, checkpoint, state, journal, outbox.

        One transaction; a shard whose tenure is over is left out (`Stale`), the others commit.
        `Changed.shards` names the shards that this commit let start (edge 2). Repeating a commit
        that already happened under the same tenure and attempt is `Changed` again.
        """
        ...

    def finish_empty(self, tenure: Tenure, cursor: str) -> Changed | Stale:
        """Edge 8 for a read-only shard that has nothing left to read at `cursor`."""
        ...

    # -- rewriting ------------------------------------------------------------------------------

    def claim_rewrite(
        self,
        key: GroupKey,
        shard: ShardId,
        run: str,
        kind: RewriteKind,
        *,
        replaces: str | None = None,
    ) -> Changed | RewriteByOther:
        """Reserve the shard's committed output for one rewriting run, beside its consumption.

        `replaces` names a run that the caller knows to have ended; its claim is over then.

        Raises:
            UnknownShard: the group has no such shard.
        """
        ...

    def release_rewrite(self, key: GroupKey, shard: ShardId, run: str) -> Changed | Stale:
        """Give the claim of `run` back; `Stale` where it is over already."""
        ...

    def rewrites(self, key: GroupKey) -> list[RewriteClaim]:
        """All claims that were not given back, by shard."""
        ...

    def rewrite_batches(
        self,
        key: GroupKey,
        shard: ShardId,
        run: str,
        rewrites: Sequence[BatchRewrite],
        *,
        reason: str,
    ) -> Changed | Stale:
        """Swap the output of committed batches: all of them in one transaction, or none.

        `Stale` where `run` does not hold the claim any more, or a batch has another generation.
        """
        ...

    # -- gaps -----------------------------------------------------------------------------------

    def record_gap(
        self, tenure: Tenure, *, start: str, end: str, reason: str, skip: bool = True
    ) -> None:
        """Record records that cannot be consumed, and with `skip` move the checkpoint past them.

        Without `skip` nothing moves: the shard holds at `start` until the gap is acknowledged.
        A range that already holds there grows to the new end.

        Raises:
            LeaseLost: the tenure is over.
            CheckpointRefused: the gap does not begin at the checkpoint.
        """
        ...

    def acknowledge_gap(self, key: GroupKey, gap: Gap, *, observer: str) -> Changed | Stale:
        """Accept the loss of exactly this range; `Stale` where it is not waiting for that.

        Raises:
            UnknownShard: the group has no such shard.
        """
        ...
