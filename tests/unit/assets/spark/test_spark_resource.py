from __future__ import annotations

import sys
from pathlib import Path
from threading import Event
from types import ModuleType
from typing import Any

import dagster as dg
import pytest

from dagster_leasehold.assets.spark import spark_resource
from dagster_leasehold.assets.spark.spark_resource import SparkResource


def set_up(resource: SparkResource) -> None:
    resource.setup_for_execution(dg.build_init_resource_context())


def test_the_client_is_imported_beside_the_run_and_waited_for_before_the_session(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, proceed, steps = Event(), Event(), list[str]()

    def slow(name: str) -> ModuleType:
        begun.set()
        assert proceed.wait(30.0)
        steps.append(f"imported {name}")
        return sys

    def conf(*_: object) -> Any:
        steps.append("asked for the session")
        raise RuntimeError

    monkeypatch.setattr(spark_resource, "import_module", slow)
    monkeypatch.setattr(spark_resource, "builder_conf", conf)
    resource = SparkResource(mode="connect", folder=str(tmp_path))
    set_up(resource)
    assert begun.wait(30.0)
    assert steps == []
    proceed.set()
    with pytest.raises(RuntimeError):
        _ = resource.spark_session
    assert steps == ["imported pyspark.sql.connect.session", "asked for the session"]


def test_a_spark_of_this_process_needs_no_client(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started = list[str]()
    monkeypatch.setattr(spark_resource, "Thread", lambda **named: started.append(named["name"]))
    set_up(SparkResource(mode="classic", folder=str(tmp_path)))
    assert started == []
