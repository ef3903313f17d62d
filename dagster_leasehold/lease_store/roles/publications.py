"""The role for publishing: committed batches on their way into the group's Iceberg table.

The ledger names the committed files; people read the table. One publisher per group moves
batches from the one into the other, in order:

1. Publisher A takes the lock, reads the batches behind the cursors, and stages a snapshot.
2. It is frozen until its node is evicted. B takes the lock with a higher epoch, publishes the same
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
3. The next holder of the lock reads the table. If its mark names P, P is settled. If the newest
   snapshot is still the base of P, the same request is sent again. Otherwise the catalog cannot
   take P any more, and P is dropped.
4. What happens to batches of P meanwhile becomes a change of the table, as if it were published. If
   P is dropped, the change is dropped with it.

A group whose output was never published has no changes, and all of it can be rewritten.

All operations that publish lock the group's publication first, then its shards by id.
An operation that withdraws, rewrites or deletes batches locks their shard and then reads the
publication, so that one of the two sees the other one's change.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from dagster_leasehold.lease_store.identifiers import GroupKey, NodeName, ShardId
from dagster_leasehold.lease_store.ledger_rows import Batch, LedgerCounters
from dagster_leasehold.lease_store.outcomes import (
    Changed,
    LockOver,
    LockTaken,
    PointerMoved,
    PublishesElsewhere,
    Settled,
    Stale,
)
from dagster_leasehold.lease_store.publication_rows import (
    PlannedPublication,
    PointerMove,
    Publication,
    PublishLock,
    ShardAhead,
    ShardBacklog,
    ShardLag,
    TableChange,
    TableColumns,
    TableName,
    TablePointer,
)
from dagster_leasehold.lease_store.roles.forced_checkpoints import withdraw
from dagster_leasehold.lease_store.roles.operations import (
    Locks,
    Rows,
    abandon_intent,
    held_lock,
    next_epoch,
)
from dagster_leasehold.lease_store.rules import publishing as rules
from dagster_leasehold.lease_store.rules import rolling_forward
from dagster_leasehold.lease_store.rules.ledger import next_in_line
from dagster_leasehold.lease_store.rules.lineage import first_seen
from dagster_leasehold.lease_store.rules.refusals import shard_never_listed
from dagster_leasehold.lease_store.rules.withdrawal import NUMBERS_END
from dagster_leasehold.lease_store.shard_rows import ShardLease, ShardListing
from dagster_leasehold.lease_store.stored_rows import Above, Raced, given, portions

BACKLOG_BATCHES = 2_000
CHANGES_PER_PUBLICATION = 200
LAG_BATCHES = 1_000
"""The most batches of a shard that are counted to tell how much waits for publication."""
SHARDS_PER_LOOK = 10_000
"""The most shards that one look at what waits for publication concerns."""
_SHARDS_PER_STATEMENT = 100


class Publications(Locks):
    """The operations on publishing committed output."""

    # -- the lock -------------------------------------------------------------------------------

    def take_publish_lock(
        self,
        key: GroupKey,
        node: NodeName | None,
        incarnation: str,
        table: TableName,
        *,
        run: str = "",
        seen_epoch: int | None = None,
    ) -> PublishLock | LockTaken | PublishesElsewhere:
        """Take the lock to publish a group's output to a table, as a live node or as no node.

        A lock of no node is for a single publication: any process can take the next one at any
        time.

        Condition: the lock is free, or is this node's, or its node no longer lives under
        the incarnation that took it; and the group has published to no other table, nor another
        group to this one. The epoch rises each time, so that taking it again fences an earlier
        lock of the same node. A node may have several processes that publish: each names the epoch
        that it saw, and takes nothing that another one has taken since.

        Args:
            key: of the group.
            node: takes the lock; None for no node.
            incarnation: the node's.
            table: the group's.
            run: the publishing run; empty for a sensor or a command.
            seen_epoch: of the last lock, as the caller knows it; None accepts any.
        """

        def work(rows: Rows) -> PublishLock | LockTaken | PublishesElsewhere:
            rows.group(lock=True)
            own = rows.first(Publication, lock=True)
            if own is not None and own.table not in (None, table):
                return rows.abandon(PublishesElsewhere(key, own.table))
            for other in rows.publishers(table):
                if other.key != key:
                    return rows.abandon(PublishesElsewhere(other.key, table))
            epoch = next_epoch(rows, own, node, incarnation)
            if isinstance(epoch, LockTaken):
                return rows.abandon(epoch)
            if seen_epoch not in (None, epoch - 1):
                return rows.abandon(LockTaken(own.node if own else None))
            taken = replace(own or Publication(key), table=table, node=node, epoch=epoch)
            _put(rows, own, replace(taken, incarnation=incarnation if node else "", run=run))
            return PublishLock(key, node, epoch)

        # After a lost reply the lock is taken again.
        return self._writing("take_publish_lock", key, work)

    def release_publish_lock(self, lock: PublishLock) -> Settled | LockOver:
        """Release the lock."""
        return self._release("release_publish_lock", Publication, lock)

    # -- reading --------------------------------------------------------------------------------

    def publication(self, key: GroupKey) -> Publication | None:
        """Return the state of a group's table, or None where it has none; one statement."""

        def work(rows: Rows) -> Publication | None:
            own = rows.publication()
            if own is None:
                rows.group()
            return own

        return self._reading("publication", key, work)

    def unpublished(self, key: GroupKey, *, limit: int = BACKLOG_BATCHES) -> list[ShardBacklog]:
        """Return committed batches from the cursors on, by shard that has any.

        One statement where there is nothing. `limit` bounds the batches of all shards together;
        under it each shard has its share, and the shards that wait for most come first.
        """
        places = self._waiting(key, min(limit, SHARDS_PER_LOOK))
        share = rules.shares({name: each.numbers_left for name, each in places.items()}, limit)
        batches: dict[ShardId, list[Batch]] = {}
        for part in portions(places, _SHARDS_PER_STATEMENT):
            spans = {shard: (places[shard].published_until, share[shard] + 1) for shard in part}

            def work(rows: Rows, spans: Any = spans) -> Iterator[Batch]:
                return rows.committed_from(spans)

            for batch in self._reading("unpublished", key, work):
                batches.setdefault(batch.shard, []).append(batch)
        return [
            ShardBacklog(
                shard,
                places[shard].published_until,
                places[shard].version,
                tuple(own[: share[shard]]),
                more=len(own) > share[shard],
            )
            for shard, own in sorted(batches.items())
        ]

    def pending_changes(
        self, key: GroupKey, *, after: int = 0, limit: int = CHANGES_PER_PUBLICATION
    ) -> list[TableChange]:
        """Return changes that are not published, in order, behind the number `after`."""
        own = given(published=False, sequence=Above(after))
        return self._listing(
            "pending_changes", key, lambda rows: rows.select(TableChange, limit=limit, **own)
        )

    def published_until(
        self, key: GroupKey, shards: Collection[ShardId] | None = None
    ) -> dict[ShardId, int] | None:
        """Return the cursors of these shards or of all; None if it is not published.

        All output can be rewritten then, and batches before the cursors otherwise. A shard that
        the group has not is left out.
        """

        def work(rows: Rows) -> dict[ShardId, int] | None:
            if not rows.values(Publication, "epoch", epoch=Above(0)):
                rows.group()
                return None
            own = given(shard=None if shards is None else set(shards))
            return dict(rows.values(LedgerCounters, "shard", "published_until", **own))

        return self._reading("published_until", key, work)

    def publication_lag(self, key: GroupKey) -> list[ShardLag]:
        """Return what waits for publication, by shard, of those with something that waits.

        Of each shard a bounded number of batches is counted.
        """
        places = self._waiting(key, SHARDS_PER_LOOK)
        lags: list[ShardLag] = []
        for part in portions(places, _SHARDS_PER_STATEMENT):
            spans = {shard: (places[shard].published_until, LAG_BATCHES) for shard in part}

            def work(rows: Rows, spans: Any = spans) -> Iterator[ShardLag]:
                return rows.lags(spans)

            lags += self._reading("lag", key, work)
        return sorted(lags, key=lambda lag: lag.shard)

    def _waiting(self, key: GroupKey, limit: int) -> dict[ShardId, LedgerCounters]:
        """Return the counts of the shards that wait for most; one statement."""
        waiting = self._reading("unpublished", key, lambda rows: rows.waiting(limit))
        return {each.shard: each for each in waiting}

    # -- columns --------------------------------------------------------------------------------

    def agree_columns(
        self, key: GroupKey, columns: Sequence[Mapping[str, Any]], *, seen_version: int
    ) -> Changed | Stale:
        """Replace the columns that a group's files may have.

        Condition: they have still the version that was seen; 0 where there were none.
        """
        new_columns = tuple(dict(column) for column in columns)

        def work(rows: Rows) -> Changed | Stale:
            rows.group()
            own = rows.first(Publication, lock=True)
            before = own or Publication(key)
            if own is not None and before.columns.columns == new_columns:
                return rows.abandon(Changed())
            if before.columns.version != seen_version:
                return rows.abandon(Stale())
            _put(rows, own, replace(before, columns=TableColumns(seen_version + 1, new_columns)))
            return Changed()

        return self._writing("agree_columns", key, work)

    # -- the default catalog --------------------------------------------------------------------

    def table_pointer(self, table: TableName) -> TablePointer | None:
        """Return the pointer of a table of the default catalog, or None where it has no such."""
        return self._reading("table_pointer", None, lambda rows: rows.pointer(table))

    def create_table_pointer(
        self, lock: PublishLock, location: str
    ) -> Settled | LockOver | PointerMoved:
        """Enter the lock's table into the default catalog, with its first metadata file.

        Its namespace is entered with it. `PointerMoved` where the table is there already.
        """

        def work(rows: Rows) -> Settled | LockOver | PointerMoved:
            own = held_lock(rows, Publication, lock)
            if own is None or own.table is None:
                return rows.abandon(LockOver())
            there = rows.pointer(own.table)
            if there is None:
                rows.add_pointer(TablePointer(own.table, location))
                return Settled()
            moved = PointerMoved(there.location)
            return rows.abandon(Settled() if there.location == location else moved)

        return self._writing("create_table_pointer", lock.key, work)

    # -- publishing -----------------------------------------------------------------------------

    def record_publication(
        self, lock: PublishLock, publication: PlannedPublication
    ) -> Settled | LockOver | Stale:
        """Record the publication that is sent to another catalog.

        Condition: as for `commit_publication`, and no other one is pending. Recording the same one
        again is harmless.
        """

        def work(rows: Rows) -> Settled | LockOver | Stale:
            before = held_lock(rows, Publication, lock)
            if before is None:
                return rows.abandon(LockOver())
            if publication == before.pending:
                return rows.abandon(Settled())
            if before.pending or not _follows(rows, publication):
                return rows.abandon(Stale())
            rows.write(replace(before, pending=publication))
            return Settled()

        return self._writing("record_publication", lock.key, work)

    def drop_publication(
        self, lock: PublishLock, publication: PlannedPublication
    ) -> Settled | LockOver:
        """Drop the pending publication, which its catalog can no longer accept.

        Changes of its batches are dropped with it: those batches are not in the table. A
        publication that is not pending is left as it is.
        """

        def work(rows: Rows) -> Settled | LockOver:
            before = held_lock(rows, Publication, lock)
            if before is None:
                return rows.abandon(LockOver())
            if before.pending != publication:
                return rows.abandon(Settled())
            # Their rows are locked: a withdrawal is before this, or sees that nothing is pending.
            _locked_counters(rows, publication)
            for each in publication.ranges:
                own = given(shard=each.shard, first=range(each.start, NUMBERS_END))
                rows.change(TableChange, {"published": True}, published=False, **own)
            rows.write(replace(before, pending=None))
            return Settled()

        return self._writing("drop_publication", lock.key, work)

    def commit_publication(
        self, lock: PublishLock, publication: PlannedPublication, pointer: PointerMove | None = None
    ) -> Settled | LockOver | Stale | PointerMoved:
        """Move cursors and flag changes, and the table's pointer with them: all of it, or nothing.

        `LockOver`: the lock has passed to another. `Stale`: a cursor or the version of a shard's
        ledger has moved since it was read, or a change has been published already, or one of a
        shard of the publication is pending that belongs before or into it. `PointerMoved`:
        another writer has committed to the table.

        Without a pointer, the publication is the pending one, and was found in the table of another
        catalog; versions are not compared then.
        """

        def work(rows: Rows) -> Settled | LockOver | Stale | PointerMoved:
            before = held_lock(rows, Publication, lock)
            if before is None or before.table is None:
                return rows.abandon(LockOver())
            if publication.id == before.last:
                return rows.abandon(Settled())
            if pointer is None:
                places = _locked_counters(rows, publication)
                pending = before.pending == publication
                if not pending or not rules.may_settle(publication, places):
                    return rows.abandon(Stale())
            elif not _follows(rows, publication):
                return rows.abandon(Stale())
            elif not rows.move_pointer(before.table, pointer):
                there = rows.pointer(before.table)
                return rows.abandon(PointerMoved(there.location if there else None))
            rows.move_cursors({each.shard: each.end for each in publication.ranges})
            carried = set(publication.changes)
            flagged = {"published": True}
            if carried and rows.change(TableChange, flagged, sequence=carried) != len(carried):
                raise Raced
            after = replace(
                before,
                number=before.number + 1,
                last=publication.id,
                snapshot=publication.snapshot,
                records=publication.records,
                at=self._clock(),
                pending=None,
            )
            rows.write(after)
            return Settled()

        def mark(rows: Rows) -> bool:
            own = rows.first(Publication, lock=True)
            return own is not None and publication.id == own.last

        return self._writing("commit_publication", lock.key, work, mark=mark)

    # -- after a backup was restored --------------------------------------------------------------

    def roll_forward(self, lock: PublishLock, ahead: ShardAhead) -> Changed | LockOver | Stale:
        """Have a shard's ledger name the table's files of it, and move its checkpoint there.

        Batches that the table does not have are withdrawn, and the table is not changed by that. A
        run that has the shard open is fenced. A shard that an unordered group does not have is
        added to it. The group's newest publication is unknown afterwards, so that nothing is
        published until its table is adopted: other shards may have to follow.

        `LockOver`: the lock has passed to another. `Stale`: the shard's ledger has changed since it
        was compared with the table, or is ahead of it.

        Raises:
            UnknownShard: an ordered group does not have the shard, and so not its parents.
        """
        shard = ahead.shard

        def work(rows: Rows) -> Changed | LockOver | Stale:
            before = held_lock(rows, Publication, lock)
            if before is None:
                return rows.abandon(LockOver())
            row = rows.shards([shard], lock=True).get(shard) or _added(rows, ahead)
            (counters,) = rows.select(LedgerCounters, shard=shard)
            if not rolling_forward.may_roll_forward(row, counters.version, ahead):
                return rows.abandon(Stale())
            next_number, intent = next_in_line(rows.newest([shard]).get(shard))
            if intent is not None:
                abandon_intent(rows, shard)
                next_number += 1
            rolled = rolling_forward.roll_forward(
                row, ahead, rows.members(), next_number=next_number, at=self._clock()
            )
            # The table follows no change here: it has what it should have, in other files.
            withdraw(rows, shard, range(ahead.first, counters.committed_until))
            for batch in rolled.batches:
                rows.add(batch)
            rows.write(rolled.counters(counters))
            rows.write(rolling_forward.unsettled(before, ahead))
            return rows.carry_out([rolled.step], rolling_forward.HOLDER)

        return self._changing("roll_forward", lock.key, work)


def _put(rows: Rows, before: Publication | None, after: Publication) -> None:
    (rows.add if before is None else rows.write)(after)


def _locked_counters(rows: Rows, publication: PlannedPublication) -> dict[ShardId, LedgerCounters]:
    """Lock the shards of a publication by id, and return their counts."""
    return {
        each.shard: each
        for part in portions(each.shard for each in publication.ranges)
        for each in rows.select(LedgerCounters, shard=set(part), lock=True)
    }


def _follows(rows: Rows, publication: PlannedPublication) -> bool:
    """Return True if all is as it was when the publication was planned."""
    places = _locked_counters(rows, publication)
    pending = _pending(rows, sequence=set(publication.changes))
    shards = {*pending.values(), *places}
    pending |= _pending(rows, shard=shards)
    return rules.may_follow(publication, places) and rules.in_turn(publication, pending)


def _pending(rows: Rows, **own: Any) -> dict[int, ShardId]:
    return dict(rows.values(TableChange, "sequence", "shard", published=False, **own))


def _added(rows: Rows, ahead: ShardAhead) -> ShardLease:
    """Add a shard that the group does not have."""
    if rows.group().ordered:
        raise shard_never_listed(rows.key, ahead.shard)
    row, note = first_seen(ShardListing(ahead.shard), ordered=False, states={})
    rows.add(row)
    rows.journal([note], rolling_forward.HOLDER)
    return row
