"""The streams that settings declare, as values that everything else is built on."""

from __future__ import annotations

from dagster_leasehold.assets.shard_stream import ShardStream
from dagster_leasehold.lease_store.identifiers import StreamName
from dagster_leasehold.orchestration.settings import Settings, StreamSettings
from dagster_leasehold.shard_sources.registry import StreamPlace, open_source
from dagster_leasehold.shard_sources.source import Limits


def declared_stream(declared: StreamSettings, settings: Settings) -> ShardStream:
    """One stream of the settings.

    A log or service that is not there yet is no error here: the shard list sensor says so at
    every tick until it is, and the other streams go on.

    Raises:
        SourceLibraryMissing: the source's client library is not installed.
    """
    stream = StreamName(declared.name)
    place = StreamPlace(stream, settings.log_folder(stream))
    return ShardStream(
        name=declared.name,
        source=open_source(declared.source, declared.source_options, place),
        group=declared.group,
        ordered=declared.ordered,
        assignment=declared.assignment,
        nodes=declared.node_settings,
        limits=Limits(declared.batch_records_max, declared.batch_bytes_max),
        shards_per_run=declared.shards_per_run,
        run_budget_s=declared.run_budget_s,
        stall_limit_s=declared.stall_limit_s,
    )


def declared_streams(settings: Settings) -> tuple[ShardStream, ...]:
    """All streams of the settings, in their order."""
    return tuple(declared_stream(declared, settings) for declared in settings.streams)
