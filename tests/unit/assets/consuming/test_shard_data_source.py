"""How ranges are packed into tasks, and how a batch gets the exact form that Spark expects."""

from __future__ import annotations

from dagster_leasehold.assets.consuming.shard_data_source import (
    ShardDataSource,
    ShardRangesReader,
    read_options,
)
from dagster_leasehold.assets.places.local_place import local_place
from dagster_leasehold.lease_store.identifiers import ShardId
from dagster_leasehold.shard_sources.source import ReadRange, record_schema


def test_nothing_to_read_is_one_empty_part(tmp_path) -> None:
    """Goal: Spark would turn an empty list of parts into one part that is None."""
    options = read_options({"source": "none"}, [], 4, local_place(tmp_path))
    reader = ShardDataSource(options).reader(None)
    [part] = reader.partitions()
    assert list(reader.read(part)) == []


def test_ranges_travel_as_options_unchanged(tmp_path) -> None:
    given_ranges = [ReadRange(ShardId("a.b-c_1"), "it's", '"{}"', 3)]
    reader = ShardRangesReader(
        read_options({"source": "x"}, given_ranges, 4, local_place(tmp_path))
    )
    [part] = reader.partitions()
    assert part.ranges == tuple(given_ranges)


def test_the_schema_is_the_one_of_every_source() -> None:
    from pyspark.sql.pandas.types import from_arrow_schema

    promised = ShardDataSource({}).schema().replace(" ", ":").replace(",:", ",")
    assert from_arrow_schema(record_schema()).simpleString() == f"struct<{promised}>"
