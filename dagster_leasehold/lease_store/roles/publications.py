"""The role for publishing: adding committed batches to the group's Iceberg table.

One publisher per group copies the batches from the ledger into the table, in order:

1. Publisher A takes the publish lock, reads the unpublished batches, and stages a snapshot.
2. It is frozen until its node is evicted. B takes the lock with a higher epoch, publishes the same
   batches, and moves the cursors.
3. A wakes up and commits. Its epoch is over, so nothing changes, and its snapshot is unreferenced.
4. If a batch was withdrawn or rewritten after A read it, the version of the shard's ledger has
   changed, and A's commit changes nothing either.

With the default catalog, the table's pointer moves in the same transaction. With another catalog,
the publication is recorded first, as the only pending one:

1. A records publication P, with the id of the snapshot that it must follow.
2. It sends P to the catalog, which accepts it if that is still the newest snapshot. The reply is
   lost, or A dies.
3. The next holder of the lock reads the table. If a table property names P, P is settled. If the
   newest snapshot is still the base of P, the same request is sent again. Otherwise the catalog can
   no longer accept P, and P is dropped.
4. If a batch of P is withdrawn or rewritten in the meantime, that is recorded as a change of the
   table, as if P was published. If P is dropped, so is the change.

Operations that publish lock the group's publication first, then its shards by id. Operations that
withdraw, rewrite or delete batches lock their shard and then read the publication. So one of two
concurrent operations reads the change of the other.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from dagster_leasehold.lease_store.errors import UnknownShard, shown
from dagster_leasehold.lease_store.identifiers import GroupKey, NodeName, ShardId
from dagster_leasehold.lease_store.journal_rows import Note
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
    chunks,
    held_lock,
    next_epoch,
)
from dagster_leasehold.lease_store.rules import publishing as rules
from dagster_leasehold.lease_store.rules import rolling_forward
from dagster_leasehold.lease_store.rules.ledger import next_in_line
from dagster_leasehold.lease_store.rules.lineage import first_seen
from dagster_leasehold.lease_store.rules.withdrawal import NUMBERS_END
from dagster_leasehold.lease_store.shard_rows import ShardLease, ShardListing
from dagster_leasehold.lease_store.stored_rows import Above, Raced, given

BACKLOG_BATCHES = 2_000
CHANGES_PER_PUBLICATION = 200
LAG_BATCHES = 1_000
"""The most unpublished batches of a shard that are counted."""
SHARDS_PER_READ = 10_000
"""The most shards whose unpublished batches are read at once."""
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
        """Take the lock to publish a group's output to a table, as a live node or without a node.

        The lock must be free or held by this node, or its holder's incarnation must be gone. A lock
        without a node is for a single publication, and any process can take it over. A group
        publishes to one table, and a table belongs to one group. Each call increments the epoch,
        which fences an earlier lock of the same node.

        Args:
            node: the node that takes the lock, or None.
            incarnation: the node's incarnation.
            run: the publishing run; empty for a sensor or a command.
            seen_epoch: if given, the call fails unless this is the newest lock's epoch. So of
                several publishing processes of one node, none takes over a newer lock.
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
            after = replace(own or Publication(key), table=table, node=node, epoch=epoch)
            _put(rows, own, replace(after, incarnation=incarnation if node else "", run=run))
            return PublishLock(key, node, epoch)

        # Repeated after a lost reply, it takes the lock again.
        return self._writing("take_publish_lock", key, work)

    def release_publish_lock(self, lock: PublishLock) -> Settled | LockOver:
        """Release the lock."""
        return self._release("release_publish_lock", Publication, lock)

    # -- reading --------------------------------------------------------------------------------

    def publication(self, key: GroupKey) -> Publication | None:
        """Return the state of a group's table, or None, in one statement."""

        def work(rows: Rows) -> Publication | None:
            own = rows.publication()
            if own is None:
                rows.group()
            return own

        return self._reading("publication", key, work)

    def unpublished(self, key: GroupKey, *, limit: int = BACKLOG_BATCHES) -> list[ShardBacklog]:
        """Return unpublished batches by shard.

        `limit` bounds the batches of all shards together. Each shard gets a share, the shards with
        the most batches first.
        """
        places = self._waiting(key, min(limit, SHARDS_PER_READ))
        share = rules.shares({name: each.numbers_left for name, each in places.items()}, limit)
        batches: dict[ShardId, list[Batch]] = {}
        for part in chunks(sorted(places), _SHARDS_PER_STATEMENT):
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
                unchecked_until=places[shard].unchecked_until,
                hold=places[shard].hold,
            )
            for shard, rows in sorted(batches.items())
            if (own := _publishable(rows, places[shard]))
        ]

    def pending_changes(
        self, key: GroupKey, *, after: int = 0, limit: int = CHANGES_PER_PUBLICATION
    ) -> list[TableChange]:
        """Return unpublished changes after the number `after`, in order."""
        own = given(published=False, sequence=Above(after))
        return self._listing(
            "pending_changes", key, lambda rows: rows.select(TableChange, limit=limit, **own)
        )

    def published_until(
        self, key: GroupKey, shards: Collection[ShardId] | None = None
    ) -> dict[ShardId, int] | None:
        """Return the cursors of these shards or of all; None if the group has no table.

        Batches before the cursors can be rewritten, and all batches of a group without a table.
        """

        def work(rows: Rows) -> dict[ShardId, int] | None:
            if not rows.values(Publication, "epoch", epoch=Above(0)):
                rows.group()
                return None
            own = given(shard=None if shards is None else set(shards))
            return dict(rows.values(LedgerCounters, "shard", "published_until", **own))

        return self._reading("published_until", key, work)

    def publication_lag(self, key: GroupKey) -> list[ShardLag]:
        """Return the unpublished output by shard, up to `LAG_BATCHES` batches of each."""
        places = self._waiting(key, SHARDS_PER_READ)
        lags: list[ShardLag] = []
        for part in chunks(sorted(places), _SHARDS_PER_STATEMENT):
            spans = {shard: (places[shard].published_until, LAG_BATCHES) for shard in part}

            def work(rows: Rows, spans: Any = spans) -> Iterator[ShardLag]:
                return rows.lags(spans)

            lags += self._reading("lag", key, work)
        return sorted(lags, key=lambda lag: lag.shard)

    def _waiting(self, key: GroupKey, limit: int) -> dict[ShardId, LedgerCounters]:
        """Return the counters of the shards with the most unpublished batches."""
        waiting = self._reading("unpublished", key, lambda rows: rows.waiting(limit))
        return {each.shard: each for each in waiting}

    # -- columns --------------------------------------------------------------------------------

    def agree_columns(
        self,
        key: GroupKey,
        columns: Sequence[Mapping[str, Any]],
        *,
        seen_version: int,
        observer: str = "",
        reason: str = "",
    ) -> Changed | Stale:
        """Replace the columns of a group's files, if their version is still `seen_version`.

        Args:
            reason: an operator's change for the journal; empty for columns of a run.
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
            rows.journal([Note("columns", reason)] if reason else [], observer)
            return Changed()

        return self._writing("agree_columns", key, work)

    # -- the default catalog --------------------------------------------------------------------

    def table_pointer(self, table: TableName) -> TablePointer | None:
        """Return the pointer of a table in the default catalog, or None."""
        return self._reading("table_pointer", None, lambda rows: rows.pointer(table))

    def create_table_pointer(
        self, lock: PublishLock, location: str
    ) -> Settled | LockOver | PointerMoved:
        """Add the lock's table and its namespace to the default catalog.

        `PointerMoved`: the catalog already has the table.
        """

        def work(rows: Rows) -> Settled | LockOver | PointerMoved:
            own = held_lock(rows, Publication, lock)
            if own is None or own.table is None:
                return rows.abandon(LockOver())
            pointer = rows.pointer(own.table)
            if pointer is None:
                rows.add_pointer(TablePointer(own.table, location))
                return Settled()
            moved = PointerMoved(pointer.location)
            return rows.abandon(Settled() if pointer.location == location else moved)

        return self._writing("create_table_pointer", lock.key, work)

    def rename_table(
        self, lock: PublishLock, table: TableName, location: str | None
    ) -> Settled | LockOver | Stale | PublishesElsewhere | PointerMoved:
        """Let the group publish to its table under another name; repeating that is harmless.

        The default catalog loses the old name. With a `location`, it gets the new name, whose
        pointer names this metadata file. Without one, another catalog has the table.

        `Stale`: a publication is pending. `PublishesElsewhere`: the name belongs to another group.
        `PointerMoved`: the default catalog has another table of that name.
        """

        def work(rows: Rows) -> Settled | LockOver | Stale | PublishesElsewhere | PointerMoved:
            before = held_lock(rows, Publication, lock)
            if before is None or before.table is None:
                return rows.abandon(LockOver())
            for other in rows.publishers(table):
                if other.key != lock.key:
                    return rows.abandon(PublishesElsewhere(other.key, table))
            if before.pending:
                return rows.abandon(Stale())
            pointer = rows.pointer(table)
            if pointer is not None and table != before.table and pointer.location != location:
                return rows.abandon(PointerMoved(pointer.location))
            if pointer is None and location is not None:
                rows.add_pointer(TablePointer(table, location))
            if table != before.table or location is None:
                rows.remove_pointer(before.table)
            rows.write(replace(before, table=table))
            return Settled()

        return self._writing("rename_table", lock.key, work)

    # -- publishing -----------------------------------------------------------------------------

    def record_publication(
        self, lock: PublishLock, publication: PlannedPublication
    ) -> Settled | LockOver | Stale:
        """Record a publication before it is sent to another catalog; repeating that is harmless.

        No other one can be pending, and the conditions of `commit_publication` must hold.
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

        Changes of its batches are dropped too, because the batches are not in the table.
        """

        def work(rows: Rows) -> Settled | LockOver:
            before = held_lock(rows, Publication, lock)
            if before is None:
                return rows.abandon(LockOver())
            if before.pending != publication:
                return rows.abandon(Settled())
            # Under the lock, a withdrawal comes before this, or finds no pending publication.
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
        """Move the cursors, flag the changes and move the pointers of tables, in one transaction.

        `LockOver`: another node has the lock. `Stale`: a cursor or a ledger's version has changed,
        a change was published already, or a pending change has to come first. `PointerMoved`:
        another writer committed to the table first.

        Without a pointer, it settles the pending publication, which another catalog's table has.
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
            elif (table := _unmoved(rows, before.table, pointer)) is not None:
                current = rows.pointer(table)
                return rows.abandon(PointerMoved(current.location if current else None))
            rows.move_cursors({each.shard: each.end for each in publication.ranges})
            numbers = set(publication.changes)
            flagged = {"published": True}
            if numbers and rows.change(TableChange, flagged, sequence=numbers) != len(numbers):
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
        """Replace a shard's last ledger rows by the table's files, and move its checkpoint there.

        Batches that the table lacks are withdrawn. A run that has the shard open is fenced. If an
        unordered group lacks the shard, the shard is added. Nothing is published until the table
        is adopted, because other shards can require the same.

        `LockOver`: another node has the lock. `Stale`: the shard's ledger has changed since the
        comparison, or is ahead of the table.

        Raises:
            UnknownShard: an ordered group lacks the shard, so its parents are unknown.
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
            # The table does not change: it already has these records, in other files.
            withdraw(rows, shard, range(ahead.first, counters.committed_until))
            for batch in rolled.batches:
                rows.add(batch)
            rows.write(rolled.counters(counters))
            rows.write(rolling_forward.unsettled(before, ahead))
            return rows.carry_out([rolled.step], rolling_forward.HOLDER)

        return self._changing("roll_forward", lock.key, work)


def _publishable(batches: list[Batch], place: LedgerCounters) -> list[Batch]:
    hold = place.hold
    return batches if hold is None else [each for each in batches if each.sequence < hold.start]


def _unmoved(rows: Rows, table: TableName, pointer: PointerMove) -> TableName | None:
    """Move the pointers of a table and of its routes; return the first that has moved, or None."""
    if not rows.move_pointer(table, pointer):
        return table
    for each in pointer.routes:
        if each.before is None and rows.pointer(each.table) is None:
            rows.add_pointer(TablePointer(each.table, each.after))
        elif each.before is None or not rows.move_pointer(
            each.table, PointerMove(each.before, each.after)
        ):
            return each.table
    return None


def _put(rows: Rows, before: Publication | None, after: Publication) -> None:
    (rows.add if before is None else rows.write)(after)


def _locked_counters(rows: Rows, publication: PlannedPublication) -> dict[ShardId, LedgerCounters]:
    """Lock the shards of a publication by id, and return their counters."""
    shards = {each.shard for each in publication.ranges}
    return {each.shard: each for each in rows.select(LedgerCounters, shard=shards, lock=True)}


def _follows(rows: Rows, publication: PlannedPublication) -> bool:
    """Return True if nothing has changed since the publication was planned."""
    places = _locked_counters(rows, publication)
    pending = _pending(rows, sequence=set(publication.changes))
    shards = {*pending.values(), *places}
    pending |= _pending(rows, shard=shards)
    return rules.may_follow(publication, places) and rules.in_turn(publication, pending)


def _pending(rows: Rows, **own: Any) -> dict[int, ShardId]:
    return dict(rows.values(TableChange, "sequence", "shard", published=False, **own))


def _added(rows: Rows, ahead: ShardAhead) -> ShardLease:
    if rows.group().ordered:
        raise UnknownShard(
            f"The table has records of shard {shown(ahead.shard)}, which group {rows.key} does "
            "not have. Start the daemon, so that the source lists its shards, and repeat this "
            "command."
        )
    row, note = first_seen(ShardListing(ahead.shard), ordered=False, states={})
    rows.add(row)
    rows.journal([note], rolling_forward.HOLDER)
    return row
