"""Secrets are searched in everything that runs leave, after each kind of failure.

`tests/acceptance/test_dagster_mariadb.py` checks success and a killed run, with Dagster's storage
in the database. This module checks failures, because they log most.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from dagster_leasehold.assets.spark.connect_server import TOKEN_FILE
from dagster_leasehold.assets.spark.connect_server import stop as stop_spark
from dagster_leasehold.assets.spark.spark_settings import TOKEN_VARIABLE
from dagster_leasehold.orchestration.instance import create_instance
from dagster_leasehold.orchestration.settings import Settings
from tests.mariadb import MariaDB
from tests.ports import free_port

pytestmark = [pytest.mark.long, pytest.mark.mariadb, pytest.mark.spark]

ROOT = Path(__file__).parents[2]
CANARY = "canary-7f3a9c51e2"
TOKEN_CANARY = "canary-token-51b0c4"


def run(home: Path, case: str, url: str) -> str:
    """Return all that one run prints; its files are in the home."""
    environment = {
        **os.environ,
        "LEASEHOLD_DATABASE_URL": url,
        TOKEN_VARIABLE: TOKEN_CANARY,
        "PYTHONPATH": str(ROOT),
    }
    done = subprocess.run(
        [sys.executable, "-m", "tests.security.canary_job", str(home), case],
        env=environment, capture_output=True, text=True, timeout=250, check=False,
    )  # fmt: skip
    return f"{done.stdout}{done.stderr}"


def findings(home: Path, output: str, *secrets: str) -> list[str]:
    """Return where a secret stands: event rows, run config, tags, snapshots, logs, output."""
    places = [secret for secret in secrets if secret in output]
    for path in home.rglob("*"):
        if path.is_file() and path.name != TOKEN_FILE:
            content = path.read_bytes()
            places += [f"{path}: {secret}" for secret in secrets if secret.encode() in content]
    return places


@pytest.fixture
def home(tmp_path: Path) -> Path:
    home = tmp_path / "home"
    create_instance(Settings(home=home))
    return home


def account(mariadb: MariaDB, url: str) -> str:
    """Return the URL of an account whose password is the canary."""
    database = url.rsplit("/", 1)[1]
    mariadb.execute(f"GRANT ALL ON `{database}`.* TO 'canary'@'127.0.0.1' IDENTIFIED BY '{CANARY}'")
    return mariadb.url(database, user="canary").replace(mariadb.password, CANARY)


@pytest.mark.parametrize(
    ("case", "sentence"), [("refused", "error 1045"), ("down", "does not answer")]
)
def test_no_secret_appears_if_the_database_refuses_or_is_down(
    home: Path, mariadb: MariaDB, mariadb_url: str, case: str, sentence: str
) -> None:
    url = account(mariadb, mariadb_url)
    if case == "refused":
        url = url.replace("//canary:", "//nobody:")
    else:
        url = url.replace(f":{mariadb.port}/", f":{free_port()}/")
    output = run(home, case, url)
    assert sentence in output
    assert findings(home, output, CANARY, TOKEN_CANARY) == []


def test_no_secret_appears_if_a_transform_crashes(
    home: Path, mariadb: MariaDB, mariadb_url: str
) -> None:
    """The run and its error are in Dagster's storage, whose rows are searched as well."""
    url = account(mariadb, mariadb_url)
    try:
        output = run(home, "crash", url)
        assert "crashed with" in output, output[-3_000:]
        token = (home / "spark" / TOKEN_FILE).read_text().strip()
        assert findings(home, output, CANARY, TOKEN_CANARY, token) == []
        database = mariadb_url.rsplit("/", 1)[1]
        for [table] in mariadb.execute("SHOW TABLES", database=database):
            rows = json.dumps(mariadb.execute(f"SELECT * FROM `{table}`", database=database),
                              default=str)  # fmt: skip
            assert CANARY not in rows, table
    finally:
        stop_spark(home / "spark")


def test_the_search_finds_a_planted_secret(home: Path) -> None:
    (home / "dagster" / "planted").write_bytes(b"\0" + CANARY.encode())
    assert findings(home, f"password {TOKEN_CANARY}", CANARY, TOKEN_CANARY) != []
