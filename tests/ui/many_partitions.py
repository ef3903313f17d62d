"""Definitions of a stream of many shards, and sensors of its user that note every partition.

A record is refused while its value is in the file `refused`. Each sensor appends the partitions
that it sees to a file of its name.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import dagster as dg

from dagster_leasehold.assets.arrow_transform import ArrowTransform, arrow_transform
from dagster_leasehold.assets.shard_stream import ShardStream
from dagster_leasehold.lease_store.identifiers import GroupKey
from dagster_leasehold.orchestration.build import build_definitions
from dagster_leasehold.orchestration.settings import Settings, load_settings
from dagster_leasehold.shard_sources.local_log import LocalLog

if TYPE_CHECKING:
    import pyarrow as pa

STREAM = "visits"
KEY = GroupKey.parse("default", STREAM)
ASSET_SENSOR, MULTI_ASSET_SENSOR = "seen_by_asset_sensor", "seen_by_multi_asset_sensor"
RECORDS_MAX = 2_000


def _refusing(home: Path) -> ArrowTransform:
    def refuse(records: pa.Table) -> pa.Table:
        refused = home / "refused"
        if refused.exists() and refused.read_bytes() in records["value"].to_pylist():
            raise ValueError("an unexpected unit")
        return records

    return arrow_transform(refuse)


def stream_of(settings: Settings) -> ShardStream:
    log = LocalLog(settings.home / "logs" / STREAM)
    return ShardStream(name=STREAM, source=log, transform=_refusing(settings.home))


def _users_sensors(home: Path) -> list[dg.SensorDefinition]:
    asset = dg.AssetKey([STREAM])

    def note(name: str, partitions: Iterable[str | None]) -> dg.SkipReason:
        with (home / name).open("a") as lines:
            lines.writelines(f"{partition}\n" for partition in partitions)
        return dg.SkipReason("noted")

    @dg.asset_sensor(
        asset_key=asset,
        name=ASSET_SENSOR,
        default_status=dg.DefaultSensorStatus.RUNNING,
        minimum_interval_seconds=5,
    )
    def since_the_last_tick(context: dg.SensorEvaluationContext) -> dg.SkipReason:
        # The event that Dagster hands over is the newest alone.
        since = dg.AssetRecordsFilter(asset, after_storage_id=int(context.cursor or 0))
        records = context.instance.fetch_materializations(since, limit=RECORDS_MAX).records
        return note(ASSET_SENSOR, (record.partition_key for record in records))

    @dg.multi_asset_sensor(
        monitored_assets=[asset],
        name=MULTI_ASSET_SENSOR,
        default_status=dg.DefaultSensorStatus.RUNNING,
        minimum_interval_seconds=5,
    )
    def by_partition(context: dg.MultiAssetSensorEvaluationContext) -> dg.SkipReason:
        # In this order: a materialization in between is seen again, and not missed.
        context.advance_all_cursors()
        return note(MULTI_ASSET_SENSOR, context.latest_materialization_records_by_partition(asset))

    return [since_the_last_tick, by_partition]


@dg.definitions
def defs() -> dg.Definitions:
    settings = load_settings()
    users = dg.Definitions(sensors=_users_sensors(settings.home))
    return dg.Definitions.merge(build_definitions([stream_of(settings)]), users)
