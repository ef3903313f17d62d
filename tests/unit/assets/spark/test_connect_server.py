"""The server and the session that a run takes, by its settings, without starting any."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from dagster_leasehold.assets.spark import connect_server as servers
from dagster_leasehold.assets.spark.connect_server import ConnectServer, replace_session, running
from dagster_leasehold.assets.spark.spark_resource import SparkResource
from dagster_leasehold.assets.spark.spark_settings import SparkSettings
from dagster_leasehold.lease_store.process_identity import ProcessIdentity


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder in which a started server answers; the server is this process."""
    monkeypatch.setattr(servers, "_port_open", lambda port: True)
    monkeypatch.setattr(servers, "_end", lambda folder: True)
    monkeypatch.setattr(servers, "_start", start)
    return tmp_path


def start(folder: Path, conf: Mapping[str, str], _: object, __: object, version: str) -> Any:
    process = ProcessIdentity.of(os.getpid())
    server = ConnectServer(process, 7, f"session of {dict(conf)}", version)
    server.write(folder)
    return server


def asked(folder: Path, settings: SparkSettings) -> ConnectServer:
    conf = {"spark.driver.memory": "2g", "spark.ui.enabled": "false"}
    return servers.connect_server(folder, conf, dict, user_conf=settings.whole_conf)


def test_other_settings_start_another_server_and_equal_ones_do_not(folder: Path) -> None:
    first = asked(folder, SparkSettings())
    assert asked(folder, SparkSettings()) == first
    larger = asked(folder, SparkSettings(memory="3g"))
    assert "'spark.driver.memory': '3g'" in larger.session_id
    assert asked(folder, SparkSettings(memory="3g")) == larger
    busier = asked(folder, SparkSettings(memory="3g", conf={"spark.sql.shuffle.partitions": "7"}))
    assert "'spark.sql.shuffle.partitions': '7'" in busier.session_id
    assert asked(folder, SparkSettings()) == first, "as it was before"


def test_runs_that_lost_one_session_share_the_next_one(folder: Path) -> None:
    lost = asked(folder, SparkSettings())
    assert replace_session(folder, lost)
    now = running(folder)
    assert now is not None
    assert now.session_id != lost.session_id
    assert replace_session(folder, lost), "the other run's look"
    assert running(folder) == now
    (folder / servers.STATE_FILE).unlink()
    assert not replace_session(folder, lost)
    assert not replace_session(folder / "none", lost)


def test_a_run_with_old_settings_does_not_end_a_server_with_new_ones(folder: Path) -> None:
    earlier = SparkResource(mode="connect", folder=str(folder))
    earlier._server = asked(folder, SparkSettings())
    later = asked(folder, SparkSettings(memory="3g"))
    assert earlier.renewed_session() is None
    assert running(folder) == later


def test_a_driver_has_no_session_to_renew(tmp_path: Path) -> None:
    for mode in ("local[1]", "spark://host:7077"):
        assert SparkResource(mode=mode, folder=str(tmp_path)).renewed_session() is None
