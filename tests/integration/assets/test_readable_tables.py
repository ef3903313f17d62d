"""Spark reads back what the property test of columns writes, as the engines without a JVM do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dagster_leasehold.assets.output.committed_output import CommittedOutput
from tests.unit.assets.output.table.publishing_world import Publishing
from tests.unit.assets.output.table.test_evolution import NEW, OLD, Scene
from tests.unit.assets.output.table.test_readable_tables import check_table

pytestmark = pytest.mark.spark
LONG = [pytest.param(seed, marks=pytest.mark.long) for seed in range(1_002, 1_060)]


@pytest.mark.parametrize("seed", [1_000, 1_001, *LONG])
def test_spark_reads_what_is_written(tmp_path: Path, seed: int, connect_session: Any) -> None:
    def by_spark(table: Publishing) -> list[dict[str, Any]]:
        world = table.world
        frame = CommittedOutput(world.store, world.key, world.output).frame(connect_session)
        return frame.toArrow().to_pylist()

    # This Spark has no type for times of a day.
    check_table(tmp_path, seed, {"spark": by_spark}, without=r"time(32|64)|Time(32|64)")


def test_a_frame_has_renamed_columns_of_files_of_every_age(
    tmp_path: Path, connect_session: Any
) -> None:
    scene = Scene(tmp_path)
    scene.world.sweeper.keeps = lambda rows: rows.slice(0, 0)
    scene.world.consume("run-0")
    scene.consume(OLD)
    scene.evolve(renamed={"n": "m"}, removed=["price"])
    scene.consume(NEW)
    scene.publish()
    frame = scene.output().frame(connect_session)
    assert sorted(row.m for row in frame.collect()) == [1, 2]
    assert not {"n", "price"} & {*frame.columns}
