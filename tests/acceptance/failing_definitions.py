"""Definitions of a stream whose transform raises for one shard while there is a file `broken`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from dagster_leasehold.assets.arrow_transform import arrow_transform
from dagster_leasehold.assets.pace import Pace
from dagster_leasehold.assets.shard_stream import ShardStream
from dagster_leasehold.orchestration.build import build_definitions
from dagster_leasehold.orchestration.settings import load_settings
from dagster_leasehold.shard_sources.local_log import LocalLog

if TYPE_CHECKING:
    import pyarrow as pa

STREAM = "visits"
FAILING = "1"
_settings = load_settings()


class PricedVisits:
    """Returns records as they are, unless a price is missing."""

    def __init__(self, home: Path) -> None:
        self.home = home

    def __call__(self, records: pa.Table) -> pa.Table:
        """Raise for one shard while the file is there."""
        if (self.home / "broken").exists() and records["shard_id"][0].as_py() == FAILING:
            raise KeyError("price")
        return records


stream = ShardStream(
    name=STREAM,
    source=LocalLog(_settings.home / "logs" / STREAM),
    transform=arrow_transform(PricedVisits(_settings.home)),
    pace=Pace(commit_interval_s=1.0),
)
defs = build_definitions([stream])
