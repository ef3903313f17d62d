"""Dagster's storage on a server that goes silent or away, and how often it connects."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Generator
from pathlib import Path

import pytest
from dagster import DagsterInstance
from sqlalchemy.exc import DBAPIError

from dagster_leasehold.orchestration import dagster_storage
from dagster_leasehold.orchestration.instance import nodes_text
from tests import mariadb as mariadb_server
from tests.freezing import freeze
from tests.mariadb import MariaDB

pytestmark = [pytest.mark.mariadb, pytest.mark.timeout(120)]


@pytest.fixture
def server() -> Generator[MariaDB]:
    with mariadb_server.running() as server:
        yield server


@pytest.fixture
def instance(
    server: MariaDB, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Generator[DagsterInstance]:
    """The instance of a `dagster.yaml` of ours, with a short limit."""
    server.create_database("dagster")
    address = {
        "HOSTNAME": "127.0.0.1",
        "PORT": str(server.port),
        "USERNAME": server.user,
        "PASSWORD": server.password,
        "DATABASE": "dagster",
    }
    for name, value in address.items():
        monkeypatch.setenv(f"DAGSTER_MYSQL_{name}", value)
    text, changed = re.subn(r"(statement_limit_s): 30", r"\1: 1", nodes_text(mysql=True))
    assert changed == 1
    monkeypatch.setattr(dagster_storage, "CONNECT_LIMIT_S", 1)
    (tmp_path / "dagster.yaml").write_text(text)
    with DagsterInstance.from_config(str(tmp_path)) as instance:
        yield instance


@pytest.mark.parametrize("of_pages", [False, True])
def test_a_silent_server_times_out_and_is_used_again_once_it_answers(
    server: MariaDB, instance: DagsterInstance, of_pages: bool
) -> None:
    """Goal: neither the daemon nor a page waits for ever, and no late reply is taken for another's.

    The pages keep a connection, so that the server freezes after it was made.
    """
    if of_pages:
        instance.optimize_for_webserver(
            statement_timeout=15_000, pool_recycle=3_600, max_overflow=20
        )
    instance.add_dynamic_partitions("shards", ["1", "2"])
    freeze(server.pid)
    try:
        with pytest.raises(DBAPIError if of_pages else Exception):
            instance.get_dynamic_partitions("shards")
    finally:
        os.kill(server.pid, signal.SIGCONT)
    assert instance.get_runs_count() == 0
    assert instance.get_dynamic_partitions("shards") == ["1", "2"]


def test_the_storage_reuses_a_connection_and_replaces_one_that_the_server_closed(
    server: MariaDB, instance: DagsterInstance
) -> None:
    """Goal: the driver reads the certificates of the host once, and not for each statement."""
    instance.add_dynamic_partitions("shards", ["1"])
    sessions = set[int]()
    for _ in range(20):
        assert instance.get_dynamic_partitions("shards") == ["1"]
        sessions |= resting_sessions(server)
    # At most one for each of the three storages.
    assert 1 <= len(sessions) <= 3
    server.execute(*(f"KILL {session}" for session in sessions))
    assert instance.get_dynamic_partitions("shards") == ["1"]


def resting_sessions(server: MariaDB) -> set[int]:
    rows = server.execute(
        "SELECT id FROM information_schema.processlist WHERE db = 'dagster' AND command = 'Sleep'"
    )
    return {row[0] for row in rows}


def test_the_storage_drops_connections_to_a_read_only_server(
    server: MariaDB, instance: DagsterInstance
) -> None:
    """Goal: after a fail-over, no connection to the former primary stays in use."""
    instance.add_dynamic_partitions("shards", ["1"])
    old = resting_sessions(server)
    server.execute("SET GLOBAL read_only = ON")
    with pytest.raises(DBAPIError):
        instance.add_dynamic_partitions("shards", ["2"])
    server.execute("SET GLOBAL read_only = OFF")
    instance.add_dynamic_partitions("shards", ["2"])
    assert instance.get_dynamic_partitions("shards") == ["1", "2"]
    assert old - resting_sessions(server), "the connection that got the error is gone"
