from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any, cast

import pytest
from pyspark import sql  # noqa: TID253
from pyspark.errors import AnalysisException, UnsupportedOperationException  # noqa: TID253

from dagster_leasehold.assets.consuming.frame_job import REGISTER_ATTEMPTS, _register_one
from dagster_leasehold.assets.consuming.spark_sweeper import run_sweep
from dagster_leasehold.assets.consuming.spark_work import SweepJob
from dagster_leasehold.assets.errors import SparkFeatureMissing, SparkUnavailable, TransformError
from dagster_leasehold.assets.guarding.job_watch import JobWatch
from dagster_leasehold.assets.places.local_place import local_place
from dagster_leasehold.assets.shard_stream import Transform
from dagster_leasehold.lease_store.identifiers import ShardId, StreamName
from dagster_leasehold.shard_sources.source import ReadRange
from tests.synced import synced


class _Registry:
    """A session's registry of data sources that refuses as often as it is told to.

    Stands in for Spark's, where the refusal needs two processes at the same moment.
    """

    def __init__(self, refusals: int, condition: str) -> None:
        self.refusals, self.condition, self.calls = refusals, condition, 0
        self.dataSource = self

    def register(self, source: type[Any]) -> None:
        self.calls += 1
        if self.calls <= self.refusals:
            raise AnalysisException(f"[{self.condition}] {source.__name__}")


class _Source:
    pass


def _register(registry: _Registry) -> None:
    _register_one(cast(Any, registry), cast(Any, _Source))


def test_two_runs_may_register_in_one_session_at_the_same_moment() -> None:
    registry = _Registry(REGISTER_ATTEMPTS - 1, "DATA_SOURCE_ALREADY_EXISTS")
    _register(registry)
    assert registry.calls == REGISTER_ATTEMPTS


@pytest.mark.parametrize(
    ("refusals", "condition", "calls"),
    [
        (REGISTER_ATTEMPTS, "DATA_SOURCE_ALREADY_EXISTS", REGISTER_ATTEMPTS),
        (1, "DATA_SOURCE_NOT_FOUND", 1),
    ],
)
def test_a_refusal_that_stays_is_raised(refusals: int, condition: str, calls: int) -> None:
    registry = _Registry(refusals, condition)
    with pytest.raises(AnalysisException, match=condition):
        _register(registry)
    assert registry.calls == calls


class _Server:
    """A session of a server that lacks a feature, and raises `error` at one of a sweep's steps.

    It stands in for the servers that speak Spark's protocol without being Spark. What is asked of
    it leads to itself: the reader, the DataFrame, the writer.
    """

    def __init__(self, step: str, error: Exception) -> None:
        self.step, self.error = step, error

    def __getattr__(self, name: str) -> Any:
        if name in (self.step, "sparkContext"):
            raise self.error
        return {"client": None, "dtypes": [("shard_id", "string")]}.get(name, self)

    def __call__(self, *_: object, **__: object) -> Any:
        return self


def _sweep(session: Any, transform: Any, tmp_path: Path) -> Any:
    place = local_place(tmp_path / "output")
    watch = JobWatch(tag="tag", work="stream orders")
    job = SweepJob(StreamName("orders"), {}, transform, place, lambda: "run-1", watch, 1)
    shard = ShardId("0")
    return run_sweep(session, job, [ReadRange(shard, "0", "1")], {shard: range(1)})[shard]


def _unchanged(rows: Any) -> Any:
    return rows


@pytest.mark.parametrize(
    ("step", "error"),
    [
        ("dataSource", AttributeError("'SparkSession' object has no attribute 'dataSource'")),
        ("register", UnsupportedOperationException("register data source")),
        ("load", RuntimeError("[DATA_SOURCE_NOT_FOUND] leasehold_shards")),
        ("schema", RuntimeError("Schema error: Unsupported type in DDL schema: Map {}")),
        ("save", RuntimeError("not implemented: write by a Python data source")),
    ],
)
def test_a_server_without_data_sources_is_named_with_the_way_that_needs_none(
    step: str, error: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sql, "DataFrame", _Server)
    transform = _unchanged if step != "schema" else lambda rows: rows.schema
    with pytest.raises(SparkFeatureMissing, match="with @arrow_transform, or") as caught:
        _sweep(_Server(step, error), transform, tmp_path)
    assert str(error) in str(caught.value)
    assert not [*(tmp_path / "output/attempts").iterdir()], "nothing is left behind"


@pytest.mark.parametrize("step", ["mapInArrow", "toArrow"])
def test_a_server_without_functions_on_arrow_tables_is_of_no_use(step: str, tmp_path: Path) -> None:
    server = _Server(step, UnsupportedOperationException("map in arrow"))
    with pytest.raises(SparkFeatureMissing, match="have the setting spark name") as caught:
        _sweep(server, None, tmp_path)
    assert "map in arrow" in str(caught.value)
    assert "@arrow_transform" not in str(caught.value)


def test_a_transform_that_asks_too_much_of_its_plan_is_not_the_servers_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Goal: Spark's own conditions for what no plan may hold stay those of the transform."""
    monkeypatch.setattr(sql, "DataFrame", _Server)
    error = AnalysisException("[UNSUPPORTED_FEATURE.LATERAL_JOIN_USING] JOIN USING with LATERAL.")
    result = _sweep(_Server("join", error), lambda rows: rows.join(rows), tmp_path)
    assert isinstance(result, TransformError)
    result = _sweep(_Server("save", error), _unchanged, tmp_path)
    assert isinstance(result, TransformError)


@pytest.mark.parametrize("transform", [None, lambda rows: rows], ids=["arrow", "frames"])
def test_the_folder_of_an_attempt_is_named_on_the_disk_before_anything_is_read(
    transform: Transform | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The session is none, so that the sweep goes no further than the folder."""
    root = tmp_path / "output"
    watch = JobWatch(tag="tag", work="stream s")
    job = SweepJob(StreamName("s"), {}, transform, local_place(root), lambda: "run-1", watch, 1)
    with synced(monkeypatch) as paths, suppress(SparkUnavailable):
        shard = ShardId("0")
        run_sweep(cast(Any, None), job, [ReadRange(shard, "0", "1")], {shard: range(1)})
    assert paths == [tmp_path, root, root / "attempts"]
