"""Exact reads in Spark's own Python workers, many shards in one job."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dagster_leasehold.assets.consuming.shard_data_source import (
    FORMAT,
    ShardDataSource,
    read_options,
)
from dagster_leasehold.assets.output.attempt_reports import read_statistics
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
    connect_session.dataSource.register(ShardDataSource)
    folder = local_place(tmp_path / "reports")
    options = read_options(source.spark_options(), ranges, 2, folder)
    rows = connect_session.read.format(FORMAT).options(**options).load().collect()
    read = {each: [row for row in rows if row.shard_id == each] for each in (shard, other)}
    assert [bytes(row.value) for row in read[shard]] == list(VALUES)
    assert [bytes(row.value) for row in read[other]] == list(VALUES[:5])
    in_process = world.rows(shard, ranges[0].start, ranges[0].end)
    assert [row.cursor for row in read[shard]] == [row["cursor"] for row in in_process]
    assert [row.event_time.timestamp() for row in read[shard]] == [
        row["event_time"].timestamp() for row in in_process
    ]
    reports = read_statistics(folder, [shard, other])
    assert {each: statistics.records for each, statistics in reports.items()} == {
        shard: len(VALUES),
        other: 5,
    }
