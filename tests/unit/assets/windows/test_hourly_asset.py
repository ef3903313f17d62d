"""The declaration of an asset of hours."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from dagster_leasehold.assets.arrow_transform import arrow_transform
from dagster_leasehold.assets.shard_stream import ShardStream
from dagster_leasehold.assets.windows.hourly_asset import hourly_asset
from dagster_leasehold.lease_store.errors import InvalidSetting
from dagster_leasehold.shard_sources.local_log import LocalLog


def test_an_hour_of_all_shards_is_no_arrow_table(tmp_path: Path) -> None:
    transform: Any = arrow_transform(lambda table: table)
    stream = ShardStream("visits", LocalLog(tmp_path))
    with pytest.raises(InvalidSetting, match=r"takes Arrow tables.*leave the decorator away"):
        hourly_asset(stream, "per_hour", transform, since=datetime(2026, 1, 31, tzinfo=UTC))
