"""Committed output goes into Iceberg tables: who publishes it, up to where, and the catalog."""

from __future__ import annotations

from alembic import op
from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Integer,
    String,
    column,
    func,
    select,
    table,
    update,
)

from dagster_leasehold.lease_store.columns import EventTime, ExactText, JsonText
from dagster_leasehold.lease_store.migrations import repeatable as make

revision = "0014"
down_revision = "0013"

_AUTO_NUMBER = BigInteger().with_variant(Integer(), "sqlite")


def upgrade() -> None:
    """Nothing is published yet: all that is committed waits for the first publisher."""
    for name in ("committed_until", "published_until"):
        make.add_column(make.SHARDS, _count(name))
    _number_committed()
    make.create_table(
        "publication",
        *make.group_key(),
        make.short_text("worker_instance"),
        make.short_text("incarnation"),
        Column("epoch", BigInteger, nullable=False),
        Column("catalog_name", ExactText(255)),
        Column("table_namespace", ExactText(255)),
        Column("table_name", ExactText(255)),
        _count("columns_version"),
        Column("table_columns", JsonText),
        _count("number"),
        Column("recent", JsonText),
        Column("snapshot_id", BigInteger),
        Column("published_at", EventTime),
        Column("recorded", JsonText),
    )
    names = ("catalog_name", "table_namespace", "table_name")
    make.create_index("publication_by_table", "publication", names, unique=True)
    make.create_table(
        "table_change",
        Column("sequence", _AUTO_NUMBER, primary_key=True, autoincrement=True),
        make.identifier("consume_group", key=False),
        make.identifier("logstream_sig", key=False),
        make.identifier("shard_id", key=False),
        Column("kind", String(16), nullable=False),
        Column("first_batch", BigInteger, nullable=False),
        Column("removed", JsonText, nullable=False),
        Column("added", JsonText, nullable=False),
        Column("published", Boolean, nullable=False),
        Column("recorded_at", EventTime, nullable=False),
        numbered=True,
    )
    pending = ("consume_group", "logstream_sig", "published", "sequence")
    make.create_index("table_change_pending", "table_change", pending)
    make.create_table(
        "iceberg_tables",
        *(Column(name, String(255), primary_key=True) for name in names),
        Column("metadata_location", String(1000)),
        Column("previous_metadata_location", String(1000)),
    )
    # Earlier releases of Iceberg's clients, which may have made the table, knew no views.
    make.add_column("iceberg_tables", Column("iceberg_type", String(5)))
    make.create_table(
        "iceberg_namespace_properties",
        *(
            Column(name, String(255), primary_key=True)
            for name in ("catalog_name", "namespace", "property_key")
        ),
        Column("property_value", String(1000), nullable=False),
    )


def _count(name: str) -> Column[int]:
    return Column(name, BigInteger, nullable=False, server_default="0")


def _number_committed() -> None:
    """Give each shard the number behind its last committed batch.

    One shard after the other: MySQL finds the end of an index's range only where it is written out.
    """
    names = ("consume_group", "logstream_sig", "shard_id")
    shards = table(
        make.SHARDS,
        *(column(name, ExactText(64)) for name in names),
        column("committed_until", BigInteger),
    )
    batches = table(
        "batch",
        *(column(name, ExactText(64)) for name in names),
        *(column(name, BigInteger) for name in ("sequence", "last_sequence")),
        column("state", String(16)),
    )
    connection = op.get_bind()
    for place in connection.execute(select(*(shards.c[name] for name in names))).all():
        own = dict(zip(names, place, strict=True))
        newest = (
            select(func.coalesce(batches.c.last_sequence, batches.c.sequence))
            .where(*(batches.c[name] == value for name, value in own.items()))
            .where(batches.c.state == "committed")
            .order_by(batches.c.sequence.desc())
            .limit(1)
        )
        last = connection.execute(newest).scalar()
        if last is not None:
            same = (shards.c[name] == value for name, value in own.items())
            connection.execute(update(shards).where(*same).values(committed_until=last + 1))
