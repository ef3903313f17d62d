"""Stores on a real MariaDB for the tests of its pitfalls."""

from __future__ import annotations

from collections.abc import Generator

import pytest

from lease_store import open_store
from lease_store.identifiers import GroupKey
from lease_store.sql_store import SqlStore
from tests.conformance.world import World
from tests.integration.lease_store.commit_proxy import CommitProxy
from tests.mariadb import MariaDB

KEY = GroupKey.parse("group", "stream")


@pytest.fixture
def store(mariadb_url: str) -> Generator[SqlStore]:
    opened = open_store(mariadb_url, upgrade=True)
    yield opened
    opened.close()


@pytest.fixture
def world(store: SqlStore) -> World:
    return World(store, KEY)


@pytest.fixture
def proxy(mariadb: MariaDB) -> Generator[CommitProxy]:
    opened = CommitProxy(mariadb.port)
    yield opened
    opened.close()


@pytest.fixture
def through_proxy(mariadb: MariaDB, mariadb_url: str, proxy: CommitProxy) -> Generator[World]:
    """A world whose every packet goes through the proxy."""
    open_store(mariadb_url, upgrade=True).close()
    database = mariadb_url.rsplit("/", 1)[1]
    opened = open_store(mariadb.url(database, port=proxy.port))
    yield World(opened, KEY)
    opened.close()
