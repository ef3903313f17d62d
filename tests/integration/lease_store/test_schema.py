"""The schema: the tables of the migrations, the releases that can use it, and concurrent starts."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Engine, text

from dagster_leasehold.lease_store import open_store
from dagster_leasehold.lease_store.errors import SchemaTooNew, SchemaTooOld, StoreError
from dagster_leasehold.lease_store.group_rows import Group
from dagster_leasehold.lease_store.identifiers import GroupKey
from dagster_leasehold.lease_store.release import HEAD, REVISIONS
from dagster_leasehold.lease_store.schema import VERSION_TABLE
from dagster_leasehold.lease_store.tables import metadata
from dagster_leasehold.lease_store.transactions import open_engine, parse_url
from tests.conformance.published import Publisher
from tests.conformance.world import A, World
from tests.database_server import DatabaseServer

ROOT = Path(__file__).parents[3]
KEY = GroupKey.parse("group", "stream")
PROCESSES = 5


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


def execute(engine: Engine, *queries: str) -> None:
    with engine.connect() as connection:
        for query in queries:
            connection.execute(text(query))
        connection.commit()


def test_migrations_create_the_tables_of_the_code(url: str, engine: Engine) -> None:
    open_store(url, upgrade=True).close()

    def ours(_object: Any, name: str | None, kind: str, *_: Any) -> bool:
        return not (kind == "table" and name in (VERSION_TABLE, "sqlite_sequence"))

    with engine.connect() as connection:
        options = {"compare_type": True, "include_object": ours}
        context = MigrationContext.configure(connection, opts=options)
        assert compare_metadata(context, metadata) == []


def test_the_comparison_of_schemas_finds_a_difference(url: str, engine: Engine) -> None:
    """The test before is worth something only if it fails on a schema that differs."""
    open_store(url, upgrade=True).close()
    execute(engine, "DROP TABLE gap")
    with engine.connect() as connection:
        context = MigrationContext.configure(connection)
        assert any("gap" in str(change) for change in compare_metadata(context, metadata))


def test_the_code_knows_all_revisions() -> None:
    config = Config()
    config.set_main_option("script_location", "dagster_leasehold.lease_store:migrations")
    scripts = ScriptDirectory.from_config(config)
    assert tuple(reversed([script.revision for script in scripts.walk_revisions()])) == REVISIONS
    assert scripts.get_current_head() == HEAD


def test_upgrading_twice_changes_nothing(url: str) -> None:
    store = open_store(url, upgrade=True)
    assert store.schema_revision() == HEAD
    store.create_group(Group(KEY))
    store.upgrade()
    assert [group.key for group in store.groups()] == [KEY]
    store.close()


def test_an_embedded_store_creates_and_upgrades_itself(tmp_path: Path) -> None:
    store = open_store(f"sqlite:///{tmp_path}/deep/er/leases.db")
    assert not (tmp_path / "deep").exists()
    store.create_group(Group(KEY))
    assert store.schema_revision() == HEAD
    store.close()


@pytest.mark.servers("mariadb", "mysql")
def test_a_server_without_tables_is_refused(server_url: str) -> None:
    store = open_store(server_url)
    with pytest.raises(SchemaTooOld, match="db upgrade"):
        store.groups()
    assert store.schema_revision() is None
    store.upgrade()
    assert store.groups() == []
    store.close()


def test_a_newer_schema_is_refused_and_unchanged(url: str, engine: Engine) -> None:
    open_store(url, upgrade=True).close()
    newer = f"UPDATE {VERSION_TABLE} SET version_num = '9999', oldest_revision = '9998'"
    execute(engine, newer)
    store = open_store(url)
    for use in (store.groups, store.upgrade):
        with pytest.raises(SchemaTooNew, match="9999"):
            use()
    assert store.schema_revision() == "9999"
    store.close()


def test_processes_stop_while_a_newer_release_changes_tables(url: str, engine: Engine) -> None:
    """The oldest revision is raised first; the former release neither connects nor lowers it."""
    store = open_store(url, upgrade=True)
    execute(engine, f"UPDATE {VERSION_TABLE} SET oldest_revision = '9999'")
    store.close()
    store = open_store(url)
    for use in (store.groups, store.upgrade):
        with pytest.raises(SchemaTooNew, match="9999"):
            use()
    store.close()


def test_a_newer_schema_with_additions_only_is_used(url: str, engine: Engine) -> None:
    """Nodes of this release continue while others are of the next one; an upgrade is not undone."""
    store = open_store(url, upgrade=True)
    store.close()
    execute(engine, f"UPDATE {VERSION_TABLE} SET version_num = '9999'")
    world = World(store, KEY)
    world.group()
    world.join(A)
    store.upgrade()
    assert store.schema_revision() == "9999"
    store.close()


@pytest.mark.servers("mariadb", "mysql")
def test_a_connected_process_notices_a_newer_schema(
    server: DatabaseServer, server_url: str
) -> None:
    """The pool renews connections all the time; the next verb is refused."""
    store = open_store(server_url, upgrade=True)
    assert store.groups() == []
    database = server_url.rsplit("/", 1)[1]
    server.execute(f"UPDATE {VERSION_TABLE} SET oldest_revision = '9999'", database=database)
    assert store.groups() == []
    store.close()
    assert store.groups() == []
    with pytest.raises(SchemaTooNew, match="9999"):
        store.groups()
    store.close()


def test_the_version_table_is_our_own(url: str, engine: Engine) -> None:
    """Another program's Alembic history in the same database is neither read nor written."""
    execute(
        engine,
        "CREATE TABLE alembic_version (version_num VARCHAR(32))",
        "INSERT INTO alembic_version VALUES ('theirs')",
    )
    open_store(url, upgrade=True).close()
    with engine.connect() as connection:
        versions = connection.execute(text("SELECT version_num FROM alembic_version"))
        assert versions.scalars().all() == ["theirs"]


def test_an_upgrade_keeps_existing_catalog_tables(url: str, engine: Engine) -> None:
    """Tables of this name that another program created before Iceberg had views stay unchanged."""
    execute(
        engine,
        "CREATE TABLE iceberg_tables (catalog_name VARCHAR(255) NOT NULL, "
        "table_namespace VARCHAR(255) NOT NULL, table_name VARCHAR(255) NOT NULL, "
        "metadata_location VARCHAR(1000), previous_metadata_location VARCHAR(1000), "
        "PRIMARY KEY (catalog_name, table_namespace, table_name))",
        "INSERT INTO iceberg_tables VALUES ('their', 'own', 'table', 'there', NULL)",
    )
    store = open_store(url, upgrade=True)
    world = World(store, KEY)
    world.group()
    world.join(A)
    Publisher(world).start()
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


def test_a_store_of_a_version_before_0_2_is_refused_and_unchanged(url: str, engine: Engine) -> None:
    open_store(url, upgrade=True).close()
    execute(engine, f"UPDATE {VERSION_TABLE} SET version_num = '0009', oldest_revision = NULL")
    store = open_store(url)
    for use in (store.groups, store.upgrade):
        with pytest.raises(SchemaTooOld, match=r"before 0\.2\.0 .*\(schema 0009\)"):
            use()
    assert store.schema_revision() == "0009"
    store.close()


def test_many_processes_create_one_embedded_store_together(tmp_path: Path) -> None:
    """They start together on an empty folder: all succeed, on one set of tables."""
    program = (
        "import sys\n"
        "from dagster_leasehold.lease_store import open_store\n"
        "sys.stdin.readline()\n"
        "store = open_store(sys.argv[1])\n"
        "print(store.groups(), store.schema_revision())\n"
    )
    url = f"sqlite:///{tmp_path}/leases.db"
    started = [
        subprocess.Popen(
            [sys.executable, "-c", program, url],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for _ in range(PROCESSES)
    ]
    try:
        for process in started:
            assert process.stdin is not None
            process.stdin.write("go\n")
            process.stdin.flush()
        results = [process.communicate(timeout=120) for process in started]
    finally:
        for process in started:
            process.kill()
            process.wait()
    assert results == [(f"[] {HEAD}\n", "")] * PROCESSES


def test_an_upgrade_that_fails_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("not a folder")
    store = open_store(f"sqlite:///{tmp_path}/file/leases.db")
    with pytest.raises(StoreError, match="writable"):
        store.groups()


@pytest.mark.servers("mariadb", "mysql")
def test_the_account_of_a_node_needs_no_delete_and_no_ddl(server: Any, server_url: str) -> None:
    """The account of a running node needs no DELETE and no DDL."""
    from dagster_leasehold.lease_store.outcomes import Changed, Settled
    from tests.conformance.published import Publisher
    from tests.conformance.world import X

    open_store(server_url, upgrade=True).close()
    database = server_url.rsplit("/", 1)[1]
    server.grant(database, "SELECT", "INSERT", "UPDATE", user="runner")
    store = open_store(server.url(database, user="runner"))
    world = World(store, KEY)
    world.group()
    world.join(A)
    world.add(X)
    (tenure,) = world.hold(A, X)
    assert isinstance(world.consume(tenure, "0", "5", finished=True), Changed)
    publisher = Publisher(world)
    publisher.start()
    publisher.publish()
    assert isinstance(store.release_publish_lock(publisher.own), Settled)
    store.leave(KEY, A, "a-1")
    with pytest.raises(StoreError, match="1142"):
        store.delete_group(KEY)
    with pytest.raises(StoreError, match="refused"):
        schema_dropped(store)
    store.close()


def schema_dropped(store: Any) -> None:
    store._transactions.write("test", lambda tx: tx.connection.execute(text("DROP TABLE gap")))


def test_revisions_are_in_order() -> None:
    assert list(REVISIONS) == sorted(REVISIONS)
