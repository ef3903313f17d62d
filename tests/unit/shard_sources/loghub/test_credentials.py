"""The origins of credentials, and that no message contains them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from dagster_leasehold.lease_store.errors import SourceRefused, SourceUnavailable
from dagster_leasehold.shard_sources.loghub.credentials import (
    KEY_ID,
    KEY_SECRET,
    RENEW_AFTER_S,
    TOKEN,
    URI,
    AccessKey,
    CredentialsProvider,
)
from tests.sls_server.server import SlsServer


@pytest.fixture
def server() -> Iterator[SlsServer]:
    made = SlsServer()
    yield made
    made.close()


def test_the_environment_is_read_for_each_request() -> None:
    environment = {KEY_ID: "id", KEY_SECRET: "secret"}
    provider = CredentialsProvider(environment=environment)
    assert provider.get_credentials() == AccessKey("id", "secret")
    environment[TOKEN] = "token"
    assert provider.get_credentials() == AccessKey("id", "secret", "token")
    assert not provider.renewed()


@pytest.mark.parametrize("environment", [{}, {KEY_ID: "id"}, {KEY_ID: "", KEY_SECRET: "s"}])
def test_missing_credentials_are_one_sentence(environment: dict[str, str]) -> None:
    with pytest.raises(SourceRefused, match=KEY_ID) as refused:
        CredentialsProvider(environment=environment).get_credentials()
    assert "\n" not in str(refused.value)


def test_an_address_is_read_again_after_a_while_and_after_a_refusal(server: SlsServer) -> None:
    now = [0.0]
    provider = CredentialsProvider(environment={URI: server.credentials_uri}, clock=lambda: now[0])
    assert provider.get_credentials() == AccessKey("LTAItest", "secret-of-test")
    server.role = ("STS.1", "one", "token")
    assert provider.get_credentials().id == "LTAItest"
    now[0] += RENEW_AFTER_S + 1
    assert provider.get_credentials() == AccessKey("STS.1", "one", "token")
    assert not provider.renewed()
    server.role = ("STS.2", "two", "token")
    assert provider.renewed()
    assert provider.get_credentials().id == "STS.2"


def test_the_option_wins_over_the_environment(server: SlsServer) -> None:
    environment = {KEY_ID: "id", KEY_SECRET: "secret"}
    provider = CredentialsProvider(server.credentials_uri, environment=environment)
    assert provider.get_credentials().id == "LTAItest"
    assert CredentialsProvider(environment={**environment, URI: "x"}).get_credentials().id == "id"


def test_an_address_without_credentials_is_an_error(server: SlsServer) -> None:
    with pytest.raises(SourceUnavailable):
        CredentialsProvider("http://127.0.0.1:9/role").get_credentials()
    with pytest.raises(SourceUnavailable, match="401"):
        CredentialsProvider(f"{server.endpoint}/logstores/x").get_credentials()


def test_a_key_is_hidden() -> None:
    assert repr(AccessKey("LTAIxyz", "secret", "token")) == "AccessKey()"
    assert "LTAIxyz" not in repr(CredentialsProvider(environment={KEY_ID: "LTAIxyz"}))
