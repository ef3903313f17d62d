"""How many records of a batch may be unreadable before somebody has to look."""

from __future__ import annotations

from dagster_leasehold.assets.errors import QuarantineLimitExceeded
from dagster_leasehold.assets.shard_stream import ShardStream
from dagster_leasehold.shard_sources.source import ReadRange


def check_quarantined(stream: ShardStream, range_: ReadRange, quarantined: int) -> None:
    """Refuse a batch with more quarantined records than the stream allows.

    Raises:
        QuarantineLimitExceeded: there are more.
    """
    if quarantined > stream.quarantined_max:
        raise QuarantineLimitExceeded(
            f"{quarantined} records of shard {range_.shard} between cursors {range_.start} and "
            f"{range_.end} could not be parsed, more than the {stream.quarantined_max} that the "
            "stream allows: mend the transform or raise quarantined_max."
        )
