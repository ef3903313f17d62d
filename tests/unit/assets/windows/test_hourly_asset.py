"""The declaration of an asset of hours."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dagster_leasehold.assets.arrow_transform import arrow_transform
from dagster_leasehold.assets.places.local_place import local_place
from dagster_leasehold.assets.shard_stream import ShardStream
from dagster_leasehold.assets.windows.hourly_asset import HourlyAsset, window_metadata
from dagster_leasehold.assets.windows.window_run import WindowResult
from dagster_leasehold.lease_store.errors import InvalidSetting
from dagster_leasehold.lease_store.ledger_rows import DataFile
from dagster_leasehold.lease_store.window_rows import EventWindow
from dagster_leasehold.shard_sources.local_log import LocalLog


def test_an_hourly_asset_refuses_an_arrow_transform(tmp_path: Path) -> None:
    transform: Any = arrow_transform(lambda table: table)
    stream = ShardStream("visits", LocalLog(tmp_path))
    with pytest.raises(InvalidSetting, match=r"takes Arrow tables.*remove the decorator"):
        HourlyAsset("per_hour", stream, transform, since=datetime(2026, 1, 31, tzinfo=UTC))


def test_the_metadata_of_an_hour_use_the_keys_of_dagster(tmp_path: Path) -> None:
    table = pa.table({"shard_id": ["0", "1"], "count": [60, 60]})
    (tmp_path / "attempts" / "1").mkdir(parents=True)
    pq.write_table(table, tmp_path / "attempts" / "1" / "a.parquet")
    start = datetime(2026, 1, 31, tzinfo=UTC)
    window = EventWindow(
        "per_hour",
        start,
        start + timedelta(hours=1),
        files=(DataFile("attempts/1/a.parquet", 2, 700),),
        records=2,
    )
    metadata = window_metadata(WindowResult(window, source_files=4), local_place(tmp_path))
    assert metadata["dagster/partition_row_count"] == 2
    assert metadata["dagster/uri"] == f"file://{tmp_path}/attempts/1"
    columns = metadata["dagster/column_schema"].columns
    assert [(each.name, each.type) for each in columns] == [
        ("shard_id", "string"),
        ("count", "long"),
    ]
    vanished = replace(window, files=(DataFile("attempts/2/a.parquet", 2, 700),))
    assert window_metadata(WindowResult(vanished, 4), local_place(tmp_path))["records"] == 2
