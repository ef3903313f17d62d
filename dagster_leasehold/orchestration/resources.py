"""Settings turned into what the definitions run on: the lease store, folders, Spark."""

from __future__ import annotations

from threading import Lock
from typing import TYPE_CHECKING

from dagster_leasehold.assets.deployment import Deployment
from dagster_leasehold.assets.spark.spark_settings import CONNECT
from dagster_leasehold.lease_store.store import LeaseStore
from dagster_leasehold.orchestration.settings import Settings

if TYPE_CHECKING:
    from dagster_leasehold.assets.spark.spark_resource import SparkResource


def deployment_of(settings: Settings) -> Deployment:
    """Return the deployment that the settings describe; nothing is opened before it is used."""

    lock = Lock()
    opened: list[LeaseStore] = []

    def store() -> LeaseStore:
        from dagster_leasehold.lease_store import open_store

        # Sensors tick in threads of one process, and share one pool of connections.
        with lock:
            if not opened:
                settings.home.mkdir(parents=True, exist_ok=True)
                opened.append(open_store(settings.store_url))
            return opened[0]

    return Deployment(
        store=store,
        nodes=settings.node_names,
        timing=settings.timing,
        output_folder=lambda key: settings.output_folder(key.stream, key.group),
        upkeep_file=lambda key: settings.upkeep_file(key.stream, key.group),
        agents=settings.agents,
        catalog=settings.catalog_settings,
        history_age=settings.history_age,
        leaving=settings.leaving_mark.exists if settings.agent_node else lambda: False,
        spark_folder=settings.spark_folder if _spark_is_shared(settings) else None,
    )


def _spark_is_shared(settings: Settings) -> bool:
    return settings.spark.engine == CONNECT and not settings.agents


def spark_of(settings: Settings) -> SparkResource:
    """Return the Spark session that the settings describe; the first run starts it."""
    # It loads Dagster, which commands that only look for a stream do not need.
    from dagster_leasehold.assets.spark.spark_resource import SparkResource

    spark = settings.spark
    return SparkResource(
        mode=spark.engine,
        folder=str(settings.spark_folder),
        conf=spark.whole_conf,
        certificate=str(spark.certificate.absolute()) if spark.certificate else "",
        environment_archive=str(spark.environment_archive or ""),
    )
