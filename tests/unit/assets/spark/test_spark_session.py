"""How Spark is asked for: which settings are taken, and what its processes are given."""

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path

import pytest

from dagster_leasehold.assets.errors import SparkUnavailable
from dagster_leasehold.assets.spark import spark_session
from dagster_leasehold.assets.spark.spark_resource import SparkResource
from dagster_leasehold.assets.spark.spark_session import (
    CONNECT_MODE_VARIABLES,
    builder_conf,
    check_mode,
    server_conf,
    spark_environment,
)
from dagster_leasehold.lease_store.errors import InvalidSetting


@pytest.mark.parametrize(
    "mode", ["connect", "classic", "local[2]", "sc://spark:15002", "spark://master:7077", "yarn"]
)
def test_valid_modes(mode: str) -> None:
    assert check_mode(mode) == mode


@pytest.mark.parametrize("mode", ["", "conect", "http://x", "sc:/x", "localhost", "sc://"])
def test_wrong_modes_are_one_sentence(mode: str) -> None:
    with pytest.raises(InvalidSetting, match="setting spark"):
        check_mode(mode)


def test_a_token_in_the_address_is_refused_without_showing_it() -> None:
    with pytest.raises(InvalidSetting) as caught:
        check_mode("sc://host:15002/;use_ssl=true;token=S3CRET")
    assert "S3CRET" not in str(caught.value)
    assert "SPARK_CONNECT_AUTHENTICATE_TOKEN" in str(caught.value)


def test_a_remote_address_needs_no_java(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"sc://127.0.0.1:{listener.getsockname()[1]}"
        assert builder_conf(address, tmp_path) == {"spark.remote": address}
    with pytest.raises(SparkUnavailable, match="No Spark Connect server answers"):
        builder_conf(address, tmp_path)


def test_a_cluster_may_call_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("JAVA_HOME", "PYSPARK_PYTHON", "PYTHONPATH", *CONNECT_MODE_VARIABLES):
        monkeypatch.setenv(name, os.environ.get(name, ""))
    monkeypatch.setenv("SPARK_HOME", "")
    monkeypatch.delenv("SPARK_HOME")
    conf = builder_conf("spark://master:7077", tmp_path)
    # What a parent with a Connect session left in the environment does not count here.
    assert not set(CONNECT_MODE_VARIABLES) & os.environ.keys()
    assert conf["spark.master"] == "spark://master:7077"
    assert "spark.driver.host" not in conf
    assert "SPARK_HOME" not in os.environ, "a cluster may be sent the archives of Spark's home"
    local = builder_conf("classic", tmp_path / "spark")
    assert (tmp_path / "spark").stat().st_mode & 0o077 == 0
    assert local["spark.master"].startswith("local[")
    assert local["spark.driver.bindAddress"] == "127.0.0.1"
    assert os.environ["SPARK_HOME"].startswith(str(tmp_path))
    monkeypatch.setenv("SPARK_HOME", "/chosen")
    builder_conf("local[2]", tmp_path)
    assert os.environ["SPARK_HOME"] == "/chosen", "a user's own Spark stays"


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


def test_the_resource_shows_neither_address_nor_token(tmp_path: Path) -> None:
    resource = SparkResource(mode="connect", folder=str(tmp_path))
    assert "sc://" not in repr(resource)
    assert resource._supplier is None, "nothing starts before the session is asked for"
