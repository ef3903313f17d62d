"""The offset log of a Structured Streaming query, from the content of real files."""

import pytest

from dagster_leasehold.lease_store.errors import CheckpointRefused, UnknownGroup
from dagster_leasehold.shard_sources.kafka.spark_offsets import (
    QueryBatches,
    offsets_of,
    query_batches,
)

METADATA = (
    '{"batchWatermarkMs":0,"batchTimestampMs":1795456008256,"conf":'
    '{"spark.sql.shuffle.partitions":"200"},"sourceMetadataInfo":{}}'
)


def log(*sources: str, version: str = "v1") -> str:
    return "\n".join([version, METADATA, *sources])


def test_the_query_continues_after_its_newest_finished_batch() -> None:
    names = ["0", "1", "2", "10", "metadata", ".9.crc"]
    assert query_batches(names, ["0", "1", "2", "10", ".10.crc"]) == QueryBatches(10, None)
    assert query_batches(names, ["0", "1", "2"]) == QueryBatches(2, 10)
    # Spark deletes old files of the two logs at different times.
    assert query_batches(["2", "10"], ["1", "2"]) == QueryBatches(2, 10)


def test_a_location_without_a_finished_batch_is_refused() -> None:
    for names in ([], ["0"]):
        with pytest.raises(UnknownGroup, match="checkpointLocation"):
            query_batches(names, [])


def test_offsets_are_those_of_the_topic_in_either_version() -> None:
    source = '{"orders":{"0":23,"1":10},"visits":{"0":5}}'
    assert offsets_of(log(source), "orders") == {"0": "23", "1": "10"}
    assert offsets_of(log("-", source), "visits") == {"0": "5"}
    other = '{"logOffset":7}'
    assert offsets_of(log(other, source, "12"), "visits") == {"0": "5"}
    named = [f"0:{source}", "clicks:-"]
    assert offsets_of(log(*named, version="v2"), "orders") == {"0": "23", "1": "10"}


def test_a_query_of_other_topics_is_refused_with_their_names() -> None:
    with pytest.raises(UnknownGroup, match="offset log are: visits"):
        offsets_of(log('{"visits":{"0":5}}'), "orders")


def test_two_sources_that_disagree_are_refused_and_two_that_agree_are_not() -> None:
    ahead, behind = '{"orders":{"0":5}}', '{"orders":{"0":4}}'
    with pytest.raises(CheckpointRefused, match="different offsets"):
        offsets_of(log(ahead, behind), "orders")
    assert offsets_of(log(ahead, ahead), "orders") == {"0": "5"}


@pytest.mark.parametrize("content", ["", "v3\n{}\n-", "v1", '{"orders":{"0":5}}'])
def test_an_unknown_form_is_refused(content: str) -> None:
    with pytest.raises(CheckpointRefused, match="versions 1 and 2"):
        offsets_of(content, "orders")


@pytest.mark.parametrize("offset", ["-1", '"5"', "1.5", "true", "9223372036854775808"])
def test_offsets_that_are_not_from_kafka_are_refused(offset: str) -> None:
    with pytest.raises(UnknownGroup):
        offsets_of(log(f'{{"orders":{{"0":{offset}}}}}'), "orders")
