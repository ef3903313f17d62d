"""An upgrade of a store with rows: what a release before left is there, and means the same."""

from __future__ import annotations

from collections.abc import Generator
from pathlib import Path

import pytest
from alembic import command
from alembic.config import Config
from sqlalchemy import Engine, Executable, insert, text

from dagster_leasehold.lease_store import open_store, schema, tables
from dagster_leasehold.lease_store.engine import WRITE_OPTION, open_engine, parse_url
from dagster_leasehold.lease_store.errors import OlderNodesBeat
from dagster_leasehold.lease_store.group_rows import Group, Node
from dagster_leasehold.lease_store.identifiers import GroupKey
from dagster_leasehold.lease_store.ledger_rows import Batch, BatchState, BatchStatistics, DataFile
from dagster_leasehold.lease_store.outcomes import Registered, Settled
from dagster_leasehold.lease_store.release import HEAD, RELEASE
from dagster_leasehold.lease_store.rules.states import ShardState
from dagster_leasehold.lease_store.shard_rows import ShardLease
from dagster_leasehold.lease_store.sql_store import readiness
from dagster_leasehold.lease_store.sql_store.mapping import (
    SHARD,
    batch_row,
    group_values,
    key_values,
)
from tests.conformance.published import Publisher
from tests.conformance.world import NOON, A, B, World, X, Y, Z

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
            row = SHARD.row(KEY, lease)
            older = {name: row[name] for name in row if name not in ("tries", "suspicion")}
            connection.execute(insert(tables.shard_lease), [older])
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
    assert store.ledger_rows(KEY) == 4
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


class OldNode:
    """A node of release 0.1, as its rows show it.

    Args:
        engine: of the database, of any revision.
        timeout_s: T of its group.
    """

    def __init__(self, engine: Engine, timeout_s: float) -> None:
        self._engine = engine
        group = key_values(KEY) | group_values(Group(KEY, timeout_s=timeout_s)) | {"generation": 1}
        row = key_values(KEY) | {"worker_instance": A, "lease_id": 1, "incarnation": "a-1"}
        row |= {"address": "", "accepts_runs": True}
        self._execute(insert(tables.consumer_group).values(group))
        self._execute(insert(tables.worker_instance).values(row))

    def beat(self) -> None:
        """Add 1 to its counter."""
        self._execute(text("UPDATE loghub_client_worker_instance SET lease_id = lease_id + 1"))

    def _execute(self, statement: Executable) -> None:
        with self._engine.connect().execution_options(**{WRITE_OPTION: True}) as connection:
            connection.execute(statement)
            connection.commit()


def test_nobody_upgrades_beside_a_node_that_could_not_go_on(
    url: str, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    upgrade_to(engine, "0006")
    node = OldNode(engine, timeout_s=60.0)
    monkeypatch.setattr(readiness.time, "sleep", lambda _: node.beat())
    store = open_store(url)
    with pytest.raises(OlderNodesBeat, match=rf"still beat: {A} of {KEY}\."):
        store.upgrade()
    assert store.schema_revision() == "0006"
    store.upgrade(force=True)
    assert store.schema_revision() == HEAD
    (row,) = store.snapshot(KEY).nodes
    assert (row.release_version, row.schema_revision) == ("", "")
    store.upgrade()
    assert store.register(KEY, Node(B, 0, "b-1"), observer="test") == Registered(1)
    row = store.snapshot(KEY).nodes[1]
    assert (row.release_version, row.schema_revision) == (RELEASE, HEAD)
    store.close()


def test_a_node_that_fell_silent_is_upgraded_after_its_timeout(url: str, engine: Engine) -> None:
    upgrade_to(engine, "0006")
    OldNode(engine, timeout_s=0.05)
    store = open_store(url)
    store.upgrade()
    assert store.schema_revision() == HEAD
    store.close()


def test_a_node_that_started_during_the_upgrade_is_named(
    url: str, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It connected before the revision was written, and goes on under the new schema."""
    upgrade_to(engine, "0006")
    node = OldNode(engine, timeout_s=0.05)
    upgraded = schema.upgrade

    def beside(engine: Engine) -> None:
        upgraded(engine)
        node.beat()

    monkeypatch.setattr(schema, "upgrade", beside)
    store = open_store(url)
    with pytest.raises(OlderNodesBeat, match=A):
        store.upgrade()
    store.close()
