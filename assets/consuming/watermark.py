"""How far in event time a batch brings its shard."""

from __future__ import annotations

from datetime import datetime

from dagster_leasehold.assets.consuming.sweep import SweepOutcome
from dagster_leasehold.assets.shard_stream import ShardStream, WatermarkOf


def watermark_after(stream: ShardStream, outcome: SweepOutcome) -> datetime | None:
    """The largest event time of a batch; None where it has none, which leaves the watermark."""
    if stream.watermark_of is WatermarkOf.SOURCE:
        return outcome.statistics.last_event_time
    written = [file.last_event_time for file in outcome.files if not file.quarantine]
    return max((time for time in written if time is not None), default=None)
