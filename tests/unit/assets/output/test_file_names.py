"""Names of data files say which batches they hold, old names that they do not say."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dagster_leasehold.assets.output.attempts import file_name, shard_and_batches
from dagster_leasehold.lease_store.identifiers import ShardId

SHARDS = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", fullmatch=True).map(ShardId)


@given(SHARDS, st.integers(0, 10**12), st.integers(1, 10**4), st.booleans())
def test_batch_numbers_are_parsed_from_file_names(
    shard: ShardId, first: int, count: int, quarantine: bool
) -> None:
    numbers = range(first, first + count)
    for rest in ("merged", "0000-0123456789abcdef", "00012-7-3"):
        name = file_name(shard, numbers, rest, quarantine=quarantine)
        assert shard_and_batches(name) == (shard, numbers)
        assert name.endswith(".quarantine.parquet") == quarantine


@pytest.mark.parametrize(
    "name",
    [
        "0.0123456789abcdef0123456789abcdef.parquet",
        "0.00000-0-0.parquet",
        "0.00000-0-0.quarantine.parquet",
        "0.merged.parquet",
        "part-00000-x.snappy.parquet",
    ],
)
def test_file_names_of_earlier_releases_have_no_batch_numbers(name: str) -> None:
    assert shard_and_batches(name) is None
