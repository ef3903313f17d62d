"""The account of a running node: exactly the grants of the operations page, and no verb more."""

from __future__ import annotations

import re
from collections.abc import Generator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr

from dagster_leasehold.lease_store import database_report, open_store
from dagster_leasehold.lease_store.errors import StoreError
from dagster_leasehold.lease_store.identifiers import GroupKey
from dagster_leasehold.lease_store.rules.verification import verify
from dagster_leasehold.orchestration.command_line import main
from tests.conformance.test_retention import consumed, merge, prune_all
from tests.conformance.world import World
from tests.database_server import DatabaseServer

OPERATIONS = Path(__file__).parents[2] / "docs/how-to/operations.md"
DENIED = {1044, 1045, 1094, 1095, 1142, 1227, 1370}
PRUNED = {"lease_journal", "batch", "outbox", "gap", "table_change"}
FORBIDDEN = [
    "DELETE FROM consumer_group",
    "DELETE FROM loghub_client_shard_lease",
    "DELETE FROM loghub_client_worker_instance",
    "DELETE FROM shard_summary",
    "DELETE FROM event_window",
    "DELETE FROM rewrite_claim",
    "DELETE FROM delivery_claim",
    "DELETE FROM publication",
    "DELETE FROM iceberg_tables",
    "TRUNCATE TABLE batch",
    "DROP TABLE batch",
    "ALTER TABLE batch ADD COLUMN more INT",
    "CREATE TABLE more (id INT)",
    "CREATE INDEX more ON batch (run)",
    "CREATE TRIGGER more BEFORE UPDATE ON batch FOR EACH ROW SET @a = 1",
    "CREATE VIEW more AS SELECT 1",
    "CREATE USER 'more'@'%'",
    "GRANT DELETE ON *.* TO 'node'@'127.0.0.1'",
    "SELECT * FROM mysql.user",
    "SELECT LOAD_FILE('/etc/passwd')",
    "SELECT 'x' INTO OUTFILE '/tmp/leasehold-outfile'",
    "SET GLOBAL read_only = 0",
    "SET GLOBAL event_scheduler = ON",
    "KILL 1",
    "SHUTDOWN",
]


@pytest.fixture(
    scope="module",
    params=[
        pytest.param("mariadb", marks=pytest.mark.mariadb),
        pytest.param("mysql", marks=pytest.mark.mysql),
    ],
)
def server(request: pytest.FixtureRequest) -> DatabaseServer:
    return request.getfixturevalue(request.param)


@pytest.fixture(scope="module")
def server_url(server: DatabaseServer) -> Generator[str]:
    """The URL of a database on it."""
    yield server.create_database("granted")
    server.drop_database("granted")


@pytest.fixture(scope="module")
def database(server: DatabaseServer, server_url: str) -> Generator[str]:
    """A database with our tables, and the account `node` as the operations page makes it."""
    open_store(server_url, upgrade=True).close()
    name = server_url.rsplit("/", 1)[1]
    granted = re.findall(r"^GRANT ([A-Z, ]+) ON leasehold\.\* TO 'leasehold'@", text(), re.M)
    assert granted == ["SELECT, INSERT, UPDATE"]
    deleted = re.findall(r"^GRANT DELETE ON leasehold\.(\w+) TO 'leasehold'@", text(), re.M)
    assert set(deleted) == PRUNED
    server.execute(
        f"CREATE USER 'node'@'127.0.0.1' IDENTIFIED BY '{server.password}'",
        f"GRANT {granted[0]} ON `{name}`.* TO 'node'@'127.0.0.1'",
        *(f"GRANT DELETE ON `{name}`.`{table}` TO 'node'@'127.0.0.1'" for table in deleted),
    )
    yield name
    server.execute("DROP USER 'node'@'127.0.0.1'")


def text() -> str:
    return OPERATIONS.read_text("utf-8")


def as_node(server: DatabaseServer, database: str) -> Any:
    import pymysql

    return pymysql.connect(
        host="127.0.0.1", port=server.port, user="node", password=server.password,
        database=database, autocommit=True,
    )  # fmt: skip


def test_the_account_of_a_node_has_only_the_documented_grants(
    server: DatabaseServer, database: str
) -> None:
    rows = [str(row[0]) for row in server.execute("SHOW GRANTS FOR 'node'@'127.0.0.1'")]
    usage, *granted = rows
    assert usage.startswith("GRANT USAGE ON *.* TO")
    assert sorted(granted) == sorted(
        [
            f"GRANT SELECT, INSERT, UPDATE ON `{database}`.* TO `node`@`127.0.0.1`",
            *(f"GRANT DELETE ON `{database}`.`{table}` TO `node`@`127.0.0.1`" for table in PRUNED),
        ]
    )


def test_a_node_deletes_old_history_and_nothing_else(server: DatabaseServer, database: str) -> None:
    world = pruned_world(server, database, "granted")
    assert prune_all(world) > 0
    assert verify(world.store, world.key) == []
    world.store.close()


def test_the_doctor_names_each_right_that_is_missing(server: DatabaseServer, database: str) -> None:
    url = SecretStr(f"mysql+pymysql://node:{server.password}@127.0.0.1:{server.port}/{database}")
    assert set(database_report.PRUNED) == PRUNED
    assert database_report.database_report(url).refused == ()
    revoked = f"DELETE ON `{database}`.`gap`"
    server.execute(f"REVOKE {revoked} FROM 'node'@'127.0.0.1'")
    try:
        report = database_report.database_report(url)
    finally:
        server.execute(f"GRANT {revoked} TO 'node'@'127.0.0.1'")
    assert report.refused == ("DELETE on gap",)
    assert report.server.startswith(("MariaDB 1", "MySQL 8", "MySQL 9"))
    assert abs(report.now - datetime.now(UTC)) < timedelta(minutes=1)


def test_the_doctor_says_whether_the_account_has_its_rights(
    server: DatabaseServer,
    database: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def line() -> str:
        main(["doctor", "--home", str(tmp_path)])
        [line] = [each for each in capsys.readouterr().out.splitlines() if " privileges: " in each]
        return line

    url = f"mysql+pymysql://node:{server.password}@127.0.0.1:{server.port}/{database}"
    monkeypatch.setenv("LEASEHOLD_DATABASE_URL", url)
    assert line().startswith("ok ")
    revoked = f"DELETE ON `{database}`.`batch`"
    server.execute(f"REVOKE {revoked} FROM 'node'@'127.0.0.1'")
    try:
        assert line() == (
            "failed   privileges: the account lacks these privileges: DELETE on batch. Grant them."
        )
    finally:
        server.execute(f"GRANT {revoked} TO 'node'@'127.0.0.1'")


def test_a_node_without_the_delete_grant_reports_it_once(
    server: DatabaseServer, database: str
) -> None:
    account = "'node'@'127.0.0.1'"
    server.execute(*(f"REVOKE DELETE ON `{database}`.`{name}` FROM {account}" for name in PRUNED))
    world = pruned_world(server, database, "refused")
    try:
        with pytest.raises(StoreError, match=r"error 1142.*grant the account"):
            prune_all(world)
    finally:
        server.execute(*(f"GRANT DELETE ON `{database}`.`{name}` TO {account}" for name in PRUNED))
    assert len(world.store.batches(world.key)) == 5
    assert verify(world.store, world.key) == []
    world.store.close()


def pruned_world(server: DatabaseServer, database: str, group: str) -> World:
    """A store of the account `node`, with a shard that has old history."""
    url = f"mysql+pymysql://node:{server.password}@127.0.0.1:{server.port}/{database}"
    world = World(open_store(url), GroupKey.parse(group, "stream"))
    consumed(world, 5)
    merge(world, 0, 3)
    return world


@pytest.mark.parametrize("statement", FORBIDDEN)
def test_the_account_of_a_node_cannot_run_forbidden_statements(
    server: DatabaseServer, database: str, statement: str
) -> None:
    connection = as_node(server, database)
    try:
        with connection.cursor() as cursor:
            if "LOAD_FILE" in statement:
                # Without the privilege this one answers NULL instead of refusing.
                cursor.execute(statement)
                assert cursor.fetchall() == ((None,),)
                return
            with pytest.raises(Exception) as caught:
                cursor.execute(statement)
            assert caught.value.args[0] in DENIED, caught.value
    finally:
        connection.close()


def test_the_server_runs_one_statement_at_a_time(server: DatabaseServer, server_url: str) -> None:
    """No second statement after a `;`, and no file of the client."""
    store = open_store(server_url, upgrade=True)
    with store._transactions.engine.connect() as connection:
        for statement, number in (
            ("SELECT 1; SELECT 2", 1064),
            ("LOAD DATA LOCAL INFILE '/etc/hosts' INTO TABLE gap", None),
        ):
            with pytest.raises(Exception) as caught:
                connection.exec_driver_sql(statement)
            error = getattr(caught.value, "orig", None)
            assert error is not None
            if number is not None:
                assert error.args[0] == number
    assert server.execute("SELECT COUNT(*) FROM gap", database=server_url.rsplit("/", 1)[1]) == [
        (0,)
    ]
    store.close()
