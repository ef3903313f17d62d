"""Spark sessions: the accepted settings, and the environment of its processes."""

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dagster_leasehold.assets.errors import SparkUnavailable
from dagster_leasehold.assets.spark import spark_session
from dagster_leasehold.assets.spark.spark_resource import SparkResource
from dagster_leasehold.assets.spark.spark_session import (
    CONNECT_MODE_VARIABLES,
    HADOOP_VARIABLES,
    PARALLELISM_KEYS,
    builder_conf,
    server_conf,
    spark_environment,
    tasks_at_once,
)
from dagster_leasehold.lease_store.errors import InvalidSetting


def test_a_remote_address_needs_no_java(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"sc://127.0.0.1:{listener.getsockname()[1]}"
        assert builder_conf(address, tmp_path) == {"spark.remote": address}
    with pytest.raises(SparkUnavailable, match="No Spark Connect server answers"):
        builder_conf(address, tmp_path)


def test_workers_of_a_cluster_can_reach_the_driver(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("JAVA_HOME", "PYSPARK_PYTHON", "PYTHONPATH", *CONNECT_MODE_VARIABLES):
        monkeypatch.setenv(name, os.environ.get(name, ""))
    monkeypatch.setenv("SPARK_HOME", "")
    monkeypatch.delenv("SPARK_HOME")
    conf = builder_conf("spark://master:7077", tmp_path)
    # Variables that a parent with a Connect session left in the environment do not count here.
    assert not set(CONNECT_MODE_VARIABLES) & os.environ.keys()
    assert conf["spark.master"] == "spark://master:7077"
    assert "spark.driver.host" not in conf
    # Executors would use the driver's temporary folder on their own hosts.
    assert not [key for key in conf if key.startswith("spark.python.unix.domain.socket")]
    assert "SPARK_HOME" not in os.environ, "a cluster may be sent the archives of Spark's home"
    local = builder_conf("local[1]", tmp_path / "spark")
    assert (tmp_path / "spark").stat().st_mode & 0o077 == 0
    assert local["spark.master"].startswith("local[")
    assert local["spark.driver.bindAddress"] == "127.0.0.1"
    assert os.environ["SPARK_HOME"].startswith(str(tmp_path))
    monkeypatch.setenv("SPARK_HOME", "/chosen")
    builder_conf("local[2]", tmp_path)
    assert os.environ["SPARK_HOME"] == "/chosen", "a user's own Spark stays"


def test_configuration_of_the_user_wins_and_fixed_keys_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("JAVA_HOME", "PYSPARK_PYTHON", "PYTHONPATH", "SPARK_HOME"):
        monkeypatch.setenv(name, os.environ.get(name, ""))
    chosen = {"spark.executor.memory": "3g", "spark.driver.host": "10.0.0.7"}
    conf = builder_conf("k8s://https://host:6443", tmp_path, chosen)
    assert conf["spark.master"] == "k8s://https://host:6443"
    assert conf.items() >= chosen.items()
    with pytest.raises(InvalidSetting, match=r"spark\.driver\.host: a Spark without an address"):
        builder_conf("local[1]", tmp_path, chosen)
    with pytest.raises(InvalidSetting, match=r"spark\.sql\.session\.timeZone"):
        builder_conf("sc://host:1", tmp_path, {"spark.sql.session.timeZone": "CET"})


def test_yarn_is_found_by_hadoops_own_settings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("JAVA_HOME", "PYSPARK_PYTHON", "PYTHONPATH"):
        monkeypatch.setenv(name, os.environ.get(name, ""))
    for name in HADOOP_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(InvalidSetting, match="HADOOP_CONF_DIR"):
        builder_conf("yarn", tmp_path)
    monkeypatch.setenv("YARN_CONF_DIR", str(tmp_path))
    assert builder_conf("yarn", tmp_path)["spark.master"] == "yarn"


def test_workers_find_this_project_and_this_python(tmp_path: Path) -> None:
    environment = spark_environment(tmp_path, {**os.environ, "PYTHONPATH": "/given"})
    path = environment["PYTHONPATH"].split(os.pathsep)
    assert path[0] == "/given"
    assert str(Path(__file__).parents[4]) in path
    assert environment["PYSPARK_PYTHON"] == sys.executable
    assert not any("site-packages" in entry for entry in path)


def test_a_long_temporary_folder_turns_unix_sockets_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = "spark.python.unix.domain.socket.enabled"
    monkeypatch.setattr(spark_session.tempfile, "gettempdir", lambda: "/tmp")
    assert server_conf(tmp_path)[key] == "true"
    monkeypatch.setattr(spark_session.tempfile, "gettempdir", lambda: "/tmp/" + "x" * 80)
    assert key not in server_conf(tmp_path)


class _Session:
    """A session of a driver, or of a Connect server's client, which has no `sparkContext`."""

    def __init__(self, conf: dict[str, str], parallelism: int | None = None) -> None:
        self.conf = conf
        if parallelism is not None:
            self.sparkContext = SimpleNamespace(defaultParallelism=parallelism)


@pytest.mark.parametrize(
    ("session", "tasks"),
    [
        (_Session({}, 64), 64),
        (_Session({}, 2), 4),  # its executors have not come yet
        (_Session({PARALLELISM_KEYS[0]: "3"}, 64), 3),
        (_Session({PARALLELISM_KEYS[0]: "24"}), 24),
        (_Session({PARALLELISM_KEYS[1]: "32"}), 32),
        (_Session({}), 4),
        (_Session({PARALLELISM_KEYS[0]: "many"}), 4),
        ("gone", 4),
    ],
)
def test_a_sweep_uses_all_cores_that_a_cluster_reports(
    session: Any, tasks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spark_session, "cores", lambda: 4)
    assert tasks_at_once(session) == tasks


def test_the_resource_shows_neither_address_nor_token(tmp_path: Path) -> None:
    resource = SparkResource(mode="connect", folder=str(tmp_path))
    assert "sc://" not in repr(resource)
    assert resource._supplier is None, "nothing starts before the session is asked for"
