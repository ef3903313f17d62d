"""The log of a stream as an asset: its shards from begin to end, and their unread records.

It is external: Dagster materializes none of it, and learns of it by observations.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import dagster as dg

from dagster_leasehold.assets.partitions import GROUP_NAME
from dagster_leasehold.assets.shard_stream import ShardStream
from dagster_leasehold.assets.table_metadata import RAW_COLUMNS, column_schema
from dagster_leasehold.lease_store.identifiers import ShardId
from dagster_leasehold.lease_store.shard_rows import ShardLease
from dagster_leasehold.shard_sources.lag import Lags

_KINDS = {"local_log": "file"}
"""The kind that Dagster has an icon for, by the name of a source that has none."""
SHARDS_SHOWN_MAX = 20
"""The most shards that an observation lists, those with most to read: it is stored for good."""


def log_asset_key(stream: ShardStream) -> dg.AssetKey:
    """Return the key of a stream's log."""
    return dg.AssetKey([*stream.prefix, "logs", f"{stream.name}_log"])


def build_log_asset(stream: ShardStream) -> dg.AssetSpec:
    """Return the asset `logs/<stream>_log`, upstream of the stream's own one."""
    # What travels to Spark is open to everybody there, and holds no secret.
    options = dict(stream.source.spark_options())
    kind = options.pop("source", "")
    return dg.AssetSpec(
        log_asset_key(stream),
        description=f"The log that {stream.name} is read from: the shards between their bounds, "
        f"and how far {stream.key} has come. The sensor of the shard list observes it.",
        kinds={_KINDS.get(kind, kind)} if kind else None,
        group_name=GROUP_NAME,
        metadata={**options, **column_schema(RAW_COLUMNS)},
    )


def log_observation(
    stream: ShardStream, leases: Sequence[ShardLease], lags: Lags, ages: Mapping[ShardId, float]
) -> dg.AssetObservation:
    """Return the metadata of a log, with numbers that Dagster can plot.

    Args:
        stream: the declaration.
        leases: of its group.
        lags: of these shards.
        ages: of the oldest unread record of each shard in seconds, where known.
    """
    counted = [lag for lag in lags.records.values() if lag is not None]
    complete = len(counted) == len(lags.records)
    # The oldest of some is no age of the log: a shard that does not answer may have older ones.
    aged = lags.records.keys() <= ages.keys()
    most = sorted(leases, key=lambda lease: lags.records.get(lease.shard) or 0, reverse=True)
    rows = [
        dg.TableRecord(
            {
                "shard": str(lease.shard),
                "state": lease.state.value,
                "begin": bounds.begin,
                "checkpoint": lease.check_point or "",
                "end": bounds.end,
                "lag": "unknown" if (lag := lags.records.get(lease.shard)) is None else str(lag),
            }
        )
        for lease in most
        if (bounds := lags.bounds.get(lease.shard)) is not None
    ]
    return dg.AssetObservation(
        log_asset_key(stream),
        metadata={
            "shards": len(leases),
            "shards_behind": len(lags.behind),
            "lag_known": complete,
            **({"lag": sum(counted)} if complete else {}),
            "lag_seconds_known": aged,
            **({"lag_seconds": round(max(ages.values(), default=0.0), 3)} if aged else {}),
            **({"bounds": dg.MetadataValue.table(rows[:SHARDS_SHOWN_MAX])} if rows else {}),
        },
    )
