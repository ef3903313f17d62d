"""Reading by key: totals and versions of ledgers, and indexes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import sqlalchemy as sa
from alembic import op

from dagster_leasehold.lease_store.columns import ExactText
from dagster_leasehold.lease_store.migrations import repeatable as make

revision = "0007"
down_revision = "0006"

_PAGE_ROWS = 1_000
_KEY = ("consume_group", "logstream_sig", "shard_id")
_TOTALS = ("committed_batches", "committed_records", "committed_bytes", "quarantined_records")
_INDEXES = {
    "gap_by_acknowledgement": (
        "gap",
        ("consume_group", "logstream_sig", "acknowledged", "shard_id"),
    ),
    "outbox_by_kind": (
        "outbox",
        ("consume_group", "logstream_sig", "delivered", "kind", "sequence"),
    ),
    "outbox_by_shard": (
        "outbox",
        ("consume_group", "logstream_sig", "delivered", "kind", "shard_id", "sequence"),
    ),
    "event_window_by_end": (
        "event_window",
        ("consume_group", "logstream_sig", "asset", "window_end"),
    ),
}

_metadata = sa.MetaData()
_batch = sa.Table(
    "batch",
    _metadata,
    *(sa.Column(name, ExactText(64), primary_key=True) for name in _KEY),
    sa.Column("sequence", sa.BigInteger, primary_key=True),
    sa.Column("state", sa.String(16)),
    sa.Column("written", sa.BigInteger),
    sa.Column("bytes", sa.BigInteger),
    sa.Column("quarantined", sa.BigInteger),
)
_shards = sa.Table(
    make.SHARDS,
    _metadata,
    *(sa.Column(name, ExactText(64), primary_key=True) for name in _KEY),
    *(sa.Column(name, sa.BigInteger) for name in _TOTALS),
)


def upgrade() -> None:
    """Look once through the rows that the ledger holds already, in pages."""
    for name in ("ledger_version", *_TOTALS):
        make.add_column(
            make.SHARDS, sa.Column(name, sa.BigInteger, nullable=False, server_default="0")
        )
    connection = op.get_bind()
    shards = connection.execute(sa.select(*(_shards.c[name] for name in _KEY))).mappings().all()
    for shard in shards:
        same = [_batch.c[name] == shard[name] for name in _KEY]
        totals = dict.fromkeys(_TOTALS, 0)
        for rows in _pages(connection, same):
            for row in rows:
                if row["state"] == "committed":
                    counted = (1, row["written"], row["bytes"] or 0, row["quarantined"])
                    for name, more in zip(_TOTALS, counted, strict=True):
                        totals[name] += more
        own = [_shards.c[name] == shard[name] for name in _KEY]
        connection.execute(sa.update(_shards).where(*own).values(totals))
    for name, (table, columns) in _INDEXES.items():
        make.create_index(name, table, columns)
    # Its columns are the first ones of the two that take its place.
    make.drop_index("outbox_pending", "outbox")


def _pages(
    connection: sa.Connection, same: Sequence[sa.ColumnElement[bool]]
) -> Iterator[Sequence[sa.RowMapping]]:
    """A shard's ledger by number; each page begins where the one before it ended."""
    chosen = sa.select(_batch).where(*same).order_by(_batch.c.sequence).limit(_PAGE_ROWS)
    rows = connection.execute(chosen).mappings().all()
    while rows:
        yield rows
        after = _batch.c.sequence > rows[-1]["sequence"]
        rows = connection.execute(chosen.where(after)).mappings().all()
