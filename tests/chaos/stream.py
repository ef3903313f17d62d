"""The stream that is consumed while things break: record n of shard s has the value `s:n`."""

from __future__ import annotations

import os
from pathlib import Path

from dagster_leasehold.assets.shard_stream import ShardStream
from dagster_leasehold.lease_store.identifiers import GroupKey
from dagster_leasehold.shard_sources.local_log import LocalLog
from dagster_leasehold.shard_sources.source import Limits

STREAM = "orders"
KEY = GroupKey.parse("default", STREAM)
NODES = ("a", "b")
SHARDS = 4
TIMEOUT_S = float(os.environ.get("LEASEHOLD_CHAOS_TIMEOUT_S", "10"))
"""T; a machine that does much else needs more than an idle one."""
HANDOFF_LIMIT_S = 4.0


def log_folder(home: Path) -> Path:
    return home / "logs" / STREAM


def stream_of(home: Path) -> ShardStream:
    """Short runs and small batches, so that every step comes round often."""
    return ShardStream(
        name=STREAM,
        source=LocalLog(log_folder(home)),
        limits=Limits(records_max=20_000),
        shards_per_run=2,
        run_budget_s=6.0,
        commit_interval_s=0.2,
        idle_limit_s=2.0,
        handoff_limit_s=HANDOFF_LIMIT_S,
    )
