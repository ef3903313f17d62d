"""A stream whose batches wait while there is a file `hold` in the home."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

from dagster_leasehold.assets.arrow_transform import ArrowTransform, arrow_transform
from dagster_leasehold.assets.shard_stream import ShardStream
from dagster_leasehold.lease_store.identifiers import GroupKey
from dagster_leasehold.orchestration.settings import Settings
from dagster_leasehold.shard_sources.local_log import LocalLog

if TYPE_CHECKING:
    import pyarrow as pa

STREAM = "visits"
KEY = GroupKey.parse("default", STREAM)
LOOK_AGAIN_S = 0.1


def _holding(home: Path) -> ArrowTransform:
    def hold(records: pa.Table) -> pa.Table:
        while (home / "hold").exists():
            time.sleep(LOOK_AGAIN_S)
        return records

    return arrow_transform(hold)


def stream_of(settings: Settings) -> ShardStream:
    log = LocalLog(settings.home / "logs" / STREAM)
    return ShardStream(name=STREAM, source=log, transform=_holding(settings.home))
