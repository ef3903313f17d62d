"""Stores on real servers for the tests of their pitfalls."""

from __future__ import annotations

from collections.abc import Generator
from itertools import count

import pytest

from dagster_leasehold.lease_store import open_store
from dagster_leasehold.lease_store.identifiers import GroupKey
from dagster_leasehold.lease_store.sql_store import SqlStore
from dagster_leasehold.lease_store.tables import metadata
from tests.conformance.world import World
from tests.database_server import DatabaseServer
from tests.integration.lease_store.commit_proxy import CommitProxy

KEY = GroupKey.parse("group", "stream")
_numbers = count(1)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run tests that use `server` on the servers that their marker `servers` names."""
    if "server" in metafunc.fixturenames:
        marker = metafunc.definition.get_closest_marker("servers")
        names = marker.args if marker is not None else ("mariadb",)
        servers = [pytest.param(name, marks=getattr(pytest.mark, name)) for name in names]
        metafunc.parametrize("server", servers, indirect=True)


@pytest.fixture
def server(request: pytest.FixtureRequest) -> DatabaseServer:
    """One of the session's servers."""
    return request.getfixturevalue(request.param)


@pytest.fixture
def server_url(server: DatabaseServer) -> Generator[str]:
    """The URL of a fresh, empty database on it."""
    name = f"served_{next(_numbers)}"
    yield server.create_database(name)
    server.drop_database(name)


@pytest.fixture(scope="session")
def with_tables() -> dict[str, str]:
    """The URL of the one database with tables of each server that was needed yet."""
    return {}


@pytest.fixture
def store_url(server: DatabaseServer, with_tables: dict[str, str]) -> str:
    """The URL of a database with empty tables; creating them again would take longer than a
    test.
    """
    name, kind = "with_tables", type(server).__name__
    if kind in with_tables:
        server.execute(*(f"DELETE FROM {table}" for table in metadata.tables), database=name)
    else:
        with_tables[kind] = server.create_database(name)
        open_store(with_tables[kind], upgrade=True).close()
    return with_tables[kind]


@pytest.fixture
def store(store_url: str) -> Generator[SqlStore]:
    opened = open_store(store_url)
    yield opened
    opened.close()


@pytest.fixture
def world(store: SqlStore) -> World:
    return World(store, KEY)


@pytest.fixture
def proxy(server: DatabaseServer) -> Generator[CommitProxy]:
    opened = CommitProxy(server.port)
    yield opened
    opened.close()


@pytest.fixture
def through_proxy(server: DatabaseServer, store_url: str, proxy: CommitProxy) -> Generator[World]:
    """A world whose every packet goes through the proxy, which could not read TLS."""
    database = store_url.rsplit("/", 1)[1]
    opened = open_store(f"{server.url(database, port=proxy.port)}?ssl_mode=disabled")
    yield World(opened, KEY)
    opened.close()
