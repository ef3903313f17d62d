"""What Dagster loads: the stream, its hours, and an asset that reads all that is committed."""

from datetime import UTC, datetime

import dagster as dg
import pyarrow.dataset as ds

from access_log.parsing import parse, traffic
from dagster_leasehold.assets.shard_stream import ShardStream, WatermarkOf
from dagster_leasehold.assets.windows.hourly_asset import LateAction, LatePolicy, hourly_asset
from dagster_leasehold.lease_store.identifiers import StreamName
from dagster_leasehold.orchestration.build import build_definitions
from dagster_leasehold.orchestration.settings import load_settings
from dagster_leasehold.shard_sources.local_log import LocalLog

settings = load_settings()

access = ShardStream(
    name="access",
    source=LocalLog(settings.log_folder(StreamName("access"))),
    transform=parse,
    # The lines say when they happened; the log only knows when they were appended.
    watermark_of=WatermarkOf.OUTPUT,
)

traffic_per_hour = hourly_asset(
    access,
    "traffic_per_hour",
    traffic,
    since=datetime(2026, 3, 1, 12, tzinfo=UTC),
    late=LatePolicy(LateAction.RERUN),
)


@dg.asset(group_name="streams", ins={"requests": dg.AssetIn("access")})
def clients(requests: ds.Dataset) -> dg.MaterializeResult:
    """How many clients there were, in all that is committed."""
    addresses = requests.to_table(columns=["client"]).column("client")
    return dg.MaterializeResult(metadata={"clients": len(addresses.unique())})


defs = dg.Definitions.merge(
    build_definitions([access], settings, hourly=[traffic_per_hour]),
    dg.Definitions(assets=[clients]),
)
