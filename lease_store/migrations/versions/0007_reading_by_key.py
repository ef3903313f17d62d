"""Reading by key: event times of output, totals and versions of ledgers, and their indexes."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Any

import sqlalchemy as sa
from alembic import op

from dagster_leasehold.lease_store.columns import ExactText
from dagster_leasehold.lease_store.ledger_rows import DataFile
from dagster_leasehold.lease_store.migrations import repeatable as make
from dagster_leasehold.lease_store.rules.event_spans import span_of

revision = "0007"
down_revision = "0006"

_PAGE_ROWS = 1_000
_KEY = ("consume_group", "logstream_sig", "shard_id")
_TOTALS = ("committed_batches", "committed_records", "committed_bytes", "quarantined_records")
_INDEXES = {
    "batch_by_event_span": ("batch", ("consume_group", "logstream_sig", "event_span")),
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
    sa.Column("files", sa.Text),
    sa.Column("written", sa.BigInteger),
    sa.Column("bytes", sa.BigInteger),
    sa.Column("quarantined", sa.BigInteger),
    sa.Column("event_span", sa.BigInteger),
)
_shards = sa.Table(
    make.SHARDS,
    _metadata,
    *(sa.Column(name, ExactText(64), primary_key=True) for name in _KEY),
    *(sa.Column(name, sa.BigInteger) for name in _TOTALS),
)


def upgrade() -> None:
    """Look once through the rows that the ledger holds already, in pages."""
    make.add_column("batch", sa.Column("event_span", sa.BigInteger))
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
            _write_spans(connection, same, rows)
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


def _write_spans(
    connection: sa.Connection, same: Sequence[sa.ColumnElement[bool]], rows: Sequence[sa.RowMapping]
) -> None:
    spans = [
        {"seen_sequence": row["sequence"], "event_span": span}
        for row in rows
        if (span := span_of([_file(values) for values in json.loads(row["files"])])) is not None
    ]
    if spans:
        written = sa.update(_batch).where(*same, _batch.c.sequence == sa.bindparam("seen_sequence"))
        connection.execute(written.values(event_span=sa.bindparam("event_span")), spans)


def _file(values: dict[str, Any]) -> DataFile:
    first, last = (
        datetime.fromisoformat(values[name]) if name in values else None
        for name in ("first_event_time", "last_event_time")
    )
    quarantine = bool(values.get("quarantine"))
    return DataFile("", 0, 0, quarantine, first_event_time=first, last_event_time=last)
