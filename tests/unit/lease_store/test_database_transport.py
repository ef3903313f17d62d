"""TLS to the database: verified, or refused, unless the way stays here or a word allows it."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest
from sqlalchemy import make_url

from dagster_leasehold.lease_store import open_store
from dagster_leasehold.lease_store.database_transport import transport
from dagster_leasehold.lease_store.errors import InvalidSetting

SECRET = "hunter2"


def through(rest: str) -> tuple[str, dict[str, object]]:
    url, arguments = transport(make_url(f"mysql+pymysql://u:{SECRET}@{rest}"))
    return url.render_as_string(hide_password=False).partition("@")[2], arguments


@pytest.mark.parametrize(
    "rest",
    [
        "127.0.0.1/d", "127.8.0.1:3307/d", "[::1]/d", "localhost/d", "/d?unix_socket=s",
        "db/d?unix_socket=s",
    ],
)  # fmt: skip
def test_a_connection_within_this_host_needs_no_tls(rest: str) -> None:
    assert through(rest) == (rest, {})


@pytest.mark.parametrize(
    "rest", ["db/d", "10.0.0.7:3306/d", "[fe80::1]/d", "0.0.0.0/d", "localhost.example/d"]
)
def test_another_machine_needs_tls_or_a_waiver(rest: str) -> None:
    with pytest.raises(InvalidSetting) as caught:
        through(rest)
    sentence = str(caught.value)
    assert SECRET not in sentence
    assert "?ssl_ca=" in sentence
    assert "?ssl_mode=disabled" in sentence
    assert through(f"{rest}?ssl_mode=disabled") == (rest, {"ssl_disabled": True})


def test_a_store_is_refused_when_it_is_opened() -> None:
    with pytest.raises(InvalidSetting, match="without TLS"):
        open_store(f"mysql://u:{SECRET}@db/d")


def test_options_make_a_context_that_verifies(tmp_path: Path) -> None:
    authorities = ssl.get_default_verify_paths().cafile
    if authorities is None or not Path(authorities).exists():
        pytest.skip("this machine has no file of authorities")
    rest, arguments = through(f"db/d?charset=utf8mb4&ssl_ca={authorities}")
    context = arguments["ssl"]
    assert isinstance(context, ssl.SSLContext)
    assert (context.verify_mode, context.check_hostname) == (ssl.CERT_REQUIRED, True)
    assert rest == "db/d?charset=utf8mb4"


def test_files_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    missing = tmp_path / "ca.pem"
    with pytest.raises(InvalidSetting, match="ssl_ca"):
        through(f"db/d?ssl_ca={missing}")
    missing.write_text("no certificate")
    with pytest.raises(InvalidSetting, match="ssl_ca"):
        through(f"db/d?ssl_ca={missing}")


@pytest.mark.parametrize(
    "option", ["ssl_check_hostname=false", "ssl_verify_cert=false", "ssl_mode=preferred"]
)
def test_verification_cannot_be_switched_off(option: str) -> None:
    with pytest.raises(InvalidSetting, match="always verify"):
        through(f"db/d?{option}")


def test_contradicting_tls_options_are_refused() -> None:
    with pytest.raises(InvalidSetting, match="keep one"):
        through("db/d?ssl_mode=disabled&ssl_ca=/ca.pem")
