"""TLS to the database: verified or refused, never quietly in the clear."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path

import pytest
from sqlalchemy import text

from dagster_leasehold.lease_store import open_store
from dagster_leasehold.lease_store.errors import StoreError
from dagster_leasehold.orchestration.command_line import main
from tests import mariadb as mariadb_server
from tests import mysql as mysql_server
from tests.database_server import DatabaseServer
from tests.mariadb import MariaDB

pytestmark = pytest.mark.skipif(
    shutil.which("openssl") is None, reason="openssl makes the certificates"
)


@dataclass(frozen=True)
class Certificates:
    """An authority and a key and certificate that it signed for 127.0.0.1."""

    folder: Path

    @property
    def authority(self) -> Path:
        return self.folder / "ca.pem"


def openssl(folder: Path, *arguments: str) -> None:
    subprocess.run(["openssl", *arguments], cwd=folder, check=True, capture_output=True, timeout=60)


def make(folder: Path, host: str) -> Certificates:
    folder.mkdir()
    key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
    (folder / "names").write_text(f"subjectAltName={host}")
    openssl(
        folder, "req", "-x509", *key, "-subj", f"/CN=authority-{folder.name}", "-days", "2",
        "-keyout", "ca.key", "-out", "ca.pem",
        "-addext", "keyUsage=critical,keyCertSign,cRLSign",
    )  # fmt: skip
    openssl(folder, "req", *key, "-subj", "/CN=server", "-keyout", "key.pem", "-out", "csr")
    openssl(
        folder, "x509", "-req", "-in", "csr", "-CA", "ca.pem", "-CAkey", "ca.key",
        "-CAcreateserial", "-days", "2", "-extfile", "names", "-out", "cert.pem",
    )  # fmt: skip
    return Certificates(folder)


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Certificates]:
    folder = tmp_path_factory.mktemp("tls")
    return {
        "right": make(folder / "right", "IP:127.0.0.1"),
        "other": make(folder / "other", "IP:127.0.0.1"),
        "elsewhere": make(folder / "elsewhere", "DNS:db.example"),
    }


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(mariadb_server, id="mariadb", marks=pytest.mark.mariadb),
        pytest.param(mysql_server, id="mysql", marks=pytest.mark.mysql),
    ],
)
def encrypted(
    request: pytest.FixtureRequest, certificates: dict[str, Certificates]
) -> Generator[DatabaseServer]:
    if request.param is mysql_server and (reason := mysql_server.reason_missing()):
        pytest.skip(reason)
    with request.param.running() as server:
        server.stop()
        server.start(*server_options(certificates["right"]))
        yield server


def server_options(certificates: Certificates) -> list[str]:
    folder = certificates.folder
    return [f"--ssl-cert={folder}/cert.pem", f"--ssl-key={folder}/key.pem"]


def test_a_verified_connection_is_encrypted(
    encrypted: DatabaseServer, certificates: dict[str, Certificates]
) -> None:
    url = encrypted.create_database("leases")
    store = open_store(f"{url}?ssl_ca={certificates['right'].authority}", upgrade=True)
    with store._transactions.engine.connect() as connection:
        cipher = connection.execute(text("SHOW SESSION STATUS LIKE 'Ssl_cipher'")).one()
    assert cipher[1]
    store.close()


def test_the_doctor_names_the_cipher(
    encrypted: DatabaseServer,
    certificates: dict[str, Certificates],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    url = encrypted.create_database("leases")
    authority = certificates["right"].authority
    for option, tls in ((f"ssl_ca={authority}", True), ("ssl_mode=disabled", False)):
        monkeypatch.setenv("LEASEHOLD_DATABASE_URL", f"{url}?{option}")
        main(["doctor", "--home", str(tmp_path)])
        line = capsys.readouterr().out.splitlines()[0]
        assert line.endswith(", no TLS.") is not tls
        assert bool(re.search(r", TLS with TLS_\w+\.$", line)) is tls


def test_another_authority_is_refused(
    encrypted: DatabaseServer, certificates: dict[str, Certificates]
) -> None:
    url = encrypted.create_database("leases")
    with pytest.raises(StoreError, match="ssl_ca"):
        open_store(f"{url}?ssl_ca={certificates['other'].authority}", upgrade=True)


def test_another_host_is_refused(
    encrypted: DatabaseServer, certificates: dict[str, Certificates]
) -> None:
    encrypted.stop()
    encrypted.start(*server_options(certificates["elsewhere"]))
    try:
        url = encrypted.create_database("leases")
        with pytest.raises(StoreError, match="ssl_ca"):
            open_store(f"{url}?ssl_ca={certificates['elsewhere'].authority}", upgrade=True)
    finally:
        encrypted.stop()
        encrypted.start(*server_options(certificates["right"]))


@pytest.mark.mariadb
def test_a_server_without_tls_is_refused(
    mariadb: MariaDB, mariadb_url: str, certificates: dict[str, Certificates]
) -> None:
    """Older drivers would continue in the clear; newer ones refuse by themselves."""
    with pytest.raises(StoreError, match="TLS"):
        open_store(f"{mariadb_url}?ssl_ca={certificates['right'].authority}", upgrade=True)
