"""Publishing in SQL: the verbs that record, drop and commit a publication.

All lock the group's publication first, then its shards by id. Whatever withdraws, rewrites or
deletes batches locks their shard and then reads the publication, so that one of the two sees what
the other one did.
"""

from __future__ import annotations

from collections.abc import Mapping

from typing_extensions import override

from dagster_leasehold.lease_store.identifiers import GroupKey, ShardId
from dagster_leasehold.lease_store.outcomes import PointerMoved, Settled, Stale, TurnOver
from dagster_leasehold.lease_store.publication_rows import (
    PlannedPublication,
    PointerMove,
    Publication,
    PublishTurn,
)
from dagster_leasehold.lease_store.rules import publishing as rules
from dagster_leasehold.lease_store.sql_store import publication_statements as statements
from dagster_leasehold.lease_store.sql_store.publication_mapping import place_from, planned_values
from dagster_leasehold.lease_store.sql_store.publications import SqlPublications
from dagster_leasehold.lease_store.sql_store.table_rows import portions
from dagster_leasehold.lease_store.sql_store.verbs import SELECTS_PER_STATEMENT, chunks
from dagster_leasehold.lease_store.tables import publication as publication_table
from dagster_leasehold.lease_store.transactions import Raced, Transaction

Places = Mapping[ShardId, rules.ShardPlace]


class SqlPublishing(SqlPublications):
    """All verbs of `Publications`."""

    @override
    def record_publication(
        self, turn: PublishTurn, publication: PlannedPublication
    ) -> Settled | TurnOver | Stale:
        """Record a publication; after a lost reply it is simply recorded again."""

        def work(tx: Transaction) -> Settled | TurnOver | Stale:
            if not self._has_publish_turn(tx, turn):
                return tx.abandon(TurnOver())
            before = self._locked_publication(tx, turn.key)
            if publication == before.pending:
                return tx.abandon(Settled())
            if before.pending or not self._follows(tx, turn.key, publication):
                return tx.abandon(Stale())
            values = {"pending": planned_values(publication)}
            self._change_row(tx, publication_table, turn.key, values)
            return Settled()

        return self._write("record_publication", work)

    @override
    def drop_publication(
        self, turn: PublishTurn, publication: PlannedPublication
    ) -> Settled | TurnOver:
        """Drop a publication; after a lost reply it is simply dropped again."""

        def work(tx: Transaction) -> Settled | TurnOver:
            if not self._has_publish_turn(tx, turn):
                return tx.abandon(TurnOver())
            before = self._locked_publication(tx, turn.key)
            if before.pending != publication:
                return tx.abandon(Settled())
            # Their rows are locked: a withdrawal is before this, or sees that nothing is pending.
            for part in portions(self._places(tx, turn.key, publication), SELECTS_PER_STATEMENT):
                cursors = {each.shard: each.start for each in publication.ranges}
                dropped = {shard: cursors[shard] for shard in part}
                tx.connection.execute(statements.drop_changes(turn.key, dropped))
            self._change_row(tx, publication_table, turn.key, {"pending": None})
            return Settled()

        return self._write("drop_publication", work)

    @override
    def commit_publication(
        self, turn: PublishTurn, publication: PlannedPublication, pointer: PointerMove | None = None
    ) -> Settled | TurnOver | Stale | PointerMoved:
        key = turn.key

        def work(tx: Transaction) -> Settled | TurnOver | Stale | PointerMoved:
            if not self._has_publish_turn(tx, turn):
                return tx.abandon(TurnOver())
            before = self._locked_publication(tx, key)
            if publication.id == before.last:
                return tx.abandon(Settled())
            if pointer is None:
                places = self._places(tx, key, publication)
                pending = before.pending == publication
                if not pending or not rules.may_settle(publication, places):
                    return tx.abandon(Stale())
            elif not self._follows(tx, key, publication):
                return tx.abandon(Stale())
            elif (there := self._move_pointer(tx, before, pointer)) is not None:
                return tx.abandon(there)
            self._settle(tx, before, publication)
            return Settled()

        def mark(tx: Transaction) -> bool:
            return publication.id == self._locked_publication(tx, key).last

        return self._write("commit_publication", work, mark=mark)

    def _follows(self, tx: Transaction, key: GroupKey, publication: PlannedPublication) -> bool:
        """Return True if all is as it was when the publication was planned."""
        if not rules.may_follow(publication, self._places(tx, key, publication)):
            return False
        numbers = publication.changes
        changed = dict(tx.connection.execute(statements.select_changed(key, numbers)).all())
        if len(changed) != len(numbers):
            return False
        shards = {*changed.values(), *(each.shard for each in publication.ranges)}
        left_out = statements.select_left_out(key, shards, numbers)
        oldest = {ShardId(row["shard_id"]): row["sequence"] for row in tx.rows(left_out)}
        return rules.in_turn(publication, set(changed.values()), oldest)

    def _places(self, tx: Transaction, key: GroupKey, publication: PlannedPublication) -> Places:
        places: dict[ShardId, rules.ShardPlace] = {}
        for part in chunks(sorted(each.shard for each in publication.ranges)):
            for row in tx.rows(statements.lock_places(key, part)):
                places[ShardId(row["shard_id"])] = place_from(row)
        return places

    def _move_pointer(
        self, tx: Transaction, before: Publication, pointer: PointerMove
    ) -> PointerMoved | None:
        """Move the table's pointer; return where it is if it is not where it was seen."""
        assert before.table is not None
        moved = statements.move_pointer(before.table, pointer.before, pointer.after)
        if tx.connection.execute(moved).rowcount == 1:
            return None
        row = tx.rows(statements.select_pointer(before.table)).first()
        return PointerMoved(None if row is None else row["metadata_location"])

    def _settle(
        self, tx: Transaction, before: Publication, publication: PlannedPublication
    ) -> None:
        cursors = {each.shard: each.end for each in publication.ranges}
        for part in chunks(sorted(cursors)):
            moved = {shard: cursors[shard] for shard in part}
            moving = statements.move_cursors(before.key, moved)
            if tx.connection.execute(moving).rowcount != len(part):
                raise Raced
        numbers = publication.changes
        flagged = statements.flag_changes(before.key, numbers)
        if numbers and tx.connection.execute(flagged).rowcount != len(numbers):
            raise Raced
        values = {
            "number": before.number + 1,
            "last_publication": publication.id,
            "snapshot_id": publication.snapshot,
            "records": publication.records,
            "published_at": self._clock(),
            "pending": None,
        }
        self._change_row(tx, publication_table, before.key, values)
