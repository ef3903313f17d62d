"""Vended credentials become arguments of Arrow's clients, for as long as they are valid."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from dagster_leasehold.assets.places.store_clients import new_client
from dagster_leasehold.assets.places.vended import (
    DEFAULT_LIFETIME_S,
    RENEWAL_MIN_S,
    RemoteSigning,
    renewal_s,
    vended,
)

NOW_S = 1_800_000_000.0
KEYS = {"s3.access-key-id": "id", "s3.secret-access-key": "key", "s3.session-token": "token"}
ACCOUNT = "lake@acct.dfs.core.windows.net"


@pytest.mark.parametrize(
    ("scheme", "root", "properties", "arguments", "expires_s"),
    [
        (
            "s3",
            "bucket",
            {
                **KEYS,
                "s3.session-token-expires-at-ms": "1800000060000",
                "client.region": "eu-west-1",
                "s3.region": "us-east-1",
                "s3.endpoint": "http://127.0.0.1:1",
                "s3.remote-signing-enabled": "true",
            },
            {
                "access_key": "id",
                "secret_key": "key",
                "session_token": "token",
                "region": "eu-west-1",
                "endpoint": "http://127.0.0.1:1",
            },
            NOW_S + 60,
        ),
        (
            "s3",
            "bucket",
            {**KEYS, "s3.path-style-access": "false", "expiration-time": "1800000001000"},
            {
                "access_key": "id",
                "secret_key": "key",
                "session_token": "token",
                "force_virtual_addressing": True,
            },
            NOW_S + 1,
        ),
        (
            "gs",
            "bucket",
            {"gcs.oauth2.token": "token", "gcs.oauth2.token-expires-at": "1800000090000"},
            {
                "access_token": "token",
                "credential_token_expiration": datetime.fromtimestamp(NOW_S + 90, UTC),
            },
            NOW_S + 90,
        ),
        (
            "abfss",
            ACCOUNT,
            {
                "adls.sas-token.acct.dfs.core.windows.net": "?sv=1&sig=x",
                "adls.sas-token-expires-at-ms.acct.dfs.core.windows.net": "1800000030000",
            },
            {"sas_token": "sv=1&sig=x"},
            NOW_S + 30,
        ),
        ("abfss", ACCOUNT, {"adls.sas-token.acct": "sv=1"}, {"sas_token": "sv=1"}, None),
    ],
)
def test_credentials_of_each_store(
    scheme: str,
    root: str,
    properties: dict[str, str],
    arguments: dict[str, Any],
    expires_s: float | None,
) -> None:
    credentials = vended(properties, scheme, root, NOW_S)
    assert credentials is not None
    assert credentials.arguments == arguments
    assert credentials.expires_s == (NOW_S + DEFAULT_LIFETIME_S if expires_s is None else expires_s)
    assert "token" not in repr(credentials)
    assert "sv=1" not in repr(credentials)
    client = new_client(
        scheme, root, {"region": "us-east-1", **arguments} if scheme == "s3" else arguments
    )
    assert client.type_name in {"s3", "gcs", "abfs"}


@pytest.mark.parametrize("scheme", ["s3", "gs", "abfss", "hdfs", "file"])
def test_without_credentials_the_platforms_are_used(scheme: str) -> None:
    assert vended({"s3.endpoint": "http://127.0.0.1:1"}, scheme, "bucket", NOW_S) is None


def test_remote_signing_alone_is_refused() -> None:
    with pytest.raises(RemoteSigning):
        vended({"s3.remote-signing-enabled": "true"}, "s3", "bucket", NOW_S)


def test_renewal_is_halfway_and_again_halfway_after_a_failure() -> None:
    expires_s = NOW_S + 3600
    assert renewal_s(NOW_S, expires_s) == NOW_S + 1800
    assert renewal_s(NOW_S + 1800, expires_s) == NOW_S + 2700
    assert renewal_s(expires_s + 5, expires_s) == expires_s + 5 + RENEWAL_MIN_S
