"""The statements that read ledger, journal and gaps by key; values are always bound.

Each reads the rows that it returns, or a number of rows per shard, whatever the tables hold:

- what comes after a key is asked for shard by shard, since MySQL finds rows by a range of one
  column, and SQLite by one condition on it;
- the newest row of a shard is the first one of its index read backwards; a maximum that is grouped
  by shard would have all of them read.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from dagster_leasehold.lease_store.identifiers import GroupKey, ShardId
from dagster_leasehold.lease_store.ledger_rows import BatchState
from dagster_leasehold.lease_store.sql_store.group_statements import of_group, rows_of
from dagster_leasehold.lease_store.tables import batch, gap, lease_journal, shard_lease

PAGE_FIRST_ROWS = 64
PAGE_ROWS_MAX = 2_048
_PAGE_GROWTH = 4
# The files' JSON is decoded when the transaction is over.
BATCH_ROW = (
    *(column for column in batch.c if column.name != "files"),
    sa.type_coerce(batch.c.files, sa.Text).label("files"),
)


def select_heads(key: GroupKey, shards: Sequence[ShardId]) -> sa.CompoundSelect[*tuple[Any, ...]]:
    """The shards' checkpoint and version, with the newest ledger row where there is one."""
    columns = [shard_lease.c[name] for name in ("shard_id", "check_point", "ledger_version")]
    ends = (batch.c.sequence, batch.c.last_sequence, batch.c.state, batch.c.run)
    return sa.union_all(
        *(
            sa.select(*columns, *newest.c)
            .select_from(shard_lease.outerjoin(newest, sa.true()))
            .where(of_group(shard_lease, key, shard_id=shard))
            for shard in shards
            for newest in [_newest(sa.select(*ends), key, shard)]
        )
    )


def _newest(columns: sa.Select[*tuple[Any, ...]], key: GroupKey, shard: ShardId) -> sa.Subquery:
    """A shard's ledger row with the highest number.

    MySQL finds the end of an index's range only where the range is written out; it reads and
    sorts all rows of a shard whose name comes from another table.
    """
    return (
        columns.where(of_group(batch, key, shard_id=shard))
        .order_by(batch.c.sequence.desc())
        .limit(1)
        .subquery()
    )


def select_shards(key: GroupKey) -> sa.Select[Any]:
    """The shards of a group, by id."""
    return (
        sa.select(shard_lease.c.shard_id)
        .where(of_group(shard_lease, key))
        .order_by(shard_lease.c.shard_id)
    )


def select_numbered(
    key: GroupKey, numbers: Collection[tuple[ShardId, int]]
) -> sa.CompoundSelect[*tuple[Any, ...]]:
    """The ledger rows with these shards and numbers.

    Each by its key: for more than a few alternatives SQLite reads the whole group instead.
    """
    return sa.union_all(
        *(rows_of(batch, key, shard_id=shard, sequence=number) for shard, number in sorted(numbers))
    )


def page_sizes(first: int = PAGE_FIRST_ROWS) -> Iterator[int]:
    """Give the rows to ask for with each page: few at first, for readers who take only those."""
    size = first
    while True:
        yield size
        size = min(size * _PAGE_GROWTH, PAGE_ROWS_MAX)


@dataclass(frozen=True, slots=True)
class Listing:
    """Rows in the order of some columns, to be read page by page.

    Attributes:
        kind: for the statement counter.
        rows: the statement, without an order.
        place: the columns; together they tell one row from another.
        backwards: from the last row to the first.
    """

    kind: str
    rows: sa.Select[Any]
    place: tuple[sa.ColumnElement[Any], ...]
    backwards: bool = False

    def after(self, last: Sequence[Any] | None) -> list[sa.Select[Any]]:
        """Return the rows after one, as statements to run in turn; all rows for None.

        Each is one range of the index; asked for together, MySQL and SQLite would read and sort
        what lies between them as well.
        """
        order = [column.desc() if self.backwards else column for column in self.place]
        ordered = self.rows.order_by(*order)
        if last is None:
            return [ordered]
        runs: list[sa.Select[Any]] = []
        for at in reversed(range(len(self.place))):
            same = (self.place[before] == last[before] for before in range(at))
            column = self.place[at]
            beyond = column < last[at] if self.backwards else column > last[at]
            runs.append(ordered.where(*same, beyond))
        return runs


def all_batches(key: GroupKey, state: BatchState | None) -> Listing:
    """Return ledger rows by shard and number."""
    rows = _of_state(state).where(of_group(batch, key))
    return Listing("batches", rows, (batch.c.shard_id, batch.c.sequence))


def batches_of(
    key: GroupKey, shard: ShardId, state: BatchState | None, numbers: range, *, newest_first: bool
) -> Listing:
    """Ledger rows of one shard whose numbers lie in a range."""
    rows = _of_state(state).where(
        of_group(batch, key, shard_id=shard),
        batch.c.sequence >= numbers.start,
        batch.c.sequence < numbers.stop,
    )
    return Listing("batches", rows, (batch.c.sequence,), backwards=newest_first)


def _of_state(state: BatchState | None) -> sa.Select[Any]:
    chosen = sa.select(*BATCH_ROW)
    return chosen if state is None else chosen.where(batch.c.state == state.value)


def throughput(
    key: GroupKey, window: int, newest: Mapping[ShardId, int]
) -> sa.CompoundSelect[*tuple[Any, ...]]:
    """The committed batches among the newest of each shard, added up."""
    added_up = sa.select(
        batch.c.shard_id,
        sa.func.count().label("batches"),
        sa.func.sum(sa.func.coalesce(batch.c.records, batch.c.written)).label("records"),
        sa.func.min(batch.c.committed_at).label("first_at"),
        sa.func.max(batch.c.committed_at).label("last_at"),
    ).where(of_group(batch, key, state=BatchState.COMMITTED.value))
    # One range of the key for each: SQLite reads the whole group for several at once.
    return sa.union_all(
        *(
            added_up.where(
                batch.c.shard_id == shard, batch.c.sequence > newest[shard] - window
            ).group_by(batch.c.shard_id)
            for shard in sorted(newest)
        )
    )


def count_ledger_rows(key: GroupKey) -> sa.Select[*tuple[Any, ...]]:
    """The number of rows of batches that were ever committed, as the shards' rows count them."""
    rows = sa.func.coalesce(sa.func.sum(shard_lease.c.ledger_rows), 0)
    return sa.select(rows.label("ledger_rows")).where(of_group(shard_lease, key))


def select_totals(key: GroupKey) -> sa.Select[*tuple[Any, ...]]:
    """The totals of all that was ever committed to each shard."""
    columns = shard_lease.c
    return (
        sa.select(
            columns.shard_id,
            columns.committed_batches.label("batches"),
            columns.committed_records.label("records"),
            columns.committed_bytes.label("bytes"),
            columns.quarantined_records.label("quarantined"),
        )
        .where(of_group(shard_lease, key))
        .order_by(columns.shard_id)
    )


def entries(
    key: GroupKey, *, shard: ShardId | None, after: int, until: int | None, newest_first: bool
) -> Listing:
    """Journal entries whose numbers lie in `(after, until]`."""
    rows = rows_of(lease_journal, key).where(lease_journal.c.sequence > after)
    # MySQL would rather read the whole journal backwards until it has met entries enough of this
    # group or shard.
    index = "lease_journal_by_group" if shard is None else "lease_journal_by_shard"
    rows = rows.with_hint(lease_journal, f"FORCE INDEX ({index})", dialect_name="mysql")
    if shard is not None:
        rows = rows.where(lease_journal.c.shard_id == shard)
    if until is not None:
        rows = rows.where(lease_journal.c.sequence <= until)
    return Listing("journal", rows, (lease_journal.c.sequence,), backwards=newest_first)


def all_gaps(
    key: GroupKey, shard: ShardId | None, start: str | None, acknowledged: bool | None
) -> Listing:
    """Gaps of one shard or of all."""
    rows = rows_of(gap, key)
    if acknowledged is not None:
        rows = rows.where(gap.c.acknowledged.is_(acknowledged))
    if shard is not None:
        rows = rows.where(gap.c.shard_id == shard)
    if start is not None:
        rows = rows.where(gap.c.start_cursor == start)
    return Listing("gaps", rows, (gap.c.shard_id, gap.c.start_cursor, gap.c.end_cursor))


def count_gaps(key: GroupKey) -> sa.Select[*tuple[Any, ...]]:
    """The number of gaps by whether they were acknowledged."""
    return (
        sa.select(gap.c.acknowledged, sa.func.count().label("gaps"))
        .where(of_group(gap, key))
        .group_by(gap.c.acknowledged)
    )
