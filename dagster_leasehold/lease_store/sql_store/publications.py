"""Publishing in SQL: the turn, what waits for publication, columns, and the default catalog."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import sqlalchemy as sa
from typing_extensions import override

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
    Publication,
    PublishTurn,
    ShardBacklog,
    ShardLag,
    TableName,
    TablePointer,
)
from dagster_leasehold.lease_store.roles.publications import (
    BACKLOG_BATCHES,
    LAG_BATCHES,
    SHARDS_PER_LOOK,
    Publications,
)
from dagster_leasehold.lease_store.rules.publishing import ShardPlace, shares
from dagster_leasehold.lease_store.rules.refusals import unknown_group
from dagster_leasehold.lease_store.sql_store import publication_statements as statements
from dagster_leasehold.lease_store.sql_store.group_statements import rows_of
from dagster_leasehold.lease_store.sql_store.mapping import batch_from, key_values
from dagster_leasehold.lease_store.sql_store.publication_mapping import (
    place_from,
    pointer_from,
    publication_from,
    table_values,
)
from dagster_leasehold.lease_store.sql_store.table_rows import portions
from dagster_leasehold.lease_store.sql_store.turns import SqlTurns
from dagster_leasehold.lease_store.sql_store.verbs import SELECTS_PER_STATEMENT
from dagster_leasehold.lease_store.tables import (
    iceberg_namespace_properties,
    iceberg_tables,
    publication,
)
from dagster_leasehold.lease_store.transactions import Transaction

TABLE_TYPE = "TABLE"


class SqlPublications(SqlTurns, Publications):
    """The verbs of `Publications`, but for the two that publish."""

    # -- the turn -------------------------------------------------------------------------------

    @override
    def take_publish_turn(
        self, key: GroupKey, node: NodeName | None, incarnation: str, table: TableName
    ) -> PublishTurn | TurnTaken | PublishesElsewhere:
        """Take the turn; after a lost reply it is simply taken again."""

        def work(tx: Transaction) -> PublishTurn | TurnTaken | PublishesElsewhere:
            self._group(tx, key, lock=True)
            own = tx.rows(rows_of(publication, key)).first()
            at = publication_from(own).table if own is not None else None
            if at not in (None, table):
                return tx.abandon(PublishesElsewhere(key, at))
            for row in tx.rows(statements.select_publishers(table)):
                other = publication_from(row).key
                if other != key:
                    return tx.abandon(PublishesElsewhere(other, table))
            named = table_values(table)
            epoch = self._take_turn(tx, publication, key, node, incarnation, **named)
            return epoch if isinstance(epoch, TurnTaken) else PublishTurn(key, node, epoch)

        return self._write("take_publish_turn", work)

    @override
    def end_publish_turn(self, turn: PublishTurn) -> Settled | TurnOver:
        return self._end_turn("end_publish_turn", publication, turn.key, turn.node, turn.epoch)

    # -- reading --------------------------------------------------------------------------------

    @override
    def publication(self, key: GroupKey) -> Publication | None:
        def work(tx: Transaction) -> sa.RowMapping | None:
            return tx.rows(statements.select_publication(key)).first()

        row = self._read("publication", work)
        if row is None:
            raise unknown_group(key)
        return None if row["epoch"] is None else publication_from(row)

    @override
    def unpublished(self, key: GroupKey, *, limit: int = BACKLOG_BATCHES) -> list[ShardBacklog]:
        places = self._waiting(key, min(limit, SHARDS_PER_LOOK))
        needs = {shard: place.numbers_left for shard, place in places.items()}
        share = shares(needs, limit)
        rows: dict[ShardId, list[sa.RowMapping]] = {}
        for part in portions(places, SELECTS_PER_STATEMENT):
            wanted = {shard: (places[shard].published_until, share[shard] + 1) for shard in part}
            for row in self._rows("unpublished", statements.select_unpublished(key, wanted)):
                rows.setdefault(ShardId(row["shard_id"]), []).append(row)
        return [
            ShardBacklog(
                shard,
                places[shard].published_until,
                places[shard].version,
                tuple(map(batch_from, own[: share[shard]])),
                more=len(own) > share[shard],
            )
            for shard, own in sorted(rows.items())
        ]

    def _waiting(self, key: GroupKey, limit: int) -> dict[ShardId, ShardPlace]:
        """Return the places of the shards that wait for most; one statement."""
        rows = self._rows("unpublished", statements.select_waiting(key, limit))
        if not rows:
            raise unknown_group(key)
        waiting = (row for row in rows if row["shard_id"] is not None)
        return {ShardId(row["shard_id"]): place_from(row) for row in waiting}

    def _rows(self, kind: str, statement: sa.Executable) -> Sequence[sa.RowMapping]:
        return self._read(kind, lambda tx: tx.rows(statement).all())

    @override
    def published_until(
        self, key: GroupKey, shards: Collection[ShardId] | None = None
    ) -> dict[ShardId, int] | None:
        rows = self._rows("published_until", statements.select_cursors(key, shards))
        if not rows:
            raise unknown_group(key)
        if not rows[0]["epoch"]:
            return None
        cursors = (row for row in rows if row["shard_id"] is not None)
        return {ShardId(row["shard_id"]): row["published_until"] for row in cursors}

    @override
    def publication_lag(self, key: GroupKey) -> list[ShardLag]:
        places = self._waiting(key, SHARDS_PER_LOOK)
        lags: list[ShardLag] = []
        for part in portions(places, SELECTS_PER_STATEMENT):
            wanted = {shard: (places[shard].published_until, LAG_BATCHES) for shard in part}
            for row in self._rows("lag", statements.count_unpublished(key, wanted)):
                shard = ShardId(row["shard_id"])
                # MariaDB adds integers up to a decimal.
                batches, records = int(row["batches"]), int(row["records"])
                start, more = places[shard].published_until, row["rows"] == LAG_BATCHES
                lags.append(ShardLag(shard, start, batches, records, row["oldest_at"], more))
        return sorted(lags, key=lambda lag: lag.shard)

    # -- columns --------------------------------------------------------------------------------

    @override
    def agree_columns(
        self, key: GroupKey, columns: Sequence[Mapping[str, Any]], *, seen_version: int
    ) -> Changed | Stale:
        wanted = [dict(column) for column in columns]

        def work(tx: Transaction) -> Changed | Stale:
            self._group(tx, key)
            row = tx.rows(statements.lock_publication(key)).first()
            if row is not None and row["table_columns"] == wanted:
                return tx.abandon(Changed())
            if (row["columns_version"] if row is not None else 0) != seen_version:
                return tx.abandon(Stale())
            values = {"table_columns": wanted, "columns_version": seen_version + 1}
            if row is None:
                empty = {"worker_instance": "", "incarnation": "", "epoch": 0}
                self._add_row(tx, publication, key_values(key) | empty | values)
            else:
                self._change_row(tx, publication, key, values)
            return Changed()

        return self._write("agree_columns", work)

    # -- the default catalog --------------------------------------------------------------------

    @override
    def table_pointer(self, table: TableName) -> TablePointer | None:
        def work(tx: Transaction) -> TablePointer | None:
            row = tx.rows(statements.select_pointer(table)).first()
            return None if row is None else pointer_from(row)

        return self._read("table_pointer", work)

    @override
    def create_table_pointer(
        self, turn: PublishTurn, location: str
    ) -> Settled | TurnOver | PointerMoved:
        def work(tx: Transaction) -> Settled | TurnOver | PointerMoved:
            if not self._has_publish_turn(tx, turn):
                return tx.abandon(TurnOver())
            table = self._locked_publication(tx, turn.key).table
            assert table is not None
            row = tx.rows(statements.select_pointer(table)).first()
            if row is not None:
                there = row["metadata_location"]
                return tx.abandon(Settled() if there == location else PointerMoved(there))
            if tx.rows(statements.select_namespace(table)).first() is None:
                names = {"catalog_name": table.catalog, "namespace": table.namespace}
                exists = {"property_key": "exists", "property_value": "true"}
                self._add_row(tx, iceberg_namespace_properties, names | exists)
            pointer = {"metadata_location": location, "iceberg_type": TABLE_TYPE}
            self._add_row(tx, iceberg_tables, table_values(table) | pointer)
            return Settled()

        return self._write("create_table_pointer", work)

    # -- pieces ---------------------------------------------------------------------------------

    def _has_publish_turn(self, tx: Transaction, turn: PublishTurn) -> bool:
        return self._has_turn(tx, publication, turn.key, turn.node, turn.epoch)

    def _locked_publication(self, tx: Transaction, key: GroupKey) -> Publication:
        row = tx.rows(statements.lock_publication(key)).one()
        return publication_from(row)
