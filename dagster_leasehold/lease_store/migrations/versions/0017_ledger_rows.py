"""A shard counts the rows of its ledger."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from dagster_leasehold.lease_store.migrations import repeatable as make

revision = "0017"
down_revision = "0016"

_KEY = ("consume_group", "logstream_sig", "shard_id")
_shards = sa.table(make.SHARDS, *(sa.column(name) for name in (*_KEY, "ledger_rows")))
_batch = sa.table("batch", *(sa.column(name) for name in (*_KEY, "state")))


def upgrade() -> None:
    """Count what is there, shard by shard: rows of batches that are, or once were, committed."""
    make.add_column(
        make.SHARDS, sa.Column("ledger_rows", sa.BigInteger, nullable=False, server_default="0")
    )
    connection = op.get_bind()
    for shard in connection.execute(sa.select(*(_shards.c[name] for name in _KEY))).all():
        own = dict(zip(_KEY, shard, strict=True))
        counted = (
            sa.select(sa.func.count())
            .select_from(_batch)
            .where(
                *(_batch.c[name] == value for name, value in own.items()),
                _batch.c.state.in_(("committed", "withdrawn")),
            )
        )
        rows = connection.execute(counted).scalar_one()
        same = [_shards.c[name] == value for name, value in own.items()]
        connection.execute(sa.update(_shards).where(*same).values(ledger_rows=rows))
