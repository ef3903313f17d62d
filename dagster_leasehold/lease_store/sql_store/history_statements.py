"""The statements that read ledger, journal and gaps by key; values are always bound.

Each reads the rows that it returns, or a number of rows per shard, whatever the tables hold:

- what comes after a key is asked for shard by shard, since MySQL finds rows by a range of one
  column, and SQLite by one condition on it;
- the newest row of a shard is the first one of its index read backwards; a maximum that is grouped
  by shard would have all of them read.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any

import sqlalchemy as sa

from dagster_leasehold.lease_store.identifiers import GroupKey, ShardId
from dagster_leasehold.lease_store.sql_store.group_statements import rows_of
from dagster_leasehold.lease_store.tables import batch

PAGE_FIRST_ROWS = 64
PAGE_ROWS_MAX = 2_048
_PAGE_GROWTH = 4
# The files' JSON is decoded when the transaction is over.
BATCH_ROW = (
    *(column for column in batch.c if column.name != "files"),
    sa.type_coerce(batch.c.files, sa.Text).label("files"),
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
