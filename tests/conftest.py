"""Fixtures that tests of several packages share."""

from __future__ import annotations

import gc
import os
import shutil
import signal
import tempfile
from collections.abc import Generator
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from tests import mariadb as mariadb_server
from tests import mysql as mysql_server
from tests import object_store
from tests.mariadb import MariaDB
from tests.mysql import MySQL

_numbers = count(1)
SERVER_VARIABLE = "LEASEHOLD_TESTS_CONNECT_SERVER"
SECRETS_OF_WORKERS = {
    "TEST_KAFKA_PASSWORD": "hunter2-first",
    "PYICEBERG_CATALOG__LAKE__TOKEN": "hush-4711",
}

# The same examples every time, and none fails on a slow machine that several processes share.
# `--hypothesis-profile=default` tries new ones.
settings.register_profile(
    "suite", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("suite")

# A shell that runs the tests in the background has them ignore interrupts, and every process that
# they start would inherit that; Dagster's would then ignore SIGTERM as well.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Dozens of Spark servers live for a minute each here: what Java's optimizing compiler costs is not
# earned back, and it takes almost half of the processors' time.
os.environ.setdefault("SPARK_SUBMIT_OPTS", "-XX:TieredStopAtLevel=1")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Let tests that share a slow server share a process."""
    if config.getvalue("dist") != "loadfile":
        return None
    from tests.sharing_scheduler import SharingScheduling

    return SharingScheduling(config, log)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the files that are given most time: a long one at the end would run alone."""
    most: dict[Path, float] = {}
    for item in items:
        mark = item.get_closest_marker("timeout")
        most[item.path] = max(most.get(item.path, 0), mark.args[0] if mark else 0)
    items.sort(key=lambda item: -most[item.path])


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collect garbage once after tests are collected, and exclude them from later collections."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.collect()
        gc.freeze()
        gc.enable()


@pytest.fixture(scope="session", autouse=True)
def _no_waiting_for_the_disk() -> Generator[None]:
    """Tests kill processes and not the power: only tests of flushes need them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda _: None)
        patch.setattr(os, "fdatasync", lambda _: None)
        yield


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


@pytest.fixture(scope="session")
def mysql() -> Generator[MySQL]:
    """One private MySQL server for the whole session."""
    if reason := mysql_server.reason_missing():
        pytest.skip(reason)
    with mysql_server.running() as server:
        yield server


@pytest.fixture
def mysql_url(mysql: MySQL) -> Generator[str]:
    """The URL of a fresh, empty database."""
    name = f"test_{next(_numbers)}"
    yield mysql.create_database(name)
    mysql.drop_database(name)


@pytest.fixture(scope="session")
def environment_of_workers(tmp_path_factory: pytest.TempPathFactory) -> Generator[None]:
    """Spark's server starts once, and its workers keep the environment of that time."""
    from tests.sources.worlds import own_source

    packages = tmp_path_factory.mktemp("packages")
    own_source.install(packages, tmp_path_factory.mktemp("own-source"))
    with pytest.MonkeyPatch.context() as patch:
        for name, value in (SECRETS_OF_WORKERS | object_store.ENVIRONMENT).items():
            patch.setenv(name, value)
        patch.setenv("PYTHONPATH", str(packages), prepend=os.pathsep)
        patch.syspath_prepend(str(packages))
        yield


@pytest.fixture(scope="session")
def spark_folder(environment_of_workers: None) -> Generator[Path]:
    """The folder of the one embedded server; it is stopped when the tests end."""
    from dagster_leasehold.assets.spark import connect_server
    from dagster_leasehold.assets.spark.spark_settings import TOKEN_VARIABLE

    folder = Path(tempfile.mkdtemp(prefix="leasehold-spark-"))
    before = os.environ.get(TOKEN_VARIABLE)
    yield folder
    connect_server.stop(folder)
    if before is None:
        os.environ.pop(TOKEN_VARIABLE, None)
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def connect_session(spark_folder: Path) -> Any:
    """A session as a run gets it: of the embedded Connect server, or of the one that is named."""
    from dagster_leasehold.assets.spark.spark_resource import SparkResource

    mode = os.environ.get(SERVER_VARIABLE, "connect")
    return SparkResource(mode=mode, folder=str(spark_folder)).spark_session
