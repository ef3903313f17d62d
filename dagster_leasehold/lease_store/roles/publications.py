"""The role for publishing: committed batches on their way into the group's Iceberg table.

The ledger says what is committed; the table is what people read. One publisher per group moves
batches from the one into the other, in order:

1. Publisher A takes the turn, reads the batches behind the cursors, and stages a snapshot.
2. It is frozen until its node is evicted. B takes the turn with a higher epoch, publishes the same
   batches, and moves the cursors.
3. A wakes up and commits: its epoch is over, so that nothing changes; what it staged is named by
   nothing.
4. Had a batch been withdrawn or given other files after A read it, the version of the shard's
   ledger would have moved, and nothing would change either.

With the default catalog, the table's pointer moves in the same transaction. With any other one the
publication is recorded before, as the only pending one, and the table's mark shows if it arrived:

1. A records publication P, with the id of the snapshot that it must follow.
2. It sends P to the catalog, which takes it if that is still the newest snapshot; the reply is
   lost, or A dies.
3. The next holder of the turn reads the table. If its mark names P, P is settled. If the newest
   snapshot is still the base of P, the same request is sent again. Otherwise the catalog cannot
   take P any more, and P is dropped.
4. What happens to batches of P meanwhile becomes a change of the table, as if it were published. If
   P is dropped, the change is dropped with it.

A group whose output nobody has ever published has no changes, and all of it may be rewritten.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Protocol

from dagster_leasehold.lease_store.identifiers import GroupKey, NodeName, ShardId
from dagster_leasehold.lease_store.outcomes import (
    Changed,
    PointerMoved,
    PublishesElsewhere,
    Settled,
    Stale,
    TurnOver,
    TurnTaken,
)
from dagster_leasehold.lease_store.publication_rows import (
    PlannedPublication,
    PointerMove,
    Publication,
    PublishTurn,
    ShardAhead,
    ShardBacklog,
    ShardLag,
    TableChange,
    TableName,
    TablePointer,
)

BACKLOG_BATCHES = 2_000
CHANGES_PER_PUBLICATION = 200
LAG_BATCHES = 1_000
"""The most batches of a shard that are counted to tell how much waits for publication."""
SHARDS_PER_LOOK = 10_000
"""The most shards that one look at what waits for publication concerns."""


class Publications(Protocol):
    """The verbs on publishing committed output."""

    # -- the turn -------------------------------------------------------------------------------

    def take_publish_turn(
        self, key: GroupKey, node: NodeName | None, incarnation: str, table: TableName
    ) -> PublishTurn | TurnTaken | PublishesElsewhere:
        """Take the turn to publish a group's output to a table, as a live node or as no node.

        A turn of no node is for whoever publishes once: anybody may take the next one at any time.

        Condition: the turn is free, or is this node's, or its node is not alive any more under
        the incarnation that took it; and the group has published to no other table, nor another
        group to this one. The epoch rises each time, so that taking it again fences an earlier
        turn of the same node.
        """
        ...

    def end_publish_turn(self, turn: PublishTurn) -> Settled | TurnOver:
        """Give the turn back, for whoever comes next."""
        ...

    # -- reading --------------------------------------------------------------------------------

    def publication(self, key: GroupKey) -> Publication | None:
        """Return the state of a group's table, or None where it has none; one statement."""
        ...

    def unpublished(self, key: GroupKey, *, limit: int = BACKLOG_BATCHES) -> list[ShardBacklog]:
        """Return committed batches from the cursors on, by shard, of those that have any.

        One statement where there is nothing. `limit` bounds the batches of all shards together;
        under it each shard has its share, and those that wait for most come first.
        """
        ...

    def pending_changes(
        self, key: GroupKey, *, after: int = 0, limit: int = CHANGES_PER_PUBLICATION
    ) -> list[TableChange]:
        """Return changes that are not published, in order, behind the number `after`."""
        ...

    def published_until(
        self, key: GroupKey, shards: Collection[ShardId] | None = None
    ) -> dict[ShardId, int] | None:
        """Return the cursors of these shards or of all; None where nobody publishes.

        All output may be rewritten then, and batches before the cursors otherwise. A shard that
        the group has not is left out.
        """
        ...

    def publication_lag(self, key: GroupKey) -> list[ShardLag]:
        """Return what waits for publication, by shard, of those with something that waits.

        Of each shard a bounded number of batches is counted.
        """
        ...

    # -- columns --------------------------------------------------------------------------------

    def agree_columns(
        self, key: GroupKey, columns: Sequence[Mapping[str, Any]], *, seen_version: int
    ) -> Changed | Stale:
        """Replace the columns that a group's files may have.

        Condition: they have still the version that was seen; 0 where there were none.
        """
        ...

    # -- the default catalog --------------------------------------------------------------------

    def table_pointer(self, table: TableName) -> TablePointer | None:
        """Return the pointer of a table of the default catalog, or None where it has no such."""
        ...

    def create_table_pointer(
        self, turn: PublishTurn, location: str
    ) -> Settled | TurnOver | PointerMoved:
        """Enter the turn's table into the default catalog, with its first metadata file.

        Its namespace is entered with it. `PointerMoved` where the table is there already.
        """
        ...

    # -- publishing -----------------------------------------------------------------------------

    def record_publication(
        self, turn: PublishTurn, publication: PlannedPublication
    ) -> Settled | TurnOver | Stale:
        """Record the publication that is sent to another catalog.

        Condition: as for `commit_publication`, and no other one is pending. Recording the same one
        again is harmless.
        """
        ...

    def drop_publication(
        self, turn: PublishTurn, publication: PlannedPublication
    ) -> Settled | TurnOver:
        """Drop the pending publication, which its catalog cannot take any more.

        Changes of its batches are dropped with it: those batches are not in the table. A
        publication that is not pending is left as it is.
        """
        ...

    def commit_publication(
        self, turn: PublishTurn, publication: PlannedPublication, pointer: PointerMove | None = None
    ) -> Settled | TurnOver | Stale | PointerMoved:
        """Move cursors and flag changes, and the table's pointer with them: all of it, or nothing.

        `TurnOver`: the turn has passed to another. `Stale`: a cursor or the version of a shard's
        ledger has moved since it was read, or a change has been published already, or one of a
        shard of the publication is pending that belongs before or into it. `PointerMoved`:
        somebody else has committed to the table.

        Without a pointer, the publication is the pending one, and was found in the table of another
        catalog; versions are not compared then.
        """
        ...

    # -- after a backup was restored --------------------------------------------------------------

    def roll_forward(self, turn: PublishTurn, ahead: ShardAhead) -> Changed | TurnOver | Stale:
        """Have a shard's ledger say what the table has of it, and move its checkpoint there.

        Batches that the table does not have are withdrawn, and the table is not changed by that. A
        run that has the shard open is fenced. A shard that an unordered group does not have is
        added to it. The group's newest publication is unknown afterwards, so that nothing is
        published until its table is adopted: other shards may have to follow.

        `TurnOver`: the turn has passed to another. `Stale`: the shard's ledger has changed since it
        was compared with the table, or is ahead of it.

        Raises:
            UnknownShard: an ordered group does not have the shard, and so not what it comes from.
        """
        ...
