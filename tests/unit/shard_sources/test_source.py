from __future__ import annotations

import pyarrow as pa

from dagster_leasehold.shard_sources.source import joined


def test_small_batches_are_combined_in_order_up_to_a_size() -> None:
    batches = [pa.record_batch({"value": pa.array([n, n + 1])}) for n in range(0, 20_000, 2)]
    together = list(joined(batches))
    assert [value for batch in together for value in batch["value"].to_pylist()] == [*range(20_000)]
    assert [batch.num_rows for batch in together] == [8192, 8192, 20_000 - 2 * 8192]


def test_no_batches_are_combined_to_none() -> None:
    assert list(joined([])) == []
