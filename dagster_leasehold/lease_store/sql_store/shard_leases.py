"""The rows of a group's shards in a database: read in pages, written in bulk."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import chain
from typing import NamedTuple

import sqlalchemy as sa

from dagster_leasehold.lease_store.identifiers import NodeName, ShardId
from dagster_leasehold.lease_store.outcomes import Changed
from dagster_leasehold.lease_store.rules.transitions import Step
from dagster_leasehold.lease_store.shard_rows import Progress, ShardLease
from dagster_leasehold.lease_store.sql_store.mapping import PROGRESS, SHARD
from dagster_leasehold.lease_store.sql_store.table_rows import (
    KEYS_PER_STATEMENT,
    TableRows,
    portions,
)
from dagster_leasehold.lease_store.tables import consumer_group, shard_lease
from dagster_leasehold.lease_store.transactions import Raced

SHARDS_PER_PAGE = 10_000


class ShardLeases(TableRows):
    """The shards of a group."""

    def each_shard(self, *, lock: bool = False) -> Iterator[ShardLease]:
        """Read all shards by id, page by page.

        A process that takes a hundred thousand rows at once is busy for seconds, in which its
        session stands still; the server ends a transaction that does so for too long.
        """
        pages: list[Sequence[sa.RowMapping]] = []
        while not pages or len(pages[-1]) == SHARDS_PER_PAGE:
            after = pages[-1][-1]["shard_id"] if pages else ""
            # MySQL would rather find the group by the index of owners, and sort all its shards
            # for each page.
            page = (
                sa.select(shard_lease)
                .where(self._own(shard_lease), shard_lease.c.shard_id > after)
                .with_hint(shard_lease, "FORCE INDEX (PRIMARY)", dialect_name="mysql")
                .order_by(shard_lease.c.shard_id)
                .limit(SHARDS_PER_PAGE)
            )
            pages.append(self._tx.rows(page.with_for_update() if lock else page).all())
        return map(SHARD.read, chain.from_iterable(pages))

    def shards(
        self, names: Collection[ShardId], *, lock: bool = False
    ) -> dict[ShardId, ShardLease]:
        """Return some shards by id; locked in that order, two transactions cannot cross."""
        return {
            row.shard: row
            for part in portions(names, KEYS_PER_STATEMENT)
            for row in self.select(ShardLease, shard=set(part), lock=lock)
        }

    def shards_of(self, node: NodeName) -> list[ShardId]:
        """Return the shards that a node may consume or waits for."""
        held, awaited = (
            sa.select(shard_lease.c.shard_id).where(self._own(shard_lease), owner == node)
            for owner in (shard_lease.c.consumer_owner, shard_lease.c.lease_owner)
        )
        # With OR, servers read the whole group; each half of a union uses its index.
        return [
            ShardId(shard) for shard in self._tx.connection.execute(held.union(awaited)).scalars()
        ]

    def progress(self, nodes: Collection[NodeName]) -> Iterator[Progress]:
        """Read the checkpoint and tenure of each shard that one of these nodes may consume."""
        served = sa.and_(self._joined(), shard_lease.c.consumer_owner.in_(sorted(nodes)))
        chosen = (
            sa.select(*(shard_lease.c[name] for name in PROGRESS.names))
            .select_from(consumer_group.outerjoin(shard_lease, served))
            .where(self._own(consumer_group))
            .order_by(shard_lease.c.shard_id)
        )
        rows = self._tx.rows(chosen).all()
        if not rows:
            self.group()
        return (PROGRESS.read(row) for row in rows if row["shard_id"] is not None)

    def review(self, names: Collection[ShardId]) -> tuple[bool, dict[ShardId, ShardLease]]:
        """Return if the group is paused, and some of its shards, by one statement."""
        chosen = sa.and_(self._joined(), shard_lease.c.shard_id.in_(sorted(names)))
        rows = self._tx.rows(
            sa.select(shard_lease, consumer_group.c.paused)
            .select_from(consumer_group.outerjoin(shard_lease, chosen))
            .where(self._own(consumer_group))
        ).all()
        if not rows:
            self.group()
        read = (SHARD.read(row) for row in rows if row["shard_id"] is not None)
        return bool(rows[0]["paused"]), {row.shard: row for row in read}

    def _joined(self) -> sa.ColumnElement[bool]:
        return sa.and_(
            shard_lease.c.consume_group == consumer_group.c.consume_group,
            shard_lease.c.logstream_sig == consumer_group.c.logstream_sig,
        )

    def carry_out(self, steps: Sequence[Step], observer: str) -> Changed:
        """Write steps and journal them; the rows must be locked, or be as they were read.

        Steps that change their rows alike are one statement: a round trip for each shard of a node
        that is evicted would hold the group's row for as long as they all take.

        Raises:
            Raced: a row is not as it was read any more.
        """
        for change, alike in _by_change(steps).items():
            for start in range(0, len(alike), KEYS_PER_STATEMENT):
                self._write_alike(change, alike[start : start + KEYS_PER_STATEMENT])
        self.journal([note for step in steps for note in step.notes], observer)
        return Changed(tuple(step.after.shard for step in steps))

    def _write_alike(self, change: _Change, steps: Sequence[Step]) -> None:
        columns, after = shard_lease.c, SHARD.values(steps[0].after)
        identity = (
            columns.shard_id,
            columns.lease_id,
            columns.consumer_epoch,
            columns.consumer_run,
        )
        seen = [
            (row.shard, row.lease_id, row.consumer_epoch, row.consumer_run)
            for row in (step.before for step in steps)
        ]
        counters = {
            "lease_id": columns.lease_id + change.lease_ids_more,
            "consumer_epoch": columns.consumer_epoch + change.epochs_more,
        }
        statement = (
            sa.update(shard_lease)
            .where(
                self._own(shard_lease),
                columns.shard_id.in_([shard for shard, *_ in seen]),  # finds them in the index
                sa.tuple_(*identity).in_(seen),
            )
            .values({name: after[name] for name, _ in change.values} | counters)
        )
        if self._tx.connection.execute(statement).rowcount != len(steps):
            raise Raced


class _Change(NamedTuple):
    """The difference that a step makes to its row.

    Attributes:
        lease_ids_more, epochs_more: added to these two counters.
        values: the other columns that change, by name, with their new values in writing.
    """

    lease_ids_more: int
    epochs_more: int
    values: tuple[tuple[str, str], ...]


def _by_change(steps: Sequence[Step]) -> Mapping[_Change, list[Step]]:
    alike: dict[_Change, list[Step]] = {}
    for step in steps:
        before, after = SHARD.values(step.before), SHARD.values(step.after)
        change = _Change(
            after.pop("lease_id") - before["lease_id"],
            after.pop("consumer_epoch") - before["consumer_epoch"],
            tuple((name, repr(value)) for name, value in after.items() if value != before[name]),
        )
        alike.setdefault(change, []).append(step)
    return alike
