"""Publishing in memory: the turn, what waits, columns, the default catalog, and the commit."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from typing_extensions import override

from dagster_leasehold.lease_store.identifiers import GroupKey, NodeName, ShardId
from dagster_leasehold.lease_store.memory_store.rows import GroupRows
from dagster_leasehold.lease_store.memory_store.table_changes import MemoryTableChanges
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
    ShardBacklog,
    ShardLag,
    TableColumns,
    TableName,
    TablePointer,
)
from dagster_leasehold.lease_store.roles.publications import (
    BACKLOG_BATCHES,
    LAG_BATCHES,
    SHARDS_PER_LOOK,
    Publications,
)
from dagster_leasehold.lease_store.rules import publishing as rules


class MemoryPublications(MemoryTableChanges, Publications):
    """The verbs of `Publications`."""

    @override
    def take_publish_turn(
        self, key: GroupKey, node: NodeName | None, incarnation: str, table: TableName
    ) -> PublishTurn | TurnTaken | PublishesElsewhere:
        with self._rows("take_publish_turn", key) as rows:
            at = rows.publication.table if rows.publication else None
            if at is not None and at != table:
                return PublishesElsewhere(key, at)
            for other, theirs in self._groups.items():
                if other != key and theirs.publication and theirs.publication.table == table:
                    return PublishesElsewhere(other, table)
            turn = rows.next_turn(rows.publishing, node, incarnation)
            if isinstance(turn, TurnTaken):
                return turn
            rows.publishing = turn
            before = rows.publication or Publication(key)
            rows.publication = replace(before, epoch=turn.epoch, node=node, table=table)
            return PublishTurn(key, node, turn.epoch)

    @override
    def end_publish_turn(self, turn: PublishTurn) -> Settled | TurnOver:
        with self._rows("end_publish_turn", turn.key) as rows:
            publication = _current(rows, turn)
            if publication is None:
                return TurnOver()
            rows.publishing = replace(rows.publishing, of=None)
            rows.publication = replace(publication, node=None)
            return Settled()

    @override
    def publication(self, key: GroupKey) -> Publication | None:
        with self._rows("publication", key) as rows:
            if rows.publication is None:
                return None
            return replace(rows.publication, changes_pending=bool(rows.changes))

    @override
    def unpublished(self, key: GroupKey, *, limit: int = BACKLOG_BATCHES) -> list[ShardBacklog]:
        with self._rows("unpublished", key) as rows:
            places = _waiting(rows, min(limit, SHARDS_PER_LOOK))
            needs = {shard: place.numbers_left for shard, place in places.items()}
            share = rules.shares(needs, limit)
            backlogs: list[ShardBacklog] = []
            for shard, place in sorted(places.items()):
                batches = rows.committed(shard, place.published_until)
                some, more = tuple(batches[: share[shard]]), len(batches) > share[shard]
                cursor, version = place.published_until, place.version
                backlogs.append(ShardBacklog(shard, cursor, version, some, more))
            return backlogs

    @override
    def published_until(
        self, key: GroupKey, shards: Collection[ShardId] | None = None
    ) -> dict[ShardId, int] | None:
        with self._rows("published_until", key) as rows:
            if not rows.publishing.epoch:
                return None
            wanted = rows.shards if shards is None else rows.shards.keys() & set(shards)
            return {shard: rows.published[shard] for shard in sorted(wanted)}

    @override
    def publication_lag(self, key: GroupKey) -> list[ShardLag]:
        with self._rows("publication_lag", key) as rows:
            lags: list[ShardLag] = []
            for shard, place in sorted(_waiting(rows, SHARDS_PER_LOOK).items()):
                batches = rows.committed(shard, place.published_until)[:LAG_BATCHES]
                number = sum(batch.batches for batch in batches)
                records = sum(batch.statistics.written for batch in batches)
                oldest = min(batch.committed_at for batch in batches if batch.committed_at)
                more = len(batches) == LAG_BATCHES
                lags.append(ShardLag(shard, place.published_until, number, records, oldest, more))
            return lags

    @override
    def agree_columns(
        self, key: GroupKey, columns: Sequence[Mapping[str, Any]], *, seen_version: int
    ) -> Changed | Stale:
        with self._rows("agree_columns", key) as rows:
            publication = rows.publication or Publication(key)
            if rows.publication and publication.columns.columns == tuple(columns):
                return Changed()
            if publication.columns.version != seen_version:
                return Stale()
            agreed = TableColumns(seen_version + 1, tuple(columns))
            rows.publication = replace(publication, columns=agreed)
            return Changed()

    @override
    def table_pointer(self, table: TableName) -> TablePointer | None:
        with self._verb("table_pointer"):
            return self._pointers.get(table)

    @override
    def create_table_pointer(
        self, turn: PublishTurn, location: str
    ) -> Settled | TurnOver | PointerMoved:
        with self._rows("create_table_pointer", turn.key) as rows:
            publication = _current(rows, turn)
            if publication is None or publication.table is None:
                return TurnOver()
            new = TablePointer(publication.table, location)
            there = self._pointers.setdefault(publication.table, new).location
            return Settled() if there == location else PointerMoved(there)

    @override
    def record_publication(
        self, turn: PublishTurn, publication: PlannedPublication
    ) -> Settled | TurnOver | Stale:
        with self._rows("record_publication", turn.key) as rows:
            before = _current(rows, turn)
            if before is None:
                return TurnOver()
            if publication == before.pending:
                return Settled()
            if before.pending or not _follows(rows, publication):
                return Stale()
            rows.publication = replace(before, pending=publication)
            return Settled()

    @override
    def drop_publication(
        self, turn: PublishTurn, publication: PlannedPublication
    ) -> Settled | TurnOver:
        with self._rows("drop_publication", turn.key) as rows:
            before = _current(rows, turn)
            if before is None:
                return TurnOver()
            if before.pending == publication:
                starts = {each.shard: each.start for each in publication.ranges}
                for number, change in list(rows.changes.items()):
                    if change.shard in starts and change.first >= starts[change.shard]:
                        del rows.changes[number]
                rows.publication = replace(before, pending=None)
            return Settled()

    @override
    def commit_publication(
        self, turn: PublishTurn, publication: PlannedPublication, pointer: PointerMove | None = None
    ) -> Settled | TurnOver | Stale | PointerMoved:
        with self._rows("commit_publication", turn.key) as rows:
            before = _current(rows, turn)
            if before is None or before.table is None:
                return TurnOver()
            if publication.id == before.last:
                return Settled()
            if pointer is None:
                pending = before.pending == publication
                if not pending or not rules.may_settle(publication, _places(rows)):
                    return Stale()
            elif not _follows(rows, publication):
                return Stale()
            else:
                there = self._pointers.get(before.table)
                if there is None or there.location != pointer.before:
                    return PointerMoved(there.location if there else None)
                moved = TablePointer(before.table, pointer.after, pointer.before)
                self._pointers[before.table] = moved
            for each in publication.ranges:
                rows.published[each.shard] = each.end
            for number in publication.changes:
                rows.changes.pop(number, None)
            rows.publication = replace(
                before,
                number=before.number + 1,
                last=publication.id,
                snapshot=publication.snapshot,
                records=publication.records,
                at=self._clock(),
                pending=None,
            )
            return Settled()


def _current(rows: GroupRows, turn: PublishTurn) -> Publication | None:
    return rows.publication if rows.publishing.is_of(turn.node, turn.epoch) else None


def _places(rows: GroupRows) -> dict[ShardId, rules.ShardPlace]:
    places: dict[ShardId, rules.ShardPlace] = {}
    for shard in rows.shards:
        committed = rows.committed(shard)
        until = committed[-1].last + 1 if committed else 0
        places[shard] = rules.ShardPlace(rows.published[shard], until, rows.versions[shard])
    return places


def _waiting(rows: GroupRows, limit: int) -> dict[ShardId, rules.ShardPlace]:
    """Return the places of the shards that wait for most."""
    places = {shard: place for shard, place in _places(rows).items() if place.numbers_left}
    most = sorted(places, key=lambda shard: (-places[shard].numbers_left, shard))
    return {shard: places[shard] for shard in most[:limit]}


def _follows(rows: GroupRows, publication: PlannedPublication) -> bool:
    """Return True if all is as it was when the publication was planned."""
    changes = [rows.changes.get(number) for number in publication.changes]
    changed = {change.shard for change in changes if change is not None}
    left_out: dict[ShardId, int] = {}
    for number, change in rows.changes.items():
        if number not in publication.changes:
            left_out.setdefault(change.shard, number)
    return (
        None not in changes
        and rules.may_follow(publication, _places(rows))
        and rules.in_turn(publication, changed, left_out)
    )
