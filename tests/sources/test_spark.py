"""Exact reads in Spark's own Python workers, many shards in one job."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dagster_leasehold.assets.consuming.frame_tasks import RangesRead, statistics_of
from dagster_leasehold.assets.output.output_file import RECORD_DDL
from dagster_leasehold.assets.places.local_place import local_place
from dagster_leasehold.lease_store.identifiers import ShardId
from dagster_leasehold.shard_sources.source import Limits, Position, ReadRange
from tests.sources.world import VALUES, SourceWorld

pytestmark = pytest.mark.spark


def test_a_job_reads_the_ranges_of_all_shards(
    world: SourceWorld, shard: ShardId, connect_session: Any, tmp_path: Path
) -> None:
    """Method: two shards, one with a range that ends within it, in two tasks."""
    source, other = world.source, world.source.list_shards()[1].shard
    world.fill(other, VALUES[:12])
    ranges: list[ReadRange] = []
    for each, records in ((shard, len(VALUES)), (other, 5)):
        begin = source.cursor_at(each, Position.BEGIN)
        plan = source.plan(each, begin, Limits(records_max=records))
        ranges.append(ReadRange(each, begin, plan.end, plan.records))
    folder = local_place(tmp_path / "output")
    reading = RangesRead(source.spark_options(), tuple((range_,) for range_ in ranges), folder)
    all_rows = connect_session.range(0, 2, 1, 2).mapInArrow(reading, RECORD_DDL).collect()
    rows = [row for row in all_rows if row.shard_id is not None]
    read = {each: [row for row in rows if row.shard_id == each] for each in (shard, other)}
    assert [bytes(row.value) for row in read[shard]] == list(VALUES)
    assert [bytes(row.value) for row in read[other]] == list(VALUES[:5])
    in_process = world.rows(shard, ranges[0].start, ranges[0].end)
    assert [row.cursor for row in read[shard]] == [row["cursor"] for row in in_process]
    assert [row.event_time.timestamp() for row in read[shard]] == [
        row["event_time"].timestamp() for row in in_process
    ]
    reports = [row.value for row in all_rows if row.shard_id is None]
    counted = {each: statistics.records for each, statistics in map(statistics_of, reports)}
    assert counted == {shard: len(VALUES), other: 5}
