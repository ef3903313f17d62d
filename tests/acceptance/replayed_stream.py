"""A stream whose transform and hook a test controls by files in the home.

The transform puts the content of `prefix` before each value. The hook appends a line to `told` for
each call, and raises an error while the file `refuse` exists.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from dagster_leasehold.assets.pace import Pace
from dagster_leasehold.assets.shard_stream import ShardStream
from dagster_leasehold.lease_store.identifiers import GroupKey
from dagster_leasehold.orchestration.settings import Settings
from dagster_leasehold.shard_sources.local_log import LocalLog
from dagster_leasehold.shard_sources.source import Limits

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from dagster_leasehold.assets.commit_hook import CommittedBatch

STREAM = "orders"
KEY = GroupKey.parse("default", STREAM)
RECORDS_MAX = 40


class TodaysTransform:
    """Puts the content of the file `prefix` before each value."""

    def __init__(self, home: Path) -> None:
        self.home = home

    def __call__(self, records: DataFrame) -> DataFrame:
        from pyspark.sql import functions as f

        path = self.home / "prefix"
        prefix = path.read_bytes() if path.exists() else b""
        return records.withColumn("value", f.concat(f.lit(prefix), f.col("value")))


class NotingHook:
    """Records each call in the file `told`, and raises an error while the file `refuse` exists."""

    def __init__(self, home: Path) -> None:
        self.home = home

    def __call__(self, batch: CommittedBatch) -> None:
        if (self.home / "refuse").exists():
            raise ConnectionError("amqp://guest:hunter2@bus refused the batch\nwith a stack trace")
        with (self.home / "told").open("a") as lines:
            lines.write(json.dumps([batch.shard, batch.batch_id, batch.start, batch.end]) + "\n")


def hook_calls(home: Path) -> list[tuple[str, str, str, str]]:
    """The calls of the hook that returned: shard, batch id, start and end."""
    path = home / "told"
    lines = path.read_text().splitlines() if path.exists() else []
    return [tuple(json.loads(line)) for line in lines]


def stream_of(settings: Settings) -> ShardStream:
    return ShardStream(
        name=STREAM,
        source=LocalLog(settings.home / "logs" / STREAM),
        transform=TodaysTransform(settings.home),
        limits=Limits(records_max=RECORDS_MAX),
        pace=Pace(commit_interval_s=0.0, idle_limit_s=1.0),
        on_commit=NotingHook(settings.home),
    )
