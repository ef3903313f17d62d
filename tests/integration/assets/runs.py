"""A small deployment on SQLite, and a run over its shards in a separate process."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dagster_leasehold.assets.arrow_transform import ArrowTransform
from dagster_leasehold.assets.consuming.consumption import Consumer
from dagster_leasehold.assets.consuming.consumption_report import ConsumptionReport
from dagster_leasehold.assets.consuming.following import Follow
from dagster_leasehold.assets.consuming.spark_sweeper import SparkSweeper
from dagster_leasehold.assets.guarding.run_on_spark import RunOnSpark
from dagster_leasehold.assets.output.table.columns import stream_routes
from dagster_leasehold.assets.places.local_place import local_place
from dagster_leasehold.assets.shard_stream import ShardStream, Transform
from dagster_leasehold.assets.spark.spark_resource import SparkResource
from dagster_leasehold.assets.spark.spark_session import NO_CONF
from dagster_leasehold.assets.table_settings import TableSettings
from dagster_leasehold.lease_store import open_store
from dagster_leasehold.lease_store.group_rows import Node
from dagster_leasehold.lease_store.identifiers import NodeName, ShardId
from dagster_leasehold.shard_sources.local_log import LocalLog
from dagster_leasehold.shard_sources.source import Limits
from tests.unit.assets.consumption_world import Beat

NODE = NodeName("a")
RECORDS = 30
PROJECT = Path(__file__).parents[3]


AnyTransform = Transform | ArrowTransform | None


def unchanged(rows: Any) -> Any:
    """Return a DataFrame unchanged, so that records go through Spark SQL."""
    return rows


WAYS: dict[str, AnyTransform] = {"arrow": None, "frames": unchanged}
"""Arrow and DataFrames, each with a transform that leaves records unchanged."""


def stream_of(home: Path, transform: AnyTransform = None) -> ShardStream:
    return ShardStream(
        name="orders",
        source=LocalLog.open(home / "log"),
        transform=transform,
        limits=Limits(records_max=12),
        # The commits of a run are published after its end: only published batches can be replayed.
        iceberg=TableSettings(publish_interval_s=0.0),
    )


def store_of(home: Path) -> Any:
    return open_store(f"sqlite:///{home / 'leases.db'}")


def consume(
    home: Path,
    spark_folder: Path,
    run: str,
    replaces: str | None = None,
    transform: AnyTransform = None,
    mode: str = "connect",
    follow: Follow | None = None,
    conf: Mapping[str, str] = NO_CONF,
) -> dict[ShardId, ConsumptionReport]:
    """One run over all shards of the deployment."""
    stream = stream_of(home, transform)
    return consume_stream(
        stream, home, spark_folder, run, replaces, mode=mode, follow=follow, conf=conf
    )


def consume_stream(
    stream: ShardStream,
    home: Path,
    spark_folder: Path,
    run: str,
    replaces: str | None = None,
    *,
    mode: str = "connect",
    follow: Follow | None = None,
    conf: Mapping[str, str] = NO_CONF,
) -> dict[ShardId, ConsumptionReport]:
    """Run once over all shards of a stream with the given settings."""
    store = store_of(home)
    shards = [lease.shard for lease in store.snapshot(stream.key).shards]
    spark = SparkResource(mode=mode, folder=str(spark_folder), conf=dict(conf))
    on_spark = RunOnSpark(
        session=lambda: spark.spark_session,
        renewed=spark.renewed_session,
        ended=lambda earlier: earlier == replaces,
        run=run,
        work=f"stream {stream.name}",
    )
    consumer = Consumer(
        stream=stream,
        store=store,
        node=NODE,
        run=run,
        sweeper=SparkSweeper(
            stream=stream,
            spark=on_spark,
            output_root=local_place(home / "output"),
            routes=lambda: stream_routes(store, stream.key),
        ),
        unfinished_by=on_spark.add_predecessor,
        heartbeat=Beat(),
        clock=time.monotonic,
        replaces=dict.fromkeys(shards, replaces) if replaces else None,
        follow=follow,
    )
    return consumer.consume(shards)


def new_home(home: Path) -> Path:
    """A deployment with three shards of records, all claimed by one node."""
    log = LocalLog.create(home / "log", 3)
    for listing in log.list_shards():
        log.append(listing.shard, [b"%s:%d" % (listing.shard.encode(), n) for n in range(RECORDS)])
    claim_all(stream_of(home), home)
    return home


def claim_all(stream: ShardStream, home: Path) -> None:
    """Make the group of a stream, and have one node claim all its shards."""
    store = store_of(home)
    store.create_group(stream.new_group(20.0))
    store.register(stream.key, Node(NODE, 0, "a-1"), observer="test")
    store.sync_shards(stream.key, stream.source.list_shards(), observer="test")
    leases = store.snapshot(stream.key).shards
    store.claim(
        stream.key,
        {lease.shard: (NODE, lease.lease_id) for lease in leases},
        observer="test",
        reason="test",
    )
