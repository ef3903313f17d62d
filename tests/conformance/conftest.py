"""The stores that every case of this folder runs on."""

from __future__ import annotations

from collections.abc import Generator
from itertools import count
from typing import TYPE_CHECKING

import pytest

from dagster_leasehold.lease_store import open_store
from dagster_leasehold.lease_store.identifiers import GroupKey
from dagster_leasehold.lease_store.memory_store import MemoryStore
from dagster_leasehold.lease_store.store import LeaseStore
from tests.conformance.world import World

if TYPE_CHECKING:
    from tests.database_server import DatabaseServer

_streams = count(1)
STORES = [
    "memory",
    "sqlite",
    pytest.param("mariadb", marks=pytest.mark.mariadb),
    pytest.param("mysql", marks=pytest.mark.mysql),
]


on_databases = pytest.mark.parametrize("store", STORES[1:], indirect=True)
"""For cases that compare a database with the model, which they play themselves."""

SHORT_ON_MYSQL = (
    "test_batches",
    "test_publications",
    "test_races",
    "test_tenures",
    "test_transfers",
)
"""The files whose cases compete for rows: servers differ most in their locks."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Play most on MySQL with the long tests, and a quarter of the random histories.

    Its statements are those of MariaDB, where all of it is played.
    """
    left_out: list[pytest.Item] = []
    for item in items:
        case = getattr(item, "callspec", None)
        parameters = case.params if case is not None else {}
        if parameters.get("store") != "mysql":
            continue
        if parameters.get("seed", 0) % 4:
            left_out.append(item)
        elif item.path.stem not in SHORT_ON_MYSQL:
            item.add_marker(pytest.mark.long)
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in left_out]


@pytest.fixture(scope="session")
def stores(request: pytest.FixtureRequest) -> Generator[dict[str, LeaseStore]]:
    opened: dict[str, LeaseStore] = {}
    yield opened
    for store in opened.values():
        store.close()


@pytest.fixture(params=STORES)
def store(
    request: pytest.FixtureRequest,
    stores: dict[str, LeaseStore],
    tmp_path_factory: pytest.TempPathFactory,
) -> LeaseStore:
    """A store of each kind; tests share it, each with a separate stream."""
    kind = request.param
    if kind not in stores:
        if kind == "memory":
            stores[kind] = MemoryStore()
        elif kind == "sqlite":
            stores[kind] = open_store(f"sqlite:///{tmp_path_factory.mktemp('store')}/leases.db")
        else:
            server: DatabaseServer = request.getfixturevalue(kind)
            stores[kind] = open_store(server.create_database("conformance"), upgrade=True)
    return stores[kind]


@pytest.fixture
def world(store: LeaseStore) -> World:
    """A group name in a stream that no other case uses; the case creates the group."""
    return World(store, GroupKey.parse("group", f"stream-{next(_streams)}"))
