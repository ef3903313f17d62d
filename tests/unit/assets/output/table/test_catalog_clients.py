"""Catalogs that accept a connection, or a request, and never answer."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Generator
from threading import Event
from typing import Any, cast

import pytest
from pyiceberg.catalog import glue
from pyiceberg.catalog.noop import NoopCatalog
from pyiceberg.exceptions import NoSuchTableError
from typing_extensions import override

from dagster_leasehold.assets.errors import TableUnavailable
from dagster_leasehold.assets.output.table import catalog_clients
from dagster_leasehold.assets.output.table.other_catalog import open_catalog
from dagster_leasehold.assets.table_settings import CatalogSettings
from dagster_leasehold.lease_store.publication_rows import TableName
from tests.waiting import wait_for

NOTHING = cast("Any", None)
NAME = TableName("lake", "leasehold", "orders")
AWS = {"region": "eu-central-1", "access-key-id": "test", "secret-access-key": "hush"}
ANSWERED = Event()
"""Set to have the requests to `SilentCatalog` answered."""


class SilentCatalog(NoopCatalog):
    """A catalog of the user's own, which blocks until `ANSWERED`."""

    @override
    def load_table(self, identifier: Any) -> Any:
        ANSWERED.wait()
        raise NoSuchTableError


OWN = {"py-catalog-impl": f"{__name__}.SilentCatalog"}


@pytest.fixture(autouse=True)
def answers(monkeypatch: pytest.MonkeyPatch) -> Generator[None]:
    """Wait a fifth of a second for answers, and leave no request open."""
    monkeypatch.setattr(catalog_clients, "ANSWER_S", 0.2)
    ANSWERED.clear()
    yield
    ANSWERED.set()
    wait_for("the requests' ends", lambda: not requests_in_flight(), 10)


def requests_in_flight() -> int:
    return sum(thread.name.startswith("catalog lake") for thread in threading.enumerate())


def find_table(properties: dict[str, str]) -> None:
    open_catalog(CatalogSettings("lake", properties), NAME, NOTHING, NOTHING).find()


def properties_of(kind: str, port: int) -> dict[str, str]:
    server = f"127.0.0.1:{port}"
    return {
        "rest": {"type": "rest", "uri": f"http://{server}"},
        "token": {"type": "rest", "uri": f"http://{server}", "credential": "id:hush"},
        "hive": {"uri": f"thrift://{server}"},
        "glue": {"type": "glue", "glue.endpoint": f"http://{server}"}
        | {f"glue.{name}": text for name, text in AWS.items()},
        "dynamodb": {"type": "dynamodb"} | {f"dynamodb.{name}": text for name, text in AWS.items()},
        "mysql": {"type": "sql", "uri": f"mysql+pymysql://reader@{server}/lake"},
    }[kind]


@pytest.mark.parametrize("kind", ["rest", "token", "hive", "glue", "dynamodb", "mysql"])
@pytest.mark.filterwarnings("ignore:Deprecated:DeprecationWarning")
@pytest.mark.timeout(20)
def test_a_server_that_never_answers_times_out(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: the node that publishes releases the publish lock."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        monkeypatch.setenv("AWS_ENDPOINT_URL_DYNAMODB", f"http://127.0.0.1:{port}")
        # The rest of the request ends with its first try.
        monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
        monkeypatch.setattr(glue, "MAX_RETRIES", 1)
        with pytest.raises(TableUnavailable, match=r"Catalog lake .*(tim(ed out|eout)|no answer)"):
            find_table(properties_of(kind, port))


@pytest.mark.timeout(20)
def test_a_host_that_drops_connections_times_out() -> None:
    """Method: a server's backlog is full, so that it leaves the next connection unanswered."""
    with socket.create_server(("127.0.0.1", 0), backlog=0) as full:
        address = full.getsockname()
        with socket.create_connection(address), pytest.raises(TableUnavailable):
            find_table(properties_of("hive", address[1]))


@pytest.mark.timeout(20)
def test_a_request_to_a_silent_metastore_times_out() -> None:
    """Goal: a publisher that retries for a year leaves no threads."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        with pytest.raises(TableUnavailable):
            find_table(properties_of("hive", silent.getsockname()[1]))
        wait_for("the request's end", lambda: not requests_in_flight(), 10)


@pytest.mark.timeout(20)
def test_a_silent_catalog_of_the_user_times_out_and_is_used_again_once_it_answers() -> None:
    with pytest.raises(TableUnavailable, match="no answer"):
        find_table(OWN)
    ANSWERED.set()
    find_table(OWN)


@pytest.mark.timeout(20)
def test_requests_without_an_answer_do_not_pile_up() -> None:
    """Method: a driver without limits, as that of a catalog of the user's own, keeps its thread."""
    began = time.monotonic()
    refused = 0
    while time.monotonic() - began < 3:
        with pytest.raises(TableUnavailable, match="no answer") as error:
            find_table(OWN)
        if "the next one is sent in" in str(error.value):
            refused += 1
            time.sleep(0.02)
    # The n-th one waits for n limits: 1 + 2 + ... + n.
    assert requests_in_flight() <= 6
    assert refused
