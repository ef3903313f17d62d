from __future__ import annotations

import socket

import dagster as dg
import pytest

from dagster_leasehold.lease_store.errors import InvalidSetting
from dagster_leasehold.orchestration.supervision.node_directory import (
    Endpoint,
    find,
    publish,
    server_id,
    withdraw,
    withdrawn,
)


def test_a_node_is_found_from_its_publication_to_its_withdrawal() -> None:
    with dg.DagsterInstance.ephemeral() as instance:
        assert find(instance, "a") is None
        assert not withdrawn(instance, "a")
        publish(instance, "a", Endpoint("host", 4201))
        assert find(instance, "a") == Endpoint("host", 4201)
        assert find(instance, "b") is None
        withdraw(instance, "a")
        assert find(instance, "a") is None
        assert withdrawn(instance, "a")


def test_an_address_is_parsed() -> None:
    assert Endpoint.parse("b.example:4202") == Endpoint("b.example", 4202)
    assert str(Endpoint("b.example", 4202)) == "b.example:4202"


@pytest.mark.parametrize("text", ["", "host", "host:", ":1", "host:x", "host:0", "host:70000"])
def test_a_wrong_address_is_one_sentence(text: str) -> None:
    with pytest.raises(InvalidSetting, match=r"is not valid: use HOST:PORT\.$"):
        Endpoint.parse(text)


def test_a_silent_listener_is_not_a_code_server() -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        port = silent.getsockname()[1]
        assert server_id(Endpoint("127.0.0.1", port), timeout_s=0.3) is None
    assert server_id(Endpoint("127.0.0.1", port), timeout_s=0.3) is None
