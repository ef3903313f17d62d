from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any, cast

import pytest
from pyspark import sql  # noqa: TID253
from pyspark.errors import AnalysisException, UnsupportedOperationException  # noqa: TID253

from dagster_leasehold.assets.consuming import frame_job
from dagster_leasehold.assets.consuming.spark_sweeper import run_sweep
from dagster_leasehold.assets.consuming.spark_work import SweepJob
from dagster_leasehold.assets.errors import SparkFeatureMissing, SparkUnavailable, TransformError
from dagster_leasehold.assets.guarding.job_watch import JobWatch
from dagster_leasehold.assets.places.local_place import local_place
from dagster_leasehold.assets.shard_stream import Transform
from dagster_leasehold.lease_store.identifiers import ShardId, StreamName
from dagster_leasehold.shard_sources.source import ReadRange
from tests.synced import synced


class _Server:
    """A session of a server that lacks a feature, and raises `error` at one of a sweep's steps.

    It stands in for servers that speak Spark's protocol without being Spark. Each call returns the
    session itself: the reader, the DataFrame, the writer.
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


@pytest.fixture(autouse=True)
def unobserved(monkeypatch: pytest.MonkeyPatch) -> None:
    """No session is real here, and Spark's functions want one."""
    monkeypatch.setattr(frame_job, "_observed", lambda rows: (rows, dict))


@pytest.mark.parametrize("transform", [None, _unchanged], ids=["arrow", "frames"])
@pytest.mark.parametrize(
    ("step", "error"),
    [
        ("mapInArrow", UnsupportedOperationException("map in arrow")),
        ("toArrow", RuntimeError("not implemented: functions on Arrow tables")),
    ],
)
def test_a_server_without_arrow_functions_is_refused(
    step: str, error: Exception, transform: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sql, "DataFrame", _Server)
    with pytest.raises(
        SparkFeatureMissing, match="name another Spark in the setting spark"
    ) as caught:
        _sweep(_Server(step, error), transform, tmp_path)
    assert str(error) in str(caught.value)
    assert not [*(tmp_path / "output/attempts").iterdir()], "nothing is left behind"


def test_a_server_that_cannot_describe_records_is_blamed_instead_of_the_transform(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sql, "DataFrame", _Server)
    error = RuntimeError("Schema error: Unsupported type in DDL schema: Map {}")
    with pytest.raises(SparkFeatureMissing, match="Unsupported type in DDL"):
        _sweep(_Server("schema", error), lambda rows: rows.schema, tmp_path)


def test_a_server_without_observations_writes_the_same_output(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sql, "DataFrame", _Server)
    lacking = _Server("toArrow", UnsupportedOperationException("collect metrics"))
    monkeypatch.setattr(frame_job, "_observed", lambda _: (lacking, dict))
    result = _sweep(_Server("toArrow", RuntimeError("so far")), _unchanged, tmp_path)
    assert "so far" in str(result)


def test_a_transform_with_an_impossible_plan_is_blamed_instead_of_the_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Goal: if Spark rejects a plan as impossible, the error names the transform."""
    monkeypatch.setattr(sql, "DataFrame", _Server)
    error = AnalysisException("[UNSUPPORTED_FEATURE.LATERAL_JOIN_USING] JOIN USING with LATERAL.")
    result = _sweep(_Server("join", error), lambda rows: rows.join(rows), tmp_path)
    assert isinstance(result, TransformError)
    result = _sweep(_Server("toArrow", error), _unchanged, tmp_path)
    assert isinstance(result, TransformError)


@pytest.mark.parametrize("transform", [None, lambda rows: rows], ids=["arrow", "frames"])
def test_the_folder_of_an_attempt_is_synced_before_records_are_read(
    transform: Transform | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The session is gone, so that the sweep goes no further than the folder."""
    root = tmp_path / "output"
    watch = JobWatch(tag="tag", work="stream s")
    job = SweepJob(StreamName("s"), {}, transform, local_place(root), lambda: "run-1", watch, 1)
    gone = cast(Any, _Server("mapInArrow", RuntimeError("[SESSION_CLOSED] It was closed.")))
    with synced(monkeypatch) as paths, suppress(SparkUnavailable):
        shard = ShardId("0")
        run_sweep(gone, job, [ReadRange(shard, "0", "1")], {shard: range(1)})
    assert paths == [tmp_path, root, root / "attempts"]
