"""Settings turned into what the definitions run on: streams, the lease store, folders, Spark."""

from __future__ import annotations

from dataclasses import fields
from threading import Lock
from typing import TYPE_CHECKING, Any

from dagster_leasehold.assets.deployment import Deployment
from dagster_leasehold.assets.shard_stream import ShardStream
from dagster_leasehold.lease_store.identifiers import StreamName
from dagster_leasehold.lease_store.store import LeaseStore
from dagster_leasehold.orchestration.settings import Settings
from dagster_leasehold.orchestration.stream_settings import StreamSettings
from dagster_leasehold.shard_sources.registry import StreamPlace, open_source
from dagster_leasehold.shard_sources.source import Limits

if TYPE_CHECKING:
    from dagster_leasehold.assets.spark.spark_resource import SparkResource


def declared_stream(declared: StreamSettings, settings: Settings) -> ShardStream:
    """Return one stream of the settings, with its source.

    A log or service that is not there yet is no error here: the shard list sensor says so at
    every tick until it is, and the other streams go on.

    Raises:
        SourceLibraryMissing: the source's client library is not installed.
    """
    stream = StreamName(declared.name)
    place = StreamPlace(stream, settings.log_folder(stream))
    # What both have under one name: the other settings are made into something else.
    same = {each.name for each in fields(ShardStream)} & StreamSettings.model_fields.keys()
    arguments: dict[str, Any] = {name: getattr(declared, name) for name in same}
    arguments |= {
        "source": open_source(declared.source, declared.source_options, place),
        "nodes": declared.node_settings,
        "limits": Limits(declared.batch_records_max, declared.batch_bytes_max),
        "table": declared.table_settings,
    }
    return ShardStream(**arguments)


def declared_streams(settings: Settings) -> tuple[ShardStream, ...]:
    """Return all streams of the settings, in their order."""
    return tuple(declared_stream(declared, settings) for declared in settings.streams)


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
    )


def spark_of(settings: Settings) -> SparkResource:
    """Return the Spark session that the settings describe; the first run starts it."""
    # It loads Dagster, which commands that only look for a stream do not need.
    from dagster_leasehold.assets.spark.spark_resource import SparkResource

    return SparkResource(mode=settings.spark, folder=str(settings.spark_folder))
