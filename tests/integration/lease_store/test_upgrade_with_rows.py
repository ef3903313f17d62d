"""An upgrade of a store with rows: what a release before left is there, and means the same."""

from __future__ import annotations

from collections.abc import Generator
from pathlib import Path

import pytest
from alembic import command
from alembic.config import Config
from sqlalchemy import Engine, insert, text

from dagster_leasehold.lease_store import open_store, tables
from dagster_leasehold.lease_store.engine import WRITE_OPTION, open_engine, parse_url
from dagster_leasehold.lease_store.group_rows import Group
from dagster_leasehold.lease_store.identifiers import GroupKey
from dagster_leasehold.lease_store.ledger_rows import Batch, BatchState, BatchStatistics, DataFile
from dagster_leasehold.lease_store.outcomes import Settled
from dagster_leasehold.lease_store.rules.states import ShardState
from dagster_leasehold.lease_store.schema import HEAD
from dagster_leasehold.lease_store.shard_rows import ShardLease
from dagster_leasehold.lease_store.sql_store.mapping import (
    SHARD,
    batch_row,
    group_values,
    key_values,
)
from tests.conformance.published import Publisher
from tests.conformance.world import NOON, A, World, X, Y, Z

KEY = GroupKey.parse("group", "stream")
SERVERS = [pytest.param(name, marks=getattr(pytest.mark, name)) for name in ("mariadb", "mysql")]


@pytest.fixture(params=["sqlite", *SERVERS])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/leases.db"
    return str(request.getfixturevalue(f"{request.param}_url"))


@pytest.fixture
def engine(url: str) -> Generator[Engine]:
    opened = open_engine(parse_url(url))
    yield opened
    opened.dispose()


def upgrade_to(engine: Engine, revision: str) -> None:
    config = Config()
    config.set_main_option("script_location", "dagster_leasehold.lease_store:migrations")
    with engine.connect() as connection:
        config.attributes["connection"] = connection.execution_options(**{WRITE_OPTION: True})
        command.upgrade(config, revision)
        connection.commit()


def a_row(shard: str, number: int, state: BatchState, last: int | None = None) -> Batch:
    return Batch(
        type(X)(shard),
        number,
        str(number),
        str((number if last is None else last) + 1),
        state,
        1,
        "run",
        A,
        files=(DataFile(f"{shard}/{number}", 4, 50),),
        statistics=BatchStatistics(5, 50, 4, 1, NOON, NOON),
        committed_at=None if state is BatchState.INTENT else NOON,
        last_sequence=last,
        last_epoch=None if last is None else 1,
        batches=1 if last is None else last - number + 1,
    )


LEDGER = [
    a_row("x", 0, BatchState.COMMITTED, last=4),
    a_row("x", 5, BatchState.COMMITTED),
    a_row("x", 6, BatchState.WITHDRAWN),
    a_row("x", 7, BatchState.INTENT),
    a_row("y", 0, BatchState.ABANDONED),
    a_row("y", 1, BatchState.COMMITTED, last=3),
]


def test_what_was_committed_before_tables_waits_for_its_first_publisher(
    url: str, engine: Engine
) -> None:
    """Method: rows as the schema before had them, one shard of each kind, and an upgrade."""
    upgrade_to(engine, "0013")
    with engine.connect().execution_options(**{WRITE_OPTION: True}) as connection:
        group = key_values(KEY) | group_values(Group(KEY)) | {"generation": 1}
        connection.execute(insert(tables.consumer_group), [group])
        for shard in (X, Y, Z):
            lease = ShardLease(shard, ShardState.NOT_ALLOC)
            connection.execute(insert(tables.shard_lease), [SHARD.row(KEY, lease)])
        connection.execute(insert(tables.batch), [batch_row(KEY, row) for row in LEDGER])
        connection.commit()
    store = open_store(url, upgrade=True)
    assert store.schema_revision() == HEAD
    with engine.connect() as connection:
        numbers = connection.execute(
            text("SELECT committed_until, published_until FROM loghub_client_shard_lease "
                 "ORDER BY shard_id")
        )  # fmt: skip
        assert [tuple(row) for row in numbers] == [(6, 0), (4, 0), (0, 0)]
    assert store.published_until(KEY) is None
    assert store.publication(KEY) is None
    world = World(store, KEY)
    world.join(A)
    publisher = Publisher(world)
    publisher.start()
    planned = publisher.publish()
    assert [(each.shard, each.start, each.end) for each in planned.ranges] == [(X, 0, 6), (Y, 0, 4)]
    assert publisher.files == publisher.committed() == ["x/0", "x/5", "y/1"]
    assert store.unpublished(KEY) == []
    assert store.end_publish_turn(publisher.own) == Settled()
    store.close()


def test_a_catalog_that_is_there_is_taken_over(url: str, engine: Engine) -> None:
    """Another program's tables of this name, made before Iceberg knew views, stay as they are."""
    upgrade_to(engine, "0013")
    with engine.connect().execution_options(**{WRITE_OPTION: True}) as connection:
        connection.execute(
            text("CREATE TABLE iceberg_tables (catalog_name VARCHAR(255) NOT NULL, "
                 "table_namespace VARCHAR(255) NOT NULL, table_name VARCHAR(255) NOT NULL, "
                 "metadata_location VARCHAR(1000), previous_metadata_location VARCHAR(1000), "
                 "PRIMARY KEY (catalog_name, table_namespace, table_name))")
        )  # fmt: skip
        connection.execute(
            text("INSERT INTO iceberg_tables VALUES ('their', 'own', 'table', 'there', NULL)")
        )
        connection.commit()
    store = open_store(url, upgrade=True)
    world = World(store, KEY)
    world.group()
    world.join(A)
    publisher = Publisher(world)
    publisher.start()
    with engine.connect() as connection:
        rows = connection.execute(
            text("SELECT table_name, metadata_location, iceberg_type FROM iceberg_tables "
                 "ORDER BY table_name")
        )  # fmt: skip
        assert [tuple(row) for row in rows] == [
            ("stream", "first.metadata.json", "TABLE"),
            ("table", "there", None),
        ]
    store.close()
