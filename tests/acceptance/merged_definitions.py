"""A project's definitions: two builds of streams, and the project's assets with common names."""

from __future__ import annotations

import time
from pathlib import Path

import dagster as dg

from dagster_leasehold.assets.pace import Pace
from dagster_leasehold.assets.partitions import shard_partitions
from dagster_leasehold.assets.shard_stream import ShardStream
from dagster_leasehold.orchestration.build import build_definitions
from dagster_leasehold.orchestration.settings import Settings, load_settings
from dagster_leasehold.shard_sources.local_log import LocalLog

HELD_MAX_S = 120.0


class Session(dg.ConfigurableResource):  # pyright: ignore[reportMissingTypeArgument]
    """The project's own Spark session, so to say; it notes in the home who uses it."""

    home: str

    def use(self, user: str) -> None:
        (Path(self.home) / f"used-by-{user}").touch()


def stream_of(settings: Settings, name: str) -> ShardStream:
    return ShardStream(
        name=name,
        source=LocalLog(settings.home / "logs" / name),
        pace=Pace(commit_interval_s=0.0, idle_limit_s=1.0),
    )


def project_of(settings: Settings, orders: ShardStream) -> dg.Definitions:
    """Return the project's own part, in which each step of a run has a process."""

    @dg.op
    def count(spark: Session) -> None:
        spark.use("nightly")

    @dg.job
    def nightly() -> None:
        count()

    @dg.sensor(job=nightly, default_status=dg.DefaultSensorStatus.RUNNING)
    def rebalance() -> dg.RunRequest:
        return dg.RunRequest(run_key="once")

    @dg.asset(partitions_def=shard_partitions(orders), deps=[orders.name])
    def labels(spark: Session) -> None:
        spark.use("labels")
        deadline = time.monotonic() + HELD_MAX_S
        while not (settings.home / "go").exists() and time.monotonic() < deadline:
            time.sleep(0.05)

    return dg.Definitions(
        assets=[labels],
        jobs=[nightly],
        sensors=[rebalance],
        resources={"spark": Session(home=str(settings.home))},
        executor=dg.multiprocess_executor,
    )


_settings = load_settings()
_orders, _visits = stream_of(_settings, "orders"), stream_of(_settings, "visits")
defs = dg.Definitions.merge(
    build_definitions([_orders]), project_of(_settings, _orders), build_definitions([_visits])
)
