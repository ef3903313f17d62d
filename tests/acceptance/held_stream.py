"""A stream whose first batch a test can hold in the middle of its Spark job.

A file named `hold` in the home makes every task that reads wait after its first rows. The task
creates a file `held-<shard>`, and continues when `hold` is removed.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from dagster_leasehold.assets.arrow_transform import ArrowTransform, arrow_transform
from dagster_leasehold.assets.pace import Pace
from dagster_leasehold.assets.shard_stream import ShardStream
from dagster_leasehold.lease_store.identifiers import GroupKey
from dagster_leasehold.lease_store.ledger_rows import BatchState
from dagster_leasehold.lease_store.store import LeaseStore
from dagster_leasehold.orchestration.settings import Settings
from dagster_leasehold.shard_sources.local_log import LocalLog
from tests.ledger_output import ledger_records

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

STREAM = "orders"
KEY = GroupKey.parse("default", STREAM)
HELD_MAX_S = 120.0


def holding_tables(home: Path) -> ArrowTransform:
    """Return the same transform of Arrow tables, which waits before it returns one."""

    def hold(records: pa.Table) -> pa.Table:
        deadline = time.monotonic() + HELD_MAX_S
        if (home / "hold").exists():
            (home / f"held-{records['shard_id'][0].as_py()}").touch()
        while (home / "hold").exists() and time.monotonic() < deadline:
            time.sleep(0.05)
        return records

    return arrow_transform(hold)


class HoldingTransform:
    """Passes all records on, and waits in the middle while the home has a file `hold`."""

    def __init__(self, home: Path) -> None:
        self.home = home

    def __call__(self, records: DataFrame) -> DataFrame:
        home = str(self.home)

        def hold(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            deadline = time.monotonic() + HELD_MAX_S
            for batch in batches:
                half = batch.num_rows // 2
                yield batch.slice(0, half)
                if (Path(home) / "hold").exists() and batch.num_rows:
                    shard = batch.column("shard_id")[0].as_py()
                    (Path(home) / f"held-{shard}").touch()
                while (Path(home) / "hold").exists() and time.monotonic() < deadline:
                    time.sleep(0.05)
                yield batch.slice(half)

        return records.mapInArrow(hold, records.schema)


def stream_of(settings: Settings) -> ShardStream:
    return ShardStream(
        name=STREAM,
        source=LocalLog(settings.home / "logs" / STREAM),
        transform=HoldingTransform(settings.home),
        pace=Pace(commit_interval_s=0.0, idle_limit_s=1.0),
    )


def committed(store: LeaseStore, output: Path) -> dict[str, list[bytes]]:
    """The values of committed output, shard by shard in its order."""
    by_shard: dict[str, list[bytes]] = {}
    for batch in ledger_records(store, KEY, output):
        shards, values = batch.column("shard_id").to_pylist(), batch.column("value").to_pylist()
        for shard, value in zip(shards, values, strict=True):
            by_shard.setdefault(shard, []).append(value)
    return by_shard


def intended(store: LeaseStore, home: Path) -> str | None:
    """The run of a batch that is in the middle of its Spark job, once there is one."""
    if KEY not in {group.key for group in store.groups()}:
        return None
    for batch in store.batches(KEY, state=BatchState.INTENT):
        if (home / f"held-{batch.shard}").exists():
            return batch.run
    return None
