"""The streams that settings declare, as values that everything else is built on."""

from __future__ import annotations

from assets.shard_stream import ShardStream
from lease_store.identifiers import StreamName
from orchestration.settings import Settings, StreamSettings
from shard_sources.source import Limits


def declared_stream(declared: StreamSettings, settings: Settings) -> ShardStream:
    """One stream of the settings.

    A local log that does not exist yet is no error here: the shard list sensor says so at every
    tick until it does, and the other streams go on.
    """
    from shard_sources.local_log import LocalLog

    return ShardStream(
        name=declared.name,
        source=LocalLog(settings.log_folder(StreamName(declared.name))),
        group=declared.group,
        ordered=declared.ordered,
        limits=Limits(declared.batch_records_max, declared.batch_bytes_max),
        shards_per_run=declared.shards_per_run,
        run_budget_s=declared.run_budget_s,
    )


def declared_streams(settings: Settings) -> tuple[ShardStream, ...]:
    """All streams of the settings, in their order."""
    return tuple(declared_stream(declared, settings) for declared in settings.streams)
