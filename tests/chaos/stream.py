"""The stream that is consumed during incidents: record n of shard s has the value `s:n`.

Its runs follow their shards, and wait between two batches most of the time. One of the two nodes
has a DataFrame transform and the other an Arrow transform, so that each continues the other's work.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dagster_leasehold.assets.pace import Pace
from dagster_leasehold.assets.shard_stream import ShardStream
from dagster_leasehold.lease_store.identifiers import GroupKey
from dagster_leasehold.shard_sources.local_log import LocalLog
from dagster_leasehold.shard_sources.source import Limits

STREAM = "orders"
KEY = GroupKey.parse("default", STREAM)
NODES = ("a", "b")
SHARDS = 4
TIMEOUT_S = float(os.environ.get("LEASEHOLD_CHAOS_TIMEOUT_S", "10"))
"""T; a busy machine needs more than an idle one."""
HANDOFF_LIMIT_S = 4.0
WITH_FRAMES = "a"
"""The node whose deployment has a DataFrame transform, which leaves records unchanged."""


def log_folder(home: Path) -> Path:
    return home / "logs" / STREAM


def unchanged(rows: Any) -> Any:
    """Return a DataFrame unchanged."""
    return rows


def stream_of(home: Path, nodes: Sequence[str] = ()) -> ShardStream:
    """Return the stream as a deployment of these nodes declares it.

    Runs are short and batches small, so that every step comes round often.
    """
    return ShardStream(
        name=STREAM,
        source=LocalLog(log_folder(home)),
        transform=unchanged if WITH_FRAMES in nodes else None,
        limits=Limits(records_max=20_000),
        pace=Pace(
            shards_per_run=2,
            run_budget_s=6.0,
            commit_interval_s=1.5,
            idle_limit_s=4.0,
            handoff_limit_s=HANDOFF_LIMIT_S,
        ),
    )
