"""Definitions that Dagster loads: two streams, hours of one, and an asset that reads its output."""

from datetime import UTC, datetime

import dagster as dg
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from access_log.parsing import parse, traffic
from dagster_leasehold import (
    Decode,
    HourlyAsset,
    LateAction,
    LatePolicy,
    LocalLog,
    ShardStream,
    TableSettings,
    WatermarkOf,
    build_definitions,
    load_settings,
    named_source,
    publication_check,
)

settings = load_settings()

access = ShardStream(
    name="access",
    source=LocalLog(settings.log_folder("access")),
    transform=parse,
    # The lines say when they happened; the log only knows when they were appended.
    watermark_of=WatermarkOf.OUTPUT,
    # Queries of one status or day open few files, and compaction sorts each file by client.
    iceberg=TableSettings(partitioning=("status", "day(event_time)"), sort_order=("client",)),
)


@publication_check(on_failure="quarantine")
def prices(records: pa.Table) -> pa.ChunkedArray:
    """An order has a price; an order without one goes to quarantine before it is published."""
    return pc.greater(records["price"], 0)


orders = ShardStream(
    "orders",
    named_source("local_log", "orders"),
    decode=Decode("json", schema="id bigint, item string, price double, kind string"),
    # Each kind of item also has a table of its own.
    route="kind",
    iceberg=TableSettings(publication_checks=(prices,)),
)

traffic_per_hour = HourlyAsset(
    "traffic_per_hour",
    access,
    traffic,
    since=datetime(2026, 3, 1, 12, tzinfo=UTC),
    late=LatePolicy(LateAction.RERUN),
)


@dg.asset(group_name="streams", ins={"requests": dg.AssetIn("access")})
def clients(requests: ds.Dataset) -> dg.MaterializeResult:
    """The number of clients in all committed output."""
    addresses = requests.to_table(columns=["client"]).column("client")
    return dg.MaterializeResult(metadata={"clients": len(addresses.unique())})


defs = dg.Definitions.merge(
    build_definitions([access, orders], hourly=[traffic_per_hour]),
    dg.Definitions(assets=[clients], executor=dg.in_process_executor),
)
