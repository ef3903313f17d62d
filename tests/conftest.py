"""Fixtures that tests of several packages share."""

from __future__ import annotations

import os
import signal
from collections.abc import Generator
from itertools import count

import pytest

from tests import mariadb as mariadb_server
from tests.mariadb import MariaDB

_numbers = count(1)

# A shell that runs the tests in the background has them ignore interrupts, and every process that
# they start would inherit that; Dagster's would then ignore SIGTERM as well.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Dozens of Spark servers live for a minute each here: what Java's optimizing compiler costs is not
# earned back, and it takes almost half of the processors' time.
os.environ.setdefault("SPARK_SUBMIT_OPTS", "-XX:TieredStopAtLevel=1")


@pytest.fixture(scope="session")
def mariadb() -> Generator[MariaDB]:
    """One private MariaDB server for the whole session."""
    if not mariadb_server.available():
        pytest.fail("MariaDB is not installed: install mariadb-server.")
    with mariadb_server.running() as server:
        yield server


@pytest.fixture
def mariadb_url(mariadb: MariaDB) -> Generator[str]:
    """The URL of a fresh, empty database."""
    name = f"test_{next(_numbers)}"
    yield mariadb.create_database(name)
    mariadb.drop_database(name)
