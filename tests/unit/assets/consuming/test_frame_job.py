from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any, cast

import pytest
from pyspark.errors import AnalysisException  # noqa: TID253

from dagster_leasehold.assets.consuming.frame_job import REGISTER_ATTEMPTS, _register_one
from dagster_leasehold.assets.consuming.spark_sweeper import run_sweep
from dagster_leasehold.assets.consuming.spark_work import SweepJob
from dagster_leasehold.assets.errors import SparkUnavailable
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


@pytest.mark.parametrize("transform", [None, lambda rows: rows], ids=["arrow", "frames"])
def test_the_folder_of_an_attempt_is_named_on_the_disk_before_anything_is_read(
    transform: Transform | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The session is none, so that the sweep goes no further than the folder."""
    root = tmp_path / "output"
    job = SweepJob(StreamName("s"), {}, transform, local_place(root), lambda: "run-1", "tag", 1)
    with synced(monkeypatch) as paths, suppress(SparkUnavailable):
        shard = ShardId("0")
        run_sweep(cast(Any, None), job, [ReadRange(shard, "0", "1")], {shard: range(1)})
    assert paths == [tmp_path, root, root / "attempts"]
