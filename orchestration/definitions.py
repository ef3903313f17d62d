"""What `dagster` and `dg` load: the streams that the settings name."""

from __future__ import annotations

from assets.shard_stream import ShardStream
from lease_store.identifiers import StreamName
from orchestration.build import build_definitions
from orchestration.settings import Settings, StreamSettings, load_settings
from shard_sources.local_log import LocalLog
from shard_sources.source import Limits


def stream_of(declared: StreamSettings, settings: Settings) -> ShardStream:
    """A stream as the settings declare it.

    A local log that does not exist yet is no error here: the shard list sensor says so at every
    tick until it does, and the other streams go on.
    """
    return ShardStream(
        name=declared.name,
        source=LocalLog(settings.log_folder(StreamName(declared.name))),
        group=declared.group,
        ordered=declared.ordered,
        limits=Limits(declared.batch_records_max, declared.batch_bytes_max),
        shards_per_run=declared.shards_per_run,
        run_budget_s=declared.run_budget_s,
    )


_settings = load_settings()
defs = build_definitions([stream_of(row, _settings) for row in _settings.streams], _settings)
