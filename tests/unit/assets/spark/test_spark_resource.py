from __future__ import annotations

import sys
from pathlib import Path
from threading import Event
from types import ModuleType
from typing import Any

import pytest

from dagster_leasehold.assets.errors import SparkUnavailable
from dagster_leasehold.assets.spark import spark_resource
from dagster_leasehold.assets.spark.spark_resource import SparkResource, spark_of_run
from dagster_leasehold.assets.spark.spark_versions import version_here


def set_up(resource: SparkResource) -> None:
    assert spark_of_run(resource) is resource


def test_the_client_is_imported_in_the_background_before_the_session(
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
    set_up(SparkResource(mode="local[1]", folder=str(tmp_path)))
    assert started == []


def test_the_error_of_a_master_that_refuses_the_application_names_the_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Refused:
        def __init__(self, **_: object) -> None: ...

        @property
        def spark_session(self) -> Any:
            raise RuntimeError(
                "An error occurred while calling None.org.apache.spark.sql.classic.SparkSession.\n"
                ": java.lang.IllegalStateException: Cannot call methods on a stopped SparkContext."
            )

    monkeypatch.setattr("dagster_pyspark.LazyPySparkResource", Refused)
    monkeypatch.setattr(spark_resource, "builder_conf", lambda *_: dict[str, str]())
    resource = SparkResource(mode="spark://master:7077", folder=str(tmp_path))
    with pytest.raises(SparkUnavailable) as refused:
        _ = resource.spark_session
    assert str(refused.value) == (
        "Spark (spark://master:7077) accepted no application: no master runs there, or its "
        f"version of Spark is not {version_here()} as on the nodes. See the master's log."
    )
