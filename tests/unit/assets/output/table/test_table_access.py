"""One process renews the credentials of a table: in time, once, and no more often than needed."""

from __future__ import annotations

from threading import Event, Thread
from types import SimpleNamespace
from typing import Any

import pytest
from pyiceberg.catalog.rest import Capability

from dagster_leasehold.assets.output.table.table_access import HeldCredentials, TableAccess
from dagster_leasehold.assets.table_settings import CatalogSettings
from dagster_leasehold.lease_store.publication_rows import TableName

NOW_S = 1_800_000_000.0
LIFE_S = 100.0
ACCESS = TableAccess(CatalogSettings("lake", {"type": "rest"}), TableName("lake", "a.b", "orders"))


class Service:
    """A catalog as PyIceberg's client shows it; a hostile table has properties of a store."""

    def __init__(self) -> None:
        self.now_s = NOW_S
        self.loads = self.renewals = 0
        self.away: Exception | None = None
        self.before = lambda: None
        self._supported_endpoints = {Capability.V1_LOAD_CREDENTIALS}

    def clock(self) -> float:
        return self.now_s

    def opened(self, name: str, properties: Any) -> Service:
        assert (name, properties["snapshot-loading-mode"]) == ("lake", "refs")
        return self

    def credentials(self) -> dict[str, str]:
        return {
            "s3.access-key-id": f"id-{self.loads}-{self.renewals}",
            "s3.secret-access-key": "key",
            "s3.session-token-expires-at-ms": str(int(1000 * (self.now_s + LIFE_S))),
        }

    def load_table(self, name: tuple[str, ...]) -> Any:
        assert name == ("a", "b", "orders")
        self.answer()
        self.loads += 1
        stored = {"s3.endpoint": "http://evil.example.com"}
        io = SimpleNamespace(
            properties={**stored, "client.region": "eu-west-1", "token": "x", **self.credentials()}
        )
        metadata = SimpleNamespace(location="s3://bucket/orders/", properties=stored)
        return SimpleNamespace(metadata=metadata, io=io)

    def load_credentials(self, name: tuple[str, ...], location: str) -> dict[str, str]:
        assert location == "s3://bucket/orders"
        self.answer()
        self.renewals += 1
        return self.credentials()

    def answer(self) -> None:
        self.before()
        if self.away:
            raise self.away


@pytest.fixture
def service() -> Service:
    return Service()


@pytest.fixture
def held(service: Service) -> HeldCredentials:
    return HeldCredentials(ACCESS, service.opened, service.clock)


def key(held: HeldCredentials) -> str:
    newest = held.newest()
    assert newest is not None
    return newest.arguments["access_key"]


def test_credentials_are_renewed_halfway(service: Service, held: HeldCredentials) -> None:
    assert held.location() == "s3://bucket/orders"
    assert key(held) == "id-1-0"
    client = held.client()
    service.now_s += LIFE_S / 2 - 1
    assert held.client() is client
    service.now_s += 1
    assert key(held) == "id-1-1"
    assert held.client() is not client
    assert (service.loads, service.renewals) == (1, 1)
    newest = held.newest()
    assert newest is not None
    assert newest.arguments["region"] == "eu-west-1"
    assert "endpoint" not in newest.arguments, "a table cannot redirect its readers"


def test_a_catalog_without_separate_credentials_loads_the_table(
    service: Service, held: HeldCredentials
) -> None:
    service._supported_endpoints = set()
    key(held)
    service.now_s += LIFE_S
    assert key(held) == "id-2-0"


def test_while_it_is_away_it_is_asked_halfway_again_and_again(
    service: Service, held: HeldCredentials
) -> None:
    key(held)
    asked: list[float] = []
    service.away = ConnectionError("refused")
    service.before = lambda: asked.append(service.now_s - NOW_S)
    while service.now_s < NOW_S + LIFE_S - 1:
        service.now_s += 0.25
        assert key(held) == "id-1-0"
    assert asked[:3] == [50.0, 75.0, 87.5]
    service.now_s = NOW_S + LIFE_S
    with pytest.raises(OSError, match=r"^Catalog lake does not .* \(ConnectionError: refused\)"):
        held.client()
    service.away = None
    assert key(held) == "id-1-1"


def test_one_thread_renews_and_the_others_continue(service: Service, held: HeldCredentials) -> None:
    key(held)
    service.now_s += LIFE_S / 2
    begun, go = Event(), Event()

    def slow() -> None:
        begun.set()
        assert go.wait(10)

    service.before = slow
    renewing = Thread(target=held.newest)
    renewing.start()
    assert begun.wait(10)
    assert key(held) == "id-1-0", "nobody else waits"
    go.set()
    renewing.join()
    assert key(held) == "id-1-1"
    assert service.renewals == 1
