"""The external asset `logs/<stream>_log`: the shards of a stream's log, and their unread records.

Dagster does not materialize it. The sensor of the shard list reports observations of it.
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
"""The Dagster kind to show, with an icon, for sources whose own name has no icon."""
SHARDS_SHOWN_MAX = 20
"""The most shards that an observation lists: the ones with the largest lag. Dagster keeps
observations forever."""


def log_asset_key(stream: ShardStream) -> dg.AssetKey:
    """Return the key of a stream's log."""
    return dg.AssetKey([*stream.prefix, "logs", f"{stream.name}_log"])


def build_log_asset(stream: ShardStream) -> dg.AssetSpec:
    """Return the asset `logs/<stream>_log`, upstream of the stream's asset."""
    # Spark shows its options to all users, so they hold no secret.
    options = dict(stream.source.spark_options())
    kind = options.pop("source", "")
    return dg.AssetSpec(
        log_asset_key(stream),
        description=f"The log that {stream.name} is read from: the bounds of its shards and the "
        f"progress of {stream.key}. The sensor of the shard list observes it.",
        kinds={_KINDS.get(kind, kind)} if kind else None,
        group_name=GROUP_NAME,
        metadata={**options, **column_schema(RAW_COLUMNS)},
    )


def log_observation(
    stream: ShardStream, leases: Sequence[ShardLease], lags: Lags, ages: Mapping[ShardId, float]
) -> dg.AssetObservation:
    """Return an observation of the log: bounds as a table, lag and counts as numbers.

    Args:
        ages: the age of the oldest unread record per shard, in seconds, if known.
    """
    counted = [lag for lag in lags.records.values() if lag is not None]
    complete = len(counted) == len(lags.records)
    # The age of the log is known only if all ages are: the other shards may have older records.
    ages_complete = lags.records.keys() <= ages.keys()
    by_lag = sorted(leases, key=lambda lease: lags.records.get(lease.shard) or 0, reverse=True)
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
        for lease in by_lag
        if (bounds := lags.bounds.get(lease.shard)) is not None
    ]
    return dg.AssetObservation(
        log_asset_key(stream),
        metadata={
            "shards": len(leases),
            "shards_behind": len(lags.behind),
            "lag_known": complete,
            **({"lag": sum(counted)} if complete else {}),
            "lag_seconds_known": ages_complete,
            **({"lag_seconds": round(max(ages.values(), default=0.0), 3)} if ages_complete else {}),
            **({"bounds": dg.MetadataValue.table(rows[:SHARDS_SHOWN_MAX])} if rows else {}),
        },
    )
